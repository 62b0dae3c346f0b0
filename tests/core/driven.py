# SPDX-License-Identifier: Apache-2.0
"""A state with the smallest possible driver: binds come true at once unless a test decides otherwise."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Hold, Release
from dovetail.core.event_handlers import apply
from dovetail.core.model import Gang, Node
from dovetail.core.policy import Policy
from dovetail.core.reasons import Refusal
from dovetail.core.state import State
from tests.core.gang_oracle import FABRIC, gpu_pod

DEADLINE_MS = 60_000
TELL_AGAIN_MS = 15_000
POLICY = Policy(fabric=FABRIC, search_limit=100_000, start_deadline_ms=DEADLINE_MS, tell_again_ms=TELL_AGAIN_MS)


class Driven:
    def __init__(self, *nodes: Node, policy: Policy = POLICY) -> None:
        self.state = State(policy)
        self.now_ms = 0
        self.last: list[Decision] = []
        self.apply_events(*(ev.NodeChanged(node) for node in nodes))

    def apply_events(self, *events: ev.Event) -> None:
        for event in events:
            apply(self.state, event)

    def at(self, now_ms: int, *events: ev.Event, bind: bool = True) -> dict[str, str]:
        """Take one step; uid -> node of what it decides to bind."""
        self.now_ms = now_ms
        self.last = step(self.state, events, now_ms)
        assert self.state.cluster.check() == []
        binds = {d.uid: d.node for d in self.last if isinstance(d, Bind)}
        for uid in binds if bind else ():
            self.confirm(uid, binds[uid])
        return binds

    def confirm(self, uid: str, node: str) -> None:
        self.apply_events(
            ev.PodChanged(replace(self.state.workloads.pods[uid], node=node, bound_ms=max(1, self.now_ms)))
        )

    def holds(self) -> dict[str, Refusal]:
        """uid -> why it waits, as the last step reported."""
        return {uid: d.refusal for d in self.last if isinstance(d, Hold) for uid in d.uids}

    def released(self) -> list[set[str]]:
        return [set(d.uids) for d in self.last if isinstance(d, Release)]


def gang(gang_id: str = "g", pods: int = 2, **more: object) -> ev.Event:
    return ev.GangChanged(Gang(gang_id, "ns", gang_id, pods, **more))


def members(count: int, gang_id: str = "g", gpus: int = 1, first: int = 0, **more: object) -> list[ev.Event]:
    return [ev.PodChanged(gpu_pod(f"{gang_id}{i}", gpus, gang_id, **more)) for i in range(first, first + count)]


def lone(uid: str, gpus: int = 1, **more: object) -> ev.Event:
    return ev.PodChanged(gpu_pod(uid, gpus, **more))


def foreign(uid: str, node: str, gpus: int = 1) -> ev.Event:
    """A pod that somebody else has put on a node."""
    return ev.PodChanged(gpu_pod(uid, gpus, node=node, managed=False))
