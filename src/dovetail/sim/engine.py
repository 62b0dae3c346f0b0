# SPDX-License-Identifier: Apache-2.0
"""A discrete-event simulation of one cluster: the scheduler's own core under a virtual clock.

Rules
- A decision takes effect at once.
- A job that does not fit waits in the core's own queue. With `patient=False` it is dropped, as in the FGD protocol.
- The pods of a stopped job come back as new pending pods, as a controller creates them.
- The core does not see the duration of a job; it sees that pods have ended.
- The core treats time 0 as unknown, so its clock is one millisecond ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

from msgspec.structs import replace

from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Drain, Evict, Hold, Release, Unnominate
from dovetail.core.events import (
    Event,
    GangChanged,
    GangRemoved,
    NodeChanged,
    NodeRemoved,
    PodChanged,
    PodRemoved,
    QueueChanged,
)
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.sim.clock import Fate, VirtualClock
from dovetail.sim.network import Network
from dovetail.sim.workload import Workload, gpu_milli

PodEnd = Literal["Completed", "Failed", "Preempted", "Deleted"]
"""How a pod ended: its job completed, its node failed, its job was evicted, or its job was dropped."""
Observer = Callable[[State, int, Collection[str], Mapping[str, PodEnd]], None]
"""Called after the decisions of each time: with the state, the time of the core, the pods that came, changed or went
since the last call, and how those that went ended."""


TakeStep = Callable[[State, Iterable[Event], int], list[Decision]]
"""`core.cycle.step`, or what calls it and keeps the call."""


class Simulation(VirtualClock):
    @property
    def core_ms(self) -> int:
        """The current time on the clock of the core."""
        return self.now_ms + 1

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        *,
        patient: bool = True,
        observer: Observer | None = None,
        network: Network | None = None,
        take_step: TakeStep = step,
    ) -> None:
        super().__init__(workload, network)
        self._observer = observer
        self._take_step = take_step
        self._touched: dict[str, None] = {}
        self._ends: dict[str, PodEnd] = {}
        # A refused job is dropped, so reservations and preemption have no use.
        self.state = State(policy if patient else replace(policy, reserve=False, preempt=False))
        self._patient = patient
        self._nodes = workload.nodes()
        self._events: list[Event] = [*map(QueueChanged, workload.queues), *workload.cluster]
        self._later: list[Event] = []
        """Sent with the next events: without pending pods, a completed bind needs no step of its own."""
        self._uids: dict[int, list[str]] = {}
        self._owner: dict[str, tuple[Fate, int]] = {}
        """The job of each pod that exists now, and the index of the pod in the job."""

    def admit(self, fate: Fate) -> None:
        job = fate.job
        if job.gang is not None and not fate.runs:
            self._events.append(GangChanged(job.gang))
        uids = self._uids[fate.number] = []
        for i, pod in enumerate(job.pods):
            if fate.since_ms > job.at_ms:
                pod = replace(pod, uid=f"{pod.uid}~{self.now_ms}", created_ms=self.core_ms)
            uids.append(pod.uid)
            self._owner[pod.uid] = fate, i
            self._events.append(PodChanged(pod))

    def discharge(self, fate: Fate) -> None:
        ended = fate.ended_ms is not None
        end: PodEnd = "Completed" if ended else "Deleted" if fate.dropped else "Preempted" if fate.leaving else "Failed"
        for uid in self._uids.pop(fate.number):
            del self._owner[uid]
            self._ends[uid] = end
            self._events.append(PodRemoved(uid, self.core_ms, succeeded=ended))
        if fate.job.gang is not None and (ended or fate.dropped):
            self._events.append(GangRemoved(fate.job.gang.id))

    def node_down(self, name: str) -> None:
        self._events.append(NodeRemoved(name))

    def node_up(self, name: str) -> None:
        self._events.append(NodeChanged(self._nodes[name]))

    def wake_ms(self) -> int | None:
        due_ms = self.state.next_wake_ms()
        return None if due_ms is None else due_ms - 1

    def decide(self) -> bool:
        acted = False
        wake_ms = self.state.next_wake_ms()
        due = wake_ms is not None and wake_ms <= self.core_ms
        while due or self._events or self.state.busy:
            due = False
            events, self._later, self._events = self._later + self._events, [], []
            if self._observer is not None:
                self._touched |= _pods_of(events)
            for decision in self._take_step(self.state, events, self.core_ms):
                acted |= not isinstance(decision, Hold)
                self._carry_out(decision)
        if self._observer is not None:
            self._touched |= _pods_of(self._later)
            self._observer(self.state, self.core_ms, self._touched, self._ends)
        self._touched, self._ends = {}, {}
        return acted

    def _carry_out(self, decision: Decision) -> None:
        pods = self.state.workloads.pods
        match decision:
            case Bind(uid, node, made=made):
                fate, i = self._owner[uid]
                pod, by_claim = pods[uid], made.resources if made is not None else ()
                bound = PodChanged(replace(pod, node=node, bound_ms=self.core_ms, by_claim=by_claim))
                (self._events if self._patient else self._later).append(bound)
                original = fate.job.pods[i]
                self.hold(fate, original.uid, gpu_milli(original.request), node)
            case Hold(_, uids, refusal):
                for fate in {fate.number: fate for fate, _ in map(self._owner.__getitem__, uids)}.values():
                    fate.refusal = refusal
                    if not self._patient and not fate.dropped:
                        self.drop(fate)
            case Evict(_, uids, nominations=nominations):
                self._events += [PodChanged(replace(pods[uid], nominated_node=node)) for uid, node in nominations]
                self._evict(uids)
            case Release(_, uids) | Drain(_, uids):
                self._evict(uids)
            case Unnominate(_, uids):
                self._events += [PodChanged(replace(pods[uid], nominated_node="")) for uid in uids if uid in pods]

    def _evict(self, uids: tuple[str, ...]) -> None:
        """Evict the whole job of each of these pods."""
        for fate in {fate.number: fate for fate, _ in map(self._owner.__getitem__, uids)}.values():
            for uid in self._uids[fate.number]:
                self._events.append(PodChanged(replace(self.state.workloads.pods[uid], deleting=True)))
            self.evict(fate, max(pod.work.grace_ms for pod in fate.job.pods))


def _pods_of(events: list[Event]) -> dict[str, None]:
    """The pods that events are about."""
    changed = [event.pod.uid for event in events if isinstance(event, PodChanged)]
    return dict.fromkeys([*changed, *[event.uid for event in events if isinstance(event, PodRemoved)]])
