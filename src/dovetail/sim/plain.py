# SPDX-License-Identifier: Apache-2.0
"""The cluster model of the published queueing simulators: nodes are numbers of GPUs, and one order ranks the jobs.

Rules
- Placement is consolidated, as in the published simulators: each pod of a job on one node, the node where the fewest
  GPUs must be preempted, then the fullest. CPU and memory do not count.
- At each event the jobs are visited in the order of the policy. Without preemption, running jobs keep their GPUs. With
  preemption, a job takes GPUs from jobs later in the order, the last one first.
- The first job that does not fit is the head. `BackfillRule` is the rule for the jobs behind it. `strict`: none starts.
  `skip`: every job that fits starts. `easy`: a job starts if it does not delay the head (EASY backfill, Lifka 1995).
  The start of the head follows from the expected ends of the running jobs; a backfilled job ends before it, or leaves
  the head enough GPUs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from enum import StrEnum
from heapq import merge
from math import log
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dovetail.core.model import WHOLE_GPU_MILLI
from dovetail.core.queues.types import DEFAULT_HALF_LIFE_MS
from dovetail.sim.clock import Fate, VirtualClock
from dovetail.sim.workload import Workload, gpu_milli

if TYPE_CHECKING:
    from dovetail.sim.network import Network

Key = Any
"""A sort key: the smallest comes first."""
_Place = tuple[Key, int]
"""The place of a job in the order: its key and its number."""
_NEVER_MS = 2**62


class BackfillRule(StrEnum):
    STRICT = "strict"
    EASY = "easy"
    SKIP = "skip"


class PlainOrder(Struct, frozen=True):
    """An order of jobs.

    `job` is the sort key of a job in its queue; it does not change while the job waits. `queue` is the sort key of a
    queue (None: all jobs are in one queue). `preempts`: earlier jobs take GPUs from later ones; with `suspends` the
    victims lose no progress. `changes_ms` is the time at which the key of a running job changes. `backfill` is the
    default rule for the jobs behind the head."""

    job: Callable[[Plain, Fate], Key]
    queue: Callable[[Plain, int], Key] | None = None
    preempts: bool = False
    suspends: bool = True
    changes_ms: Callable[[Plain, Fate], int | None] | None = None
    backfill: BackfillRule = BackfillRule.STRICT


class Plain(VirtualClock):
    """The scheduler. `walked_milli` is the milli-GPU of each queue in the current walk, `usage` its past usage."""

    def __init__(
        self,
        workload: Workload,
        order: PlainOrder,
        backfill: BackfillRule | None = None,
        half_life_ms: int = DEFAULT_HALF_LIFE_MS,
        seed: int = 0,
        network: Network | None = None,
    ) -> None:
        super().__init__(workload, network)
        self.order, self.backfill, self.seed = order, backfill or order.backfill, seed
        if order.preempts and self.backfill is BackfillRule.EASY:
            raise ValueError("easy backfill needs an order without preemption: this order preempts")
        self.suspends = order.suspends
        self.weights = self.result.weights
        self.usage = PlainUsage(self.weights, half_life_ms, self.up_milli)
        self.walked_milli = [0] * len(self.weights)
        self._names = list(self.gpus)
        self._slots = {name: i for i, name in enumerate(self._names)}
        self._free = [gpus * WHOLE_GPU_MILLI for gpus in self.gpus.values()]
        self._on: list[dict[int, int]] = [{} for _ in self._names]
        """Milli-GPU by job, for each node."""
        self._running: dict[int, Fate] = {}
        self._pending: list[list[_Place]] = [[] for _ in (self.weights if order.queue else (1,))]
        """The pending jobs in order: one list per queue if the order has queues, else one list."""
        self._places: dict[int, _Place] = {}
        """The places of the pending jobs. A key does not change while its job waits."""

    def admit(self, fate: Fate) -> None:
        place = self._places[fate.number] = self.order.job(self, fate), fate.number
        insort(self._pending_of(fate), place)

    def discharge(self, fate: Fate) -> None:
        for name in fate.nodes:
            slot = self._slots[name]
            self._free[slot] += self._on[slot].pop(fate.number)
        if self._running.pop(fate.number, None) is None:
            self._remove_pending(fate)

    def node_down(self, name: str) -> None:
        self._free[self._slots[name]] -= self.gpus[name] * WHOLE_GPU_MILLI

    def node_up(self, name: str) -> None:
        self._free[self._slots[name]] += self.gpus[name] * WHOLE_GPU_MILLI

    def wake_ms(self) -> int | None:
        changes_ms = self.order.changes_ms
        times = (changes_ms(self, fate) for fate in self._running.values()) if changes_ms and self._places else ()
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def decide(self) -> bool:
        """Visit the jobs once, in order."""
        if self.result.moments:
            self.usage.advance(self.now_ms, self.result.moments[-1].held_milli)
        if not self._places:
            return False
        room, left = list(self._free), sum(self._free)
        self.walked_milli = [0] * len(self.weights)
        runs: list[list[_Place]] = [[] for _ in self._pending]
        if self.order.preempts:
            for fate in self._running.values():
                runs[fate.queue if self.order.queue else 0].append((self.order.job(self, fate), fate.number))
            for slot, held in enumerate(self._on):
                room[slot] += sum(held.values())
            left = sum(room)
        else:
            for fate in self._running.values():
                self.walked_milli[fate.queue] += fate.milli
        walked: set[int] = set()
        keys = {number: (key, number) for run in runs for key, number in run}
        head: _Head | None = None
        started = False
        queues = zip(runs, self._pending, strict=True)
        for fate in self._walk([merge(sorted(run), list(pending)) for run, pending in queues]):
            if not left:
                break
            if fate.running:
                for name in fate.nodes:
                    slot = self._slots[name]
                    room[slot] -= self._on[slot][fate.number]
            else:
                sizes = _sizes(fate)
                slots = _place(sizes, room, self._free) if fate.milli <= left else None
                if slots is None:
                    if self.backfill is BackfillRule.STRICT:
                        break
                    if self.backfill is BackfillRule.EASY and head is None:
                        head = self._reserve(fate, room)
                    continue
                if head is not None and not head.leaves(sizes, slots, self.expected_end_ms(fate)):
                    continue
                self._start(fate, sizes, slots, room, walked, keys)
                started = True
            left -= fate.milli
            walked.add(fate.number)
            self.walked_milli[fate.queue] += fate.milli
        return started

    def _walk(self, queues: list[Iterator[_Place]]) -> Iterator[Fate]:
        """All jobs in order. The order of the queues changes with the jobs already visited."""
        queue_key, fates = self.order.queue, self.result.fates
        if queue_key is None:
            for _, number in queues[0]:
                yield fates[number]
            return
        heads = {queue: place for queue, jobs in enumerate(queues) if (place := next(jobs, None)) is not None}
        while heads:
            queue = min(heads, key=lambda each: (queue_key(self, each), fates[heads[each][1]].job.at_ms, each))
            yield fates[heads[queue][1]]
            place = next(queues[queue], None)
            if place is None:
                del heads[queue]
            else:
                heads[queue] = place

    def _pending_of(self, fate: Fate) -> list[_Place]:
        return self._pending[fate.queue if self.order.queue else 0]

    def _remove_pending(self, fate: Fate) -> None:
        pending = self._pending_of(fate)
        del pending[bisect_left(pending, self._places.pop(fate.number))]

    def expected_end_ms(self, fate: Fate) -> int:
        """The end by the job's run time limit; without one, by its true duration."""
        limit_ms = fate.job.pods[0].work.max_runtime_ms
        if limit_ms:
            return (fate.since_ms if fate.running else self.now_ms) + limit_ms
        if fate.job.duration_ms is None:
            return _NEVER_MS
        return self.now_ms + fate.left_ms(self.now_ms)

    def _start(
        self,
        fate: Fate,
        sizes: list[int],
        slots: list[int],
        room: list[int],
        walked: set[int],
        keys: dict[int, Key],
    ) -> None:
        for slot, milli in zip(slots, sizes, strict=True):
            while self._free[slot] < milli:
                victim = max((number for number in self._on[slot] if number not in walked), key=keys.__getitem__)
                self.evict(self.result.fates[victim], 0)
            self._free[slot] -= milli
            room[slot] -= milli
            self._on[slot][fate.number] = self._on[slot].get(fate.number, 0) + milli
            walked.add(fate.number)
        self._remove_pending(fate)
        self._running[fate.number] = fate
        for pod, slot, milli in zip(fate.job.pods, slots, sizes, strict=True):
            self.hold(fate, pod.uid, milli, self._names[slot])

    def _reserve(self, fate: Fate, room: list[int]) -> _Head:
        """The reservation of the head: the time at which enough running jobs have ended, and the free GPUs then."""
        sizes, later = _sizes(fate), list(room)
        ends = sorted((self.expected_end_ms(fate), fate.number) for fate in self._running.values())
        for at_ms, number in ends:
            for name in self._running[number].nodes:
                slot = self._slots[name]
                later[slot] += self._on[slot][number]
            if _place(sizes, later, later) is not None:
                return _Head(sizes, at_ms, later)
        return _Head(sizes, _NEVER_MS, later)


