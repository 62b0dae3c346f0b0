# SPDX-License-Identifier: Apache-2.0
"""Where a function is on a node that two sides share, why, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from dovetail.kube.objects.stack import NodePool
from dovetail.operator.budgets import FleetNode
from dovetail.operator.coexistence.found_components import AgentOnNode, ForeignDaemon
from dovetail.operator.coexistence.table import TAKEN_OVER, AgentFunction

SINCE = "dovetail.dev/takeover-since"
"""Annotation of a node on which a function moves: the Unix time in seconds when that began."""
FAILED = "dovetail.dev/takeover-failed"
"""Annotation of a node on which a takeover failed: the generation of the GPUStack that asked for it."""


SETTLED = "dovetail.dev/takeover-settled"
"""Annotation of a node with functions that were taken over: when each was, as function=Unix time in seconds."""


class TakeoverState(StrEnum):
    """Of a function on a node. FOREIGN, DOVETAIL: settled. BLOCKED: somebody has to do something. QUEUED: its turn
    comes. LEAVING: the other side is switched off, its pods are not gone. STARTING: the agent's pod is not ready.
    RETURNING: the agent's pod is not gone. FAILED: the agent's pod was not ready in time, and the node went back."""

    FOREIGN = "Foreign"
    DOVETAIL = "Dovetail"
    BLOCKED = "Blocked"
    QUEUED = "Queued"
    LEAVING = "Leaving"
    STARTING = "Starting"
    RETURNING = "Returning"
    FAILED = "Failed"


MOVING = (TakeoverState.LEAVING, TakeoverState.STARTING, TakeoverState.RETURNING)
"""The states in which a node is between the sides."""


class TakeoverReason(StrEnum):
    """Why a function is not Dovetail's on a node although the spec asks for it."""

    NOT_SWITCHABLE = "NotSwitchable"
    OTHER_ALLOCATOR = "OtherAllocator"
    NOT_OFFERED = "NotOffered"
    PAUSED = "PausedByOthers"
    WAITS_FOR_ITS_TURN = "WaitsForItsTurn"
    ONE_AFTER_THE_OTHER = "OneAfterTheOther"
    POD_NOT_GONE = "PodNotGone"
    AGENT_NOT_READY = "AgentNotReady"
    AGENT_NOT_GONE = "AgentNotGone"
    CAME_BACK = "CameBack"
    NOT_READY_IN_TIME = "NotReadyInTime"


class SharedNode(Struct, frozen=True):
    """A GPU node as it is now. `foreign`: the components whose pods are not gone; `agent`: what ours do there. `fleet`
    is how it counts in the budgets. `unready`: the walk found that it cannot run pods with GPUs. `held`: another part
    of the operator has taken it out of service. `reachable`: its kubelet answers."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    pool: NodePool | None = None
    foreign: frozenset[str] = frozenset()
    agent: AgentOnNode = AgentOnNode()
    fleet: FleetNode = FleetNode("")
    unready: bool = False
    held: bool = False
    reachable: bool = True


class FunctionOnNode(Struct, frozen=True):
    """Where a function is, and what is in the way. `components` are those of the other side."""

    node: str
    function: AgentFunction
    state: TakeoverState
    components: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    action: str = ""


class NodePatch(Struct, frozen=True):
    """What to write to a Node, in one request; None removes."""

    node: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


MESSAGES = {
    TakeoverReason.NOT_SWITCHABLE: ("no node label keeps {titles} away", "its owner changes it once"),
    TakeoverReason.OTHER_ALLOCATOR: (
        "{stays} offers the same GPUs and stays",
        "add {stays} to spec.takeOver: of one node's GPUs only one side may dispose",
    ),
    TakeoverReason.NOT_OFFERED: (
        "the pool of this node does not do what {titles} does",
        "change the pool in spec.agent.pools, or leave the component out of spec.takeOver",
    ),
    TakeoverReason.PAUSED: (
        "NVIDIA's own tools have paused {titles} here",
        "none: it goes on when they are done",
    ),
    TakeoverReason.WAITS_FOR_ITS_TURN: (
        "other nodes come first, or as many as may be are out of service",
        "none: spec.upgrade has the budget, in which nodes that are not ready count",
    ),
    TakeoverReason.ONE_AFTER_THE_OTHER: ("another function moves on this node", "none: it comes next"),
    TakeoverReason.POD_NOT_GONE: (
        "{titles} is switched off, and its pod is not gone yet",
        "none, unless its pod hangs",
    ),
    TakeoverReason.AGENT_NOT_READY: (
        "the agent that does it is not ready yet",
        "none: the status of the node names what holds it up",
    ),
    TakeoverReason.AGENT_NOT_GONE: ("the agent that does it is not gone yet", "none, unless its pod hangs"),
    TakeoverReason.CAME_BACK: (
        "something else has switched {titles} on again; it is switched off again",
        "none, unless it happens often: then something writes the labels of the node",
    ),
    TakeoverReason.NOT_READY_IN_TIME: (
        "the takeover was not ready in time, and the node went back",
        "see why the agent was not ready, then change the GPUStack: the next generation tries again",
    ),
}
"""By reason the message and the action; docs/reference/gpustack.md lists the reasons."""


def exclusion(daemon: ForeignDaemon) -> str:
    """What the owner of a DaemonSet has to change once, so that a node label keeps it away."""
    name = next((one.name for one in daemon.components if not one.kept), daemon.components[0].name)
    rule = f'{{key: {TAKEN_OVER}{name}, operator: NotIn, values: ["true"]}}'
    how = "the chart's value affinity" if daemon.managed_by.startswith("Helm") else "its pod template"
    return (
        f"add {rule} to every term of its required node affinity in {how}; its pods are replaced once, and pods with "
        "GPUs keep them"
    )
