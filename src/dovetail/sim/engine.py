# SPDX-License-Identifier: Apache-2.0
"""A discrete-event simulation of one cluster: the scheduler's own core under a virtual clock.

Rules: nothing happens between two events, so the clock jumps from one to the next. Of events at one time departures
come first, then arrivals in the order of the trace. A decision is carried out at once. A job that does not fit waits in
the core's own line; an impatient simulation drops it instead, as the FGD protocol does. The same workload, policy and
seed give the same decisions on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Hold
from dovetail.core.events import Event, GangChanged, GangRemoved, NodeChanged, PodChanged, PodRemoved
from dovetail.core.model import GPU, WHOLE_GPU_MILLI, Node, Request
from dovetail.core.policy import Policy
from dovetail.core.reasons import Refusal
from dovetail.core.state import State
from dovetail.sim.workload import Job, Workload

_DEPARTURE, _ARRIVAL = 0, 1


@dataclass(slots=True)
class Fate:
    """What became of a job, the `number`-th of the workload. `started_ms` is when the last of its pods was placed, None
    while one is not; `refusal` is why it was dropped, or what it was last told while it waits."""

    number: int
    job: Job
    waiting: int
    started_ms: int | None = None
    ended_ms: int | None = None
    refusal: Refusal | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster after one event time: GPU demand in milli-GPU that has `arrived` so far, and that is `allocated` now;
    pods that wait."""

    at_ms: int
    arrived_milli: int
    allocated_milli: int
    waiting_pods: int


@dataclass(slots=True)
class Result:
    """`placed` maps the uid of each placed pod to its node (pods that have left included)."""

    capacity_milli: int
    fates: list[Fate]
    moments: list[Moment] = field(default_factory=list)
    placed: dict[str, str] = field(default_factory=dict)


def gpu_milli(request: Request) -> int:
    """The GPU demand of one pod, in milli-GPU: what it says of each GPU that it asks for, or of one."""
    return (request.gpu_milli or WHOLE_GPU_MILLI) * dict(request.resources).get(GPU, 0) or request.gpu_milli


class Simulation:
    def __init__(self, workload: Workload, policy: Policy, *, patient: bool = True) -> None:
        self.state = State(policy)
        self._patient = patient
        self._told: list[Event] = list(workload.cluster)
        nodes: dict[str, Node] = {e.node.name: e.node for e in workload.cluster if isinstance(e, NodeChanged)}
        capacity = sum(dict(node.allocatable).get(GPU, 0) for node in nodes.values()) * WHOLE_GPU_MILLI
        fates = [Fate(number, job, len(job.pods)) for number, job in enumerate(workload.jobs)]
        self.result = Result(capacity, fates)
        self._owner = {pod.uid: fate for fate in fates for pod in fate.job.pods}
        self._milli = {pod.uid: gpu_milli(pod.request) for job in workload.jobs for pod in job.pods}
        self._agenda = [(fate.job.at_ms, _ARRIVAL, fate.number) for fate in fates]
        heapq.heapify(self._agenda)
        self._arrived_milli = self._allocated_milli = self._waiting_pods = 0

    def run(self, watch: Callable[[int], None] = lambda events: None) -> Result:
        """Run to the end: nobody arrives or leaves any more. `watch` is told how many arrivals and departures are done
        with, each time."""
        done = 0
        while self._agenda:
            now_ms = self._agenda[0][0]
            while self._agenda and self._agenda[0][0] == now_ms:
                _, kind, number = heapq.heappop(self._agenda)
                fate = self.result.fates[number]
                self._arrive(fate) if kind == _ARRIVAL else self._leave(fate)
                done += 1
            self._decide(now_ms)
            self.result.moments.append(Moment(now_ms, self._arrived_milli, self._allocated_milli, self._waiting_pods))
            watch(done)
        return self.result

    def _arrive(self, fate: Fate) -> None:
        job = fate.job
        if job.gang is not None:
            self._told.append(GangChanged(job.gang))
        for pod in job.pods:
            self._told.append(PodChanged(pod))
            self._arrived_milli += self._milli[pod.uid]
        self._waiting_pods += len(job.pods)

    def _leave(self, fate: Fate) -> None:
        """All pods of a job go: those that run, and those that wait."""
        for pod in fate.job.pods:
            self._told.append(PodRemoved(pod.uid))
            if pod.uid in self.result.placed:
                self._allocated_milli -= self._milli[pod.uid]
        if fate.job.gang is not None:
            self._told.append(GangRemoved(fate.job.gang.id))
        self._waiting_pods -= fate.waiting

    def _decide(self, now_ms: int) -> None:
        while self._told or self.state.busy:
            events, self._told = self._told, []
            for decision in step(self.state, events, now_ms):
                self._carry_out(decision, now_ms)

    def _carry_out(self, decision: Decision, now_ms: int) -> None:
        match decision:
            case Bind(uid, node, made=made):
                fate = self._owner[uid]
                self.result.placed[uid] = node
                self._allocated_milli += self._milli[uid]
                self._waiting_pods -= 1
                fate.waiting -= 1
                pod = self.state.roster.pods[uid]
                by_claim = made.resources if made is not None else ()
                self._told.append(PodChanged(replace(pod, node=node, bound_ms=now_ms, by_claim=by_claim)))
                if not fate.waiting:
                    self._start(fate, now_ms)
            case Hold(_, uids, refusal):
                for fate in {fate.number: fate for fate in map(self._owner.__getitem__, uids)}.values():
                    fate.refusal = refusal
                    if not self._patient and not fate.dropped:
                        fate.dropped = True
                        self._leave(fate)

    def _start(self, fate: Fate, now_ms: int) -> None:
        fate.started_ms, fate.refusal = now_ms, None
        if fate.job.duration_ms is not None:
            fate.ended_ms = now_ms + fate.job.duration_ms
            heapq.heappush(self._agenda, (fate.ended_ms, _DEPARTURE, fate.number))