class _Head(Struct):
    """The reservation of the head. `sizes` are the milli-GPU of its pods, `shadow_ms` is its start, and `later` the
    free milli-GPU of each node at that time."""

    sizes: list[int]
    shadow_ms: int
    later: list[int]

    def leaves(self, sizes: list[int], slots: list[int], end_ms: int) -> bool:
        """Whether the head still starts in time if this job starts now. If so, the job is subtracted from `later`."""
        if end_ms <= self.shadow_ms:
            return True
        later = list(self.later)
        for slot, milli in zip(slots, sizes, strict=True):
            later[slot] -= milli
        if _place(self.sizes, later, later) is None:
            return False
        self.later = later
        return True


def _sizes(fate: Fate) -> list[int]:
    return [gpu_milli(pod.request) for pod in fate.job.pods]


def _place(sizes: list[int], room: list[int], free: list[int]) -> list[int] | None:
    """A node for each pod: the least to preempt (`room` beyond `free`), then the fullest. None if they do not fit."""
    if len(sizes) > 1:
        room, free = list(room), list(free)
    slots = []
    for milli in sizes:
        fitting = [
            (milli > free[slot] and milli - free[slot], left, slot) for slot, left in enumerate(room) if left >= milli
        ]
        if not fitting:
            return None
        slot = min(fitting)[2]
        slots.append(slot)
        if len(sizes) > 1:
            room[slot] -= milli
            free[slot] = max(0, free[slot] - milli)
    return slots


class PlainUsage:
    """The usage and the credit of each queue.

    `used` is its GPU time, halved every `half_life_ms`. `credit` grows with its share of the capacity and shrinks with
    its usage, up to the share integrated over the decay time."""

    def __init__(self, weights: list[int], half_life_ms: int, capacity_milli: int) -> None:
        self._half_life_ms = half_life_ms
        self._span_ms = half_life_ms / log(2)
        self._due_milli = [capacity_milli * weight / sum(weights) for weight in weights]
        self._at_ms = 0
        self.used = [0.0] * len(weights)
        self.credit = [0.0] * len(weights)

    def advance(self, now_ms: int, held_milli: tuple[int, ...]) -> None:
        """Advance to `now_ms`. The queues held `held_milli` since the previous call."""
        lasted_ms, self._at_ms = now_ms - self._at_ms, now_ms
        keeps = 2 ** (-lasted_ms / self._half_life_ms)
        for i, (due, held) in enumerate(zip(self._due_milli, held_milli, strict=True)):
            self.used[i] = self.used[i] * keeps + held * self._span_ms * (1 - keeps)
            self.credit[i] = min(due * self._span_ms, self.credit[i] + (due - held) * lasted_ms)
