# SPDX-License-Identifier: Apache-2.0
"""A cluster over virtual time, with pods as users write them: they ask for CPU and memory beside their GPUs.

Binds come true at once. An evicted pod ends after its grace, and its owner makes it anew at once unless a test
decides otherwise. `evictions` are the time, the cause and the names of the pods of each decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Drain, Evict, Hold, Release
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Amounts, Queue
from dovetail.core.reasons import Refusal
from dovetail.core.state import State

SECOND_MS, MINUTE_MS, HOUR_MS = 1000, 60_000, 3_600_000
LONG_MS = 5 * MINUTE_MS
"""Between steps once all should be at rest, for hours: no job is evicted before it ran for ten minutes."""
GIB = 2**30


def node(name: str, gpus: int, labels: Mapping[str, str] | None = None) -> Node:
    """A machine with 16 CPUs and 128 GiB for each GPU."""
    amounts = ((CPU, 16_000 * gpus), (MEMORY, 128 * GIB * gpus), (GPU, gpus), (PODS, 110))
    return Node(name, amounts, tuple((labels or {}).items()))


def pod(name: str, gpus: int = 1, **more: object) -> Pod:
    """With 8 CPUs and 64 GiB for each GPU, and an owner that makes it anew."""
    asks = ((CPU, 8000 * gpus), (MEMORY, 64 * GIB * gpus), (GPU, gpus))
    fields: dict[str, object] = {"owner": f"owner-of-{name}", "created_ms": 1}
    return Pod(name, "ns", name, Request(asks), **(fields | more))


def queue(name: str, gpus: float | None = None, limit: int | None = None, **more: object) -> ev.Event:
    """A queue with so many GPUs guaranteed, and at most."""

    def amounts(count: float | None) -> Amounts:
        return () if count is None else ((GPU_CLASS, round(1000 * count)),)

    return ev.QueueChanged(Queue(name, guarantee=amounts(gpus), limit=amounts(limit), **more))


GPU_CLASS = "gpu"


def gang(gang_id: str, least: int, **more: object) -> ev.Event:
    return ev.GangChanged(Gang(gang_id, "ns", gang_id, least, **more))


class World:
    """An evicted pod ends after `grace_ms` (None: after its own grace). A step is made each `period_ms`, also where
    nothing is due, and no two within `least_ms` of each other: what waits is tried twice a minute."""

    def __init__(
        self, *nodes: Node, policy: Policy | None = None, grace_ms: int | None = 30 * SECOND_MS,
        period_ms: int = MINUTE_MS, least_ms: int = SECOND_MS // 2,
    ) -> None:  # fmt: skip
        self.state = State(policy or Policy(fabric=()))
        self.now_ms = 1
        self.evictions: list[tuple[int, str, tuple[str, ...]]] = []
        self.released: list[tuple[int, tuple[str, ...]]] = []
        self.refusals: dict[str, Refusal] = {}
        self._grace_ms, self._period_ms, self._least_ms = grace_ms, period_ms, least_ms
        self._agenda: list[tuple[int, ev.Event]] = []
        self._made = 0
        self.apply_events(*(ev.NodeChanged(one) for one in nodes))

    def apply_events(self, *reported: ev.Event) -> None:
        for event in reported:
            apply(self.state, event)

    def submit(self, *pods: Pod) -> None:
        self.apply_events(*(ev.PodChanged(replace(pod, created_ms=self.now_ms)) for pod in pods))

    def ends(self, *names: str) -> None:
        """These succeed."""
        uids = {pod.name: uid for uid, pod in self.state.workloads.pods.items()}
        self.apply_events(*(ev.PodRemoved(uids[name], self.now_ms, True) for name in names))

    def fails(self, *names: str, replaced_after_ms: int | None = None) -> None:
        """The pods of these names that run fail; their owner makes them anew after so long, or never."""
        for name in names:
            pod = next(one for one in self.state.workloads.pods.values() if one.name == name and one.node)
            self.apply_events(ev.PodRemoved(pod.uid, self.now_ms, failed=True))
            if replaced_after_ms is not None:
                self.at(self.now_ms + replaced_after_ms, ev.PodChanged(self._anew(pod, replaced_after_ms)))

    def at(self, when_ms: int, *reported: ev.Event) -> None:
        self._agenda += [(when_ms, event) for event in reported]

    def live(self, for_ms: int, least_ms: int = 0) -> World:
        """Let so much time pass, with no two steps within `least_ms` of each other (0: as the world has it)."""
        until_ms, least_ms = self.now_ms + for_ms, least_ms or self._least_ms
        while True:
            due = [event for when_ms, event in self._agenda if when_ms <= self.now_ms]
            self._agenda = [one for one in self._agenda if one[0] > self.now_ms]
            decided = step(self.state, due, self.now_ms)
            assert self.state.cluster.check() == []
            for decision in decided:
                self._carry_out(decision)
            if decided or self.state.busy:
                continue
            if self.now_ms >= until_ms:
                return self
            times = [until_ms, self.now_ms + self._period_ms, *(when_ms for when_ms, _ in self._agenda)]
            wake_ms = self.state.next_wake_ms()
            times += [wake_ms] if wake_ms is not None else []
            self.now_ms = max(self.now_ms + least_ms, min(times))

    def _carry_out(self, decision: Decision) -> None:
        pods = self.state.workloads.pods
        match decision:
            case Bind():
                bound = replace(pods[decision.uid], node=decision.node, bound_ms=self.now_ms)
                self.refusals.pop(bound.name, None)
                self.apply_events(ev.PodChanged(bound))
            case Evict():
                self.evictions.append((self.now_ms, decision.cause, tuple(pods[uid].name for uid in decision.uids)))
                self._end(decision.uids)
            case Drain():
                self.evictions.append((self.now_ms, "drain", tuple(pods[uid].name for uid in decision.uids)))
                self._end(decision.uids)
            case Release():
                self.released.append((self.now_ms, tuple(pods[uid].name for uid in decision.uids)))
                self._end(decision.uids)
            case Hold():
                self.refusals |= {pods[uid].name: decision.refusal for uid in decision.uids if uid in pods}

    def _end(self, uids: Iterable[str]) -> None:
        for uid in uids:
            pod = self.state.workloads.pods[uid]
            grace_ms = pod.work.grace_ms if self._grace_ms is None else self._grace_ms
            end_ms = self.now_ms + grace_ms
            self.apply_events(ev.PodChanged(replace(pod, deleting=True)))
            self.at(end_ms, ev.PodRemoved(uid, end_ms))
            if pod.owner:
                self.at(end_ms, ev.PodChanged(self._anew(pod, grace_ms)))

    def _anew(self, pod: Pod, after_ms: int) -> Pod:
        self._made += 1
        created_ms = self.now_ms + after_ms
        return replace(pod, uid=f"{pod.name}~{self._made}", node="", bound_ms=0, created_ms=created_ms, deleting=False)

    @property
    def running(self) -> dict[str, str]:
        """Nodes by the names of pods."""
        return {pod.name: pod.node for pod in self.state.workloads.pods.values() if pod.node and not pod.deleting}

    @property
    def gave_way(self) -> list[str]:
        return [name for _, _, names in self.evictions for name in names]

    def gpus(self, *queues: str) -> list[int]:
        """How many GPUs each of the queues has."""
        return [self.state.shares.allocated(name).get(GPU_CLASS, 0) // 1000 for name in queues]
