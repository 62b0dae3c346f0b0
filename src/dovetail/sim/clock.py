# SPDX-License-Identifier: Apache-2.0
"""The virtual clock: the order of events, and the progress of each job. A subclass makes the scheduling decisions.

Rules
- The clock jumps from one event to the next. Events at the same time are handled in this order: ends of jobs, pods
  removed after their grace period, node failures, node recoveries, arrivals in the order of the trace. Then the
  scheduler decides.
- A job has `duration_ms` of work. It makes progress while all of its pods run, at the pace of its place in the network
  (`network`), if there is one. A restart first takes `startup_ms`.
- A job that is stopped keeps its progress up to its last checkpoint, one per `checkpoint_interval_ms` of a run (0: it
  restarts from scratch). A job that is suspended keeps all of its progress.
- A job is stopped as a whole and is pending again from then on. An evicted job makes no more progress and holds its
  GPUs for its grace period. A node failure stops all jobs on the node.
- A job waits while not all of its pods run. Its completion time is its waiting time plus its running time.
The same workload and scheduler give the same result on every machine.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dovetail.core.bargaining.types import GpuLease, LeaseRequest, Offer
from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.core.reasons import Refusal
from dovetail.sim.workload import PERMILLE, SimJob, Workload, gpu_milli

if TYPE_CHECKING:
    from dovetail.sim.network import Network

_END, _GONE, _DOWN, _UP, _ARRIVAL, _WAKE = range(6)


class Fate(Struct):
    """The state of one job.

    `number` is its index in the workload, `queue` the index of its queue, `milli` its GPU demand in milli-GPU and
    `waiting` the number of its pods that are not placed. `started_ms` is its first start, `runs` the number of its
    starts, and `since_ms` the time at which it last began to run or to wait. `saved_ms` is progress that is safe.
    `waited_ms`, `ran_ms` and `lost_ms` (lost progress) are totals up to `since_ms`. `leaving` is true during the grace
    period of an eviction. `refusal` is the reason for which it was dropped, or the latest reason for which it waits.
    `nodes` has the milli-GPU that it holds of each node, and `pace` how long its work takes there, in thousandths of
    what it takes in the best place."""

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
    nodes: dict[str, int] = field(default_factory=dict)
    pace: int = PERMILLE
    held_milli: int = 0

    @property
    def startup_ms(self) -> int:
        """The time that this run needs before it makes progress."""
        return self.job.pods[0].work.startup_ms if self.runs > 1 else 0

    def worked_ms(self, now_ms: int) -> int:
        """Progress at `now_ms`, saved or not."""
        fresh = max(0, now_ms - self.since_ms - self.startup_ms) if self.running else 0
        return self.saved_ms + self.work_ms(fresh)

    def remaining_ms(self, now_ms: int) -> int:
        """Work that is left at `now_ms`. Only for jobs that have a duration."""
        return (self.job.duration_ms or 0) - self.worked_ms(now_ms)

    def left_ms(self, now_ms: int) -> int:
        """The time that this work takes where the job is. Only for jobs that have a duration."""
        return -(-self.remaining_ms(now_ms) * self.pace // PERMILLE)

    def work_ms(self, span_ms: int) -> int:
        """The work done in so much time."""
        return span_ms * PERMILLE // self.pace

    def served_ms(self, now_ms: int) -> int:
        """Total time that the job has run up to `now_ms`, lost progress included."""
        return self.ran_ms + (now_ms - self.since_ms if self.running else 0)


class Moment(Struct, frozen=True):
    """The cluster after the events of one time, in milli-GPU.

    `arrived_milli` is the demand that has arrived so far. For each queue, `held_milli` is its allocation, and
    `wanted_milli` its allocation plus its pending demand. `up_milli` is the GPU capacity of the nodes that are not
    down."""

    at_ms: int
    arrived_milli: int
    held_milli: tuple[int, ...]
    wanted_milli: tuple[int, ...]
    up_milli: int

    @property
    def allocated_milli(self) -> int:
        return sum(self.held_milli)


class RequestFate(Struct, frozen=True):
    """What becomes of a request for a lease: `offers` to its agent, its `lease`, or the `refusal`."""

    request: LeaseRequest
    offers: tuple[Offer, ...] = ()
    lease: GpuLease | None = None
    refusal: Refusal | None = None


class Result(Struct):
    """The result of a simulation.

    `placed` maps the uid of each pod that was ever placed to its last node. `evicted` counts evictions of jobs, and
    `failed` stops of jobs by node failures. `queues` holds the names of the queues, `weights` their weights.
    `requests` are those for leases, where the cluster has some."""

    capacity_milli: int
    fates: list[Fate]
    queues: list[str]
    weights: list[int]
    moments: list[Moment] = field(default_factory=list)
    placed: dict[str, str] = field(default_factory=dict)
    evicted: int = 0
    failed: int = 0
    requests: list[RequestFate] = field(default_factory=list)


class VirtualClock(ABC):
    """The event loop. `suspends`: an evicted job keeps all of its progress."""

    suspends = False

    def __init__(self, workload: Workload, network: Network | None = None) -> None:
        self.workload = workload
        self.network = network
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

    # Implemented by a subclass.

    @abstractmethod
    def decide(self) -> bool:
        """Start, evict or drop jobs. Return whether anything was done."""

    @abstractmethod
    def admit(self, fate: Fate) -> None:
        """The job is pending from now on, for the first time or again."""

    @abstractmethod
    def discharge(self, fate: Fate) -> None:
        """The pods of the job are gone. The job has ended, is dropped, or is admitted again right after this call."""

    @abstractmethod
    def node_down(self, name: str) -> None:
        """The node has failed. Its jobs are already discharged."""

    @abstractmethod
    def node_up(self, name: str) -> None:
        """The node is back."""

    def wake_ms(self) -> int | None:
        """When to call `decide` again even without an event. A time in the past is ignored."""
        return None

    # Called by a subclass.

    def hold(self, fate: Fate, uid: str, milli: int, node: str) -> None:
        """Place the pod with this uid of the trace on the node. The job runs once its last pod is placed."""
        self.result.placed[uid] = node
        fate.nodes[node] = fate.nodes.get(node, 0) + milli
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
        if self.network is not None:
            fate.pace = self.network.pace(fate.nodes, len(fate.job.pods), fate.job.communication_percent)
        if fate.job.duration_ms is not None:
            end_ms = self.now_ms + fate.startup_ms + fate.left_ms(self.now_ms)
            heapq.heappush(self._agenda, (end_ms, _END, fate.number, fate.runs))

    def evict(self, fate: Fate, grace_ms: int) -> None:
        """Evict the job: its progress stops now, and its pods are gone after the grace period."""
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
        """Remove the job before it has run to its end."""
        fate.dropped = True
        self._depart(fate)

    # The event loop and its events.

    def run(self, watch: Callable[[int], None] = lambda events: None, until_ms: int | None = None) -> Result:
        """Run until no event is left, or the next one is later than `until_ms`.

        `watch` is called after each event time with the number of arrivals and ends handled so far."""
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
            # Without further events, wake again only while the decisions still change something.
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
        """Stop the job. With `keeps` it keeps its progress since the last checkpoint."""
        if not fate.running:
            return
        elapsed, fresh = self.now_ms - fate.since_ms, fate.worked_ms(self.now_ms) - fate.saved_ms
        interval = fate.job.pods[0].work.checkpoint_interval_ms
        saved = fate.work_ms(max(0, elapsed // interval * interval - fate.startup_ms)) if interval else 0
        kept = fresh if keeps else max(0, min(fresh, saved))
        fate.saved_ms += kept
        fate.lost_ms += fresh - kept
        fate.ran_ms += elapsed
        fate.since_ms, fate.running = self.now_ms, False

    def _again(self, fate: Fate) -> None:
        """The pods of the job are gone; new ones are pending."""
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
"""The handler of each kind of event."""
