# SPDX-License-Identifier: Apache-2.0
"""The virtual clock: what happens when, and what becomes of each job. Who decides is a subclass.

Rules
- Nothing happens between two events, so the clock jumps from one to the next. Of events at one time ends come first,
  then pods that are gone after their grace, nodes that fail, nodes that come back, and arrivals in the order of the
  trace. Then it is decided.
- A job has work to do for its duration. It works while all of its pods run; a later start first takes the time that
  its pods say they need to go on (`startup_ms`). A job that is stopped keeps what it did up to its last checkpoint, one
  each `checkpoint_interval_ms` of a run (0: it starts from scratch); one that is suspended instead keeps all of it.
- A job is stopped as a whole and waits again from then on. One that has to give way ends its work at once and holds its
  GPUs for its grace. A node that fails stops all of its jobs.
- A job waits while it has not all of its pods running; waiting and running together are its completion time.
The same workload and scheduler give the same result on every machine.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec import Struct, field

from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.core.reasons import Refusal
from dovetail.sim.workload import SimJob, Workload, gpu_milli

_END, _GONE, _DOWN, _UP, _ARRIVAL, _WAKE = range(6)


class Fate(Struct):
    """What became of a job, the `number`-th of the workload, of the `queue`-th queue.

    `waiting` counts its pods that are not placed. `started_ms` is when it ran first, `since_ms` since when it runs or
    waits now, `runs` how often it was started. `saved_ms` of its work are done for good; `waited_ms`, `ran_ms` and
    `lost_ms` (work done in vain) are complete up to `since_ms`. `refusal` is why it was dropped, or what it was last
    told while it waits."""

    number: int
    job: SimJob
    queue: int
    milli: int
    waiting: int
    since_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    refusal: Refusal | None = None
    dropped: bool = False
    running: bool = False
    leaving: bool = False
    runs: int = 0
    saved_ms: int = 0
    waited_ms: int = 0
    ran_ms: int = 0
    lost_ms: int = 0
    nodes: dict[str, None] = field(default_factory=dict)
    held_milli: int = 0

    @property
    def startup_ms(self) -> int:
        """What this run needs before it goes on with the work."""
        return self.job.pods[0].work.startup_ms if self.runs > 1 else 0

    def worked_ms(self, now_ms: int) -> int:
        """Work that is done now, saved or not."""
        fresh = max(0, now_ms - self.since_ms - self.startup_ms) if self.running else 0
        return self.saved_ms + fresh

    def remaining_ms(self, now_ms: int) -> int:
        """Work that is left. Only for jobs that have a duration."""
        return (self.job.duration_ms or 0) - self.worked_ms(now_ms)

    def served_ms(self, now_ms: int) -> int:
        """How long it has run in all, in vain or not."""
        return self.ran_ms + (now_ms - self.since_ms if self.running else 0)


class Moment(Struct, frozen=True):
    """The cluster after one event time: GPU demand in milli-GPU that has `arrived` so far; for each queue what it holds
    and what it wants (that included), in milli-GPU; and the GPU capacity of the nodes that are not down."""

    at_ms: int
    arrived_milli: int
    held_milli: tuple[int, ...]
    wanted_milli: tuple[int, ...]
    up_milli: int

    @property
    def allocated_milli(self) -> int:
        return sum(self.held_milli)


class Result(Struct):
    """`placed` maps the uid of each pod that was placed to its (last) node, pods that have left included. `evicted`
    counts jobs that had to give way, `failed` those that a node took with it, each as often as it happened. `queues`
    are names; the weights are theirs."""

    capacity_milli: int
    fates: list[Fate]
    queues: list[str]
    weights: list[int]
    moments: list[Moment] = field(default_factory=list)
    placed: dict[str, str] = field(default_factory=dict)
    evicted: int = 0
    failed: int = 0


class VirtualClock(ABC):
    """`suspends`: who gives way keeps all of its work."""

    suspends = False

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.now_ms = 0
        self.gpus = {name: dict(node.allocatable).get(GPU, 0) for name, node in workload.nodes().items()}
        self.up_milli = sum(self.gpus.values()) * WHOLE_GPU_MILLI
        names = {queue.name: i for i, queue in enumerate(workload.queues)}
        fates = []
        for number, job in enumerate(workload.jobs):
            queue = names.setdefault(job.pods[0].queue, len(names))
            milli = sum(gpu_milli(pod.request) for pod in job.pods)
            fates.append(Fate(number, job, queue, milli, len(job.pods), job.at_ms))
        weights = [queue.weight for queue in workload.queues]
        weights += [1] * (len(names) - len(weights))
        self.result = Result(self.up_milli, fates, list(names), weights)
        self._held_milli, self._wanted_milli = [0] * len(names), [0] * len(names)
        self._arrived_milli = 0
        self._agenda = [(fate.job.at_ms, _ARRIVAL, fate.number, 0) for fate in fates]
        for number, outage in enumerate(workload.outages):
            self._agenda += [(outage.from_ms, _DOWN, number, 0), (outage.until_ms, _UP, number, 0)]
        heapq.heapify(self._agenda)
        self._open = len(fates)

    # What a subclass decides, and is told.

    @abstractmethod
    def decide(self) -> bool:
        """Start, evict or drop jobs; whether anything was done."""

    @abstractmethod
    def admit(self, fate: Fate) -> None:
        """The job waits from now on, for the first time or again."""

    @abstractmethod
    def discharge(self, fate: Fate) -> None:
        """The pods of the job are gone; it has ended, is dropped, or is admitted again right away."""

    @abstractmethod
    def node_down(self, name: str) -> None:
        """The node is gone; its jobs are discharged already."""

    @abstractmethod
    def node_up(self, name: str) -> None:
        """The node is back."""

    def wake_ms(self) -> int | None:
        """When it is to be decided again even if nothing happens; a time that is past says nothing."""
        return None

    # What a subclass may do.

    def hold(self, fate: Fate, uid: str, milli: int, node: str) -> None:
        """A pod of the job, by its uid in the trace, is on the node now; with the last one the job runs."""
        self.result.placed[uid] = node
        fate.nodes[node] = None
        fate.held_milli += milli
        fate.waiting -= 1
        self._held_milli[fate.queue] += milli
        if fate.waiting:
            return
        if fate.started_ms is None:
            fate.started_ms = self.now_ms
        fate.refusal = None
        fate.waited_ms += self.now_ms - fate.since_ms
        fate.since_ms, fate.running = self.now_ms, True
        fate.runs += 1
        if fate.job.duration_ms is not None:
            end_ms = self.now_ms + fate.startup_ms + fate.remaining_ms(self.now_ms)
            heapq.heappush(self._agenda, (end_ms, _END, fate.number, fate.runs))

    def evict(self, fate: Fate, grace_ms: int) -> None:
        """The job gives way: it works no more, and its pods are gone after the grace."""
        if fate.leaving:
            return
        self.result.evicted += 1
        fate.leaving = True
        self._stop(fate, keeps=self.suspends)
        if grace_ms:
            heapq.heappush(self._agenda, (self.now_ms + grace_ms, _GONE, fate.number, fate.runs))
        else:
            self._again(fate)

    def drop(self, fate: Fate) -> None:
        """The job goes without having run, or run to its end."""
        fate.dropped = True
        self._depart(fate)

    # What happens.

    def run(self, watch: Callable[[int], None] = lambda events: None, until_ms: int | None = None) -> Result:
        """Run to the end: nothing is to come any more, or it is later than `until_ms`. `watch` is told how many
        arrivals and ends are done with, each time."""
        done = 0
        while self._agenda and self._open and (until_ms is None or self._agenda[0][0] <= until_ms):
            self.now_ms = self._agenda[0][0]
            while self._agenda and self._agenda[0][0] == self.now_ms:
                _, kind, number, run = heapq.heappop(self._agenda)
                done += kind in (_ARRIVAL, _END)
                _HAPPENS[kind](self, number, run)
            acted = self.decide()
            self._note()
            watch(done)
            wake_ms = self.wake_ms()
            # When nothing else is to come, waking is of use only as long as it leads to something.
            if wake_ms is None or wake_ms <= self.now_ms or not (acted or self._agenda):
                continue
            if not self._agenda or wake_ms < self._agenda[0][0]:
                heapq.heappush(self._agenda, (wake_ms, _WAKE, 0, 0))
        return self.result

    def _arrival(self, number: int, run: int) -> None:
        fate = self.result.fates[number]
        self._arrived_milli += fate.milli
        self._await(fate)

    def _end(self, number: int, run: int) -> None:
        fate = self.result.fates[number]
        if fate.running and fate.runs == run:
            fate.ran_ms += self.now_ms - fate.since_ms
            fate.saved_ms, fate.ended_ms = fate.job.duration_ms or 0, self.now_ms
            fate.running = False
            self._depart(fate)

    def _gone(self, number: int, run: int) -> None:
        fate = self.result.fates[number]
        if fate.leaving and fate.runs == run:
            self._again(fate)

    def _down(self, number: int, run: int) -> None:
        node = self.workload.outages[number].node
        for fate in self.result.fates:
            if node in fate.nodes:
                self.result.failed += fate.running
                self._stop(fate, keeps=False)
                self._again(fate)
        self.up_milli -= self.gpus[node] * WHOLE_GPU_MILLI
        self.node_down(node)

    def _up(self, number: int, run: int) -> None:
        node = self.workload.outages[number].node
        self.up_milli += self.gpus[node] * WHOLE_GPU_MILLI
        self.node_up(node)

    def _await(self, fate: Fate) -> None:
        self._wanted_milli[fate.queue] += fate.milli
        self.admit(fate)

    def _stop(self, fate: Fate, *, keeps: bool) -> None:
        """The job works no more; whether it keeps what it did since its last checkpoint."""
        if not fate.running:
            return
        elapsed, fresh = self.now_ms - fate.since_ms, fate.worked_ms(self.now_ms) - fate.saved_ms
        interval = fate.job.pods[0].work.checkpoint_interval_ms
        saved = elapsed // interval * interval - fate.startup_ms if interval else 0
        kept = fresh if keeps else max(0, min(fresh, saved))
        fate.saved_ms += kept
        fate.lost_ms += fresh - kept
        fate.ran_ms += elapsed
        fate.since_ms, fate.running = self.now_ms, False

    def _again(self, fate: Fate) -> None:
        """The pods of the job are gone, and new ones wait."""
        self._release(fate)
        fate.waiting, fate.leaving = len(fate.job.pods), False
        self._await(fate)

    def _depart(self, fate: Fate) -> None:
        self._release(fate)
        self._open -= 1

    def _release(self, fate: Fate) -> None:
        self._wanted_milli[fate.queue] -= fate.milli
        self._held_milli[fate.queue] -= fate.held_milli
        self.discharge(fate)
        fate.nodes.clear()
        fate.held_milli = 0

    def _note(self) -> None:
        held, wanted = tuple(self._held_milli), tuple(self._wanted_milli)
        self.result.moments.append(Moment(self.now_ms, self._arrived_milli, held, wanted, self.up_milli))


_HAPPENS = (
    VirtualClock._end,
    VirtualClock._gone,
    VirtualClock._down,
    VirtualClock._up,
    VirtualClock._arrival,
    lambda clock, number, run: None,
)
"""By kind of event."""
