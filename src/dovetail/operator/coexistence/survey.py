# SPDX-License-Identifier: Apache-2.0
"""What a takeover would begin with: NVIDIA's stack in a cluster as it is, and what would become of it. Reads only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import replace

from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.resources import DAEMON_SETS, DEPLOYMENTS, GPU_STACKS, NODES, PODS
from dovetail.kube.objects.stack import GPUStack, NodePool, StackSpec
from dovetail.kube.reading.lists import ListRequest, read_lists
from dovetail.operator.coexistence.found_components import (
    AgentOnNode,
    ForeignDaemon,
    PodsOnNodes,
    foreign_daemons,
    foreign_status,
    pods_on_nodes,
)
from dovetail.operator.coexistence.states import FunctionOnNode, SharedNode, TakeoverState
from dovetail.operator.coexistence.table import BY_NAME, FOLLOWS, SIDE_LABELS, TAKEN_OVER
from dovetail.operator.coexistence.takeover import takeover_plan
from dovetail.operator.fleet import Holders, fleet_node, is_unready
from dovetail.operator.pools import is_gpu_node, pool_of, pools_of
from dovetail.operator.rendering.contradictions import contradictions
from dovetail.operator.watched.nodes import WatchedGPUNode, WatchedNode
from dovetail.operator.watched.pods import WatchedOwner, WatchedPod

_SIDES = frozenset(SIDE_LABELS.values())
_REQUESTS = (
    ListRequest(NODES, WatchedNode),
    ListRequest(DAEMON_SETS, WatchedOwner),
    ListRequest(DEPLOYMENTS, WatchedOwner),
    ListRequest(PODS, WatchedPod),
    ListRequest(GPU_STACKS, GPUStack),
)


class ComponentFate(Struct, frozen=True):
    """A component of NVIDIA's stack: `object` is its DaemonSet or Deployment, `nodes` where it runs, `taken_over`
    whether it would be, `note` why not, or what to know."""

    component: str
    object: str
    version: str
    managed_by: str
    nodes: int
    taken_over: bool
    note: str


class FunctionGroup(Struct, frozen=True):
    """Nodes on which a function of the agent is in one state for one reason."""

    function: str
    state: str
    reason: str
    message: str
    action: str
    nodes: tuple[str, ...]


class InstallPlan(Struct, frozen=True):
    """`problems` are about the spec, `unread` about what could not be read."""

    components: tuple[ComponentFate, ...]
    functions: tuple[FunctionGroup, ...]
    problems: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def shared_nodes(
    nodes: Iterable[WatchedNode],
    pods: PodsOnNodes,
    pools: tuple[NodePool, ...],
    rack_label: str = "",
    gpu_nodes: Mapping[tuple[str, str], WatchedGPUNode] = {},
    held: frozenset[str] = frozenset(),
) -> list[SharedNode]:
    """The GPU nodes, and those with a label of a takeover, by name; of one in no pool nothing can be taken over.
    `held`: those that another part of the operator has taken out of service."""
    nothing, nowhere = frozenset[str](), AgentOnNode()
    found = []
    for node in nodes:
        meta = node.metadata
        if is_gpu_node(meta.labels) or any(key.startswith(TAKEN_OVER) or key in _SIDES for key in meta.labels):
            foreign = pods.foreign.get(meta.name, nothing)
            agent = pods.agents.get(meta.name, nowhere)
            pool = pool_of(pools, meta.labels)
            one = gpu_nodes.get(("", meta.name))
            fleet = fleet_node(node, one, pool or NodePool(), rack_label, Holders())
            unready = is_unready(one.status.readiness if one is not None else None)
            found.append(
                SharedNode(
                    meta.name, meta.labels, meta.annotations, pool, foreign, agent, fleet, unready,
                    meta.name in held, node.reachable,
                )
            )  # fmt: skip
    return sorted(found, key=lambda one: one.name)


async def survey(config: ClusterConfig, stack: Mapping[str, Any] | None) -> InstallPlan:
    """What becomes of NVIDIA's stack with this GPUStack, a document; None: with that of the cluster, else with an empty
    one. Raises KubeError, ValidationError for a document of other types."""
    nodes, daemon_sets, deployments, pods, stacks = await read_lists(config, _REQUESTS)
    replies = (nodes, daemon_sets, deployments, pods)
    known = stacks.objects or () if stack is None else (convert(stack, GPUStack),)
    spec = next((one.spec for one in known), StackSpec())
    daemons = foreign_daemons(daemon_sets.objects or (), deployments.objects or ())
    found = pods_on_nodes(pods.objects or ())
    shared = shared_nodes(nodes.objects or (), found, pools_of(spec.agent) if spec.agent.enabled else ())
    return install_plan(spec, shared, daemons, found, tuple(one.unread for one in replies if one.unread))


def install_plan(
    spec: StackSpec,
    nodes: list[SharedNode],
    daemons: list[ForeignDaemon],
    pods: PodsOnNodes,
    unread: tuple[str, ...] = (),
) -> InstallPlan:
    """The plan for these."""
    plan = takeover_plan(spec, 0, int(time.time()), nodes, daemons)
    wanted = {*spec.take_over, *(name for name, leader in FOLLOWS.items() if leader in spec.take_over)}
    labels: Mapping[str, Mapping[str, str]] = {one.name: one.labels for one in nodes}
    components = []
    for one in foreign_status(daemons, labels, pods):
        row = BY_NAME[one.component]
        taken = one.component in wanted and not row.kept
        note = row.kept or (row.beside if taken else f"add {one.component} to spec.takeOver to replace it")
        place = f"{one.kind} {one.namespace}/{one.name}"
        components.append(
            ComponentFate(one.component, place, one.version, one.managed_by, one.nodes, taken, note)
        )  # fmt: skip
    problems = tuple(f"{one.field}: {one.value!r} {one.rule}" for one in (*contradictions(spec), *plan.problems))
    return InstallPlan(tuple(components), tuple(_grouped(plan.functions)), problems, unread)


def _grouped(functions: Iterable[FunctionOnNode]) -> list[FunctionGroup]:
    groups: dict[FunctionGroup, list[str]] = {}
    for one in functions:
        # Before it begins all nodes wait in turn.
        waits = one.state is TakeoverState.QUEUED
        texts = ("", "", "") if waits else (one.reason, one.message, one.action)
        key = FunctionGroup(one.function.value, one.state.value, *texts, ())
        groups.setdefault(key, []).append(one.node)
    return [replace(key, nodes=tuple(names)) for key, names in groups.items()]
