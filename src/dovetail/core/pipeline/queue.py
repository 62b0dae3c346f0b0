# SPDX-License-Identifier: Apache-2.0
"""The scheduling queue: the waiting workloads of each queue and user, in the order of `Rank`. A workload that failed
is parked until room is freed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from dovetail.core.mark_types import QueuePlace
from dovetail.core.queues.accounts import QueueUser
from dovetail.core.queues.queue_order import QueueOrder
from dovetail.core.reasons import Reason, Refusal
from dovetail.core.workloads.index import Rank

Place = tuple[int, ...]
"""Priority, level and time of creation as they are compared, and the number of the arrival: it stands for the
workload."""
_ROOM_LACKS = {Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT, Reason.SEARCH_LIMIT, Reason.RESERVED}
_COUNTED = {Reason.GANG_INCOMPLETE, Reason.GANG_TOO_LARGE, Reason.EVICTING, Reason.QUEUE_LIMIT, Reason.BEYOND_GUARANTEE}
"""Reasons whose details are numbers, which change all the time; the details of all others name what is wrong. That
there is no room has several, of which now one is true and now another."""


class _Report(Struct):
    """The refusal that was reported of a workload, when, and for which pods."""

    refusal: Refusal
    at_ms: int
    uids: set[str]


class SchedulingQueue:
    """Workloads to try, ordered within their queue and user. A workload that failed is parked and comes back when
    `wake` is called as room was freed, or when something about itself changes (`push`)."""

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._heaps: dict[QueueUser, list[Place]] = {}
        self._heads: dict[str, dict[QueueUser, str]] = {}
        """By queue, the users with workloads to try, each with its first workload."""
        self._ranks: dict[str, Place] = {}
        self._parked: dict[str, Place] = {}
        self._aside: dict[str, Place] = {}
        """Parked workloads that no change of the cluster wakes."""
        self._queue_users: dict[str, QueueUser] = {}
        self._reported: dict[str, _Report] = {}
        self._arrivals: dict[str, int] = {}
        self._arrived: dict[int, str] = {}
        """The workloads by the numbers of their arrivals."""
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def push(self, workload: str, of: Rank, queue_user: QueueUser) -> None:
        """Try the workload in its turn."""
        rank = self._rank(workload, of)
        self._parked.pop(workload, None)
        self._aside.pop(workload, None)
        if self._ranks.get(workload) != rank or self._queue_users[workload] != queue_user:
            self._leave(workload)
            self._enter(workload, rank, queue_user)

    def _enter(self, workload: str, rank: Place, queue_user: QueueUser) -> None:
        self._ranks[workload], self._queue_users[workload] = rank, queue_user
        heap = self._heaps.setdefault(queue_user, [])
        if len(heap) > 64 + 2 * len(self._ranks):
            # A process that does not lead pushes and forgets, and never pops.
            heap[:] = sorted([one for one in heap if self._workload_at(one, queue_user)])
        heapq.heappush(heap, rank)
        if heap[0] is rank:
            self._put_head(queue_user, workload)

    def _workload_at(self, rank: Place, queue_user: QueueUser) -> str:
        """The workload that has this place among those of the queue and user; "" where none has it any more."""
        workload = self._arrived.get(rank[-1], "")
        return (
            workload
            if workload and self._ranks.get(workload) is rank and self._queue_users[workload] == queue_user
            else ""
        )

    def _leave(self, workload: str) -> None:
        """Take it out of the order; the heap keeps a rank that counts no more."""
        if self._ranks.pop(workload, None) is not None:
            queue_user = self._queue_users[workload]
            if self._heads[queue_user[0]][queue_user] == workload:
                self._next(queue_user)

    def _next(self, queue_user: QueueUser) -> None:
        """Find the workload that is first now among those of the queue and user."""
        heap = self._heaps[queue_user]
        while heap:
            workload = self._workload_at(heap[0], queue_user)
            if workload:
                self._put_head(queue_user, workload)
                return
            heapq.heappop(heap)
        del self._heaps[queue_user]
        own = self._heads[queue_user[0]]
        del own[queue_user]
        if not own:
            del self._heads[queue_user[0]]
        self._order.moved(queue_user)

    def _put_head(self, queue_user: QueueUser, workload: str) -> None:
        self._heads.setdefault(queue_user[0], {})[queue_user] = workload
        self._order.moved(queue_user)

    def pop(self, passed_over: Callable[[str], bool] = lambda _: False) -> str | None:
        """The next workload to try. Those before it in its queue that are `passed_over` are parked, and not tried."""
        while (queue_user := self._order.first(self._heads)) is not None:
            heap, ranks = self._heaps[queue_user], self._ranks
            while heap:
                rank = heapq.heappop(heap)
                workload = self._workload_at(rank, queue_user)
                if not workload:
                    continue
                del ranks[workload]
                if not passed_over(workload):
                    self._next(queue_user)
                    return workload
                self._parked[workload] = rank
            self._next(queue_user)
        return None

    def park(self, workload: str, of: Rank, queue_user: QueueUser, *, aside: bool = False) -> None:
        """Try the workload again when room was freed; with `aside` only when it is pushed again."""
        self._queue_users[workload] = queue_user
        parked, other = (self._aside, self._parked) if aside else (self._parked, self._aside)
        parked[workload] = self._rank(workload, of)
        other.pop(workload, None)

    def _rank(self, workload: str, of: Rank) -> Place:
        """Creation times are whole seconds, so the order of arrival decides between equals."""
        arrival = self._arrivals.get(workload)
        if arrival is None:
            self._count += 1
            arrival = self._arrivals[workload] = self._count
            self._arrived[arrival] = workload
        priority, level, created_ms = of
        return -priority, level, created_ms, arrival

    def parked(self, workload: str) -> bool:
        """Whether the workload waits to be woken."""
        return workload in self._parked

    def forget(self, workload: str) -> None:
        """The workload is placed or gone."""
        self._leave(workload)
        self._parked.pop(workload, None)
        self._aside.pop(workload, None)
        self._queue_users.pop(workload, None)
        self._reported.pop(workload, None)
        arrival = self._arrivals.pop(workload, None)
        if arrival is not None:
            del self._arrived[arrival]

    def wake(self, workloads: Iterable[str] | None = None) -> None:
        """Try these parked workloads again; all of them (None) where room was freed."""
        back: dict[QueueUser, list[Place]] = {}
        for workload in list(self._parked) if workloads is None else workloads:
            rank = self._ranks[workload] = self._parked.pop(workload)
            back.setdefault(self._queue_users[workload], []).append(rank)
        for queue_user, ranks in back.items():
            heap = self._heaps.setdefault(queue_user, [])
            heap += ranks
            heapq.heapify(heap)
            self._next(queue_user)

    def places(self) -> tuple[QueuePlace, ...]:
        """The places of all waiting workloads, in the order of their arrivals."""
        found = {}
        for state, ranks in (("", self._ranks), ("parked", self._parked), ("aside", self._aside)):
            for workload, rank in ranks.items():
                found[rank[-1]] = QueuePlace(workload, rank[:-1], *self._queue_users[workload], state)
        return tuple([found[arrival] for arrival in sorted(found)])

    def restore(self, places: Iterable[QueuePlace]) -> None:
        """Have the waiting workloads in these places. What was reported of them stays."""
        for workload in self.workloads():
            self._leave(workload)
        for known in (self._parked, self._aside, self._arrivals, self._arrived, self._queue_users):
            known.clear()
        for one in places:
            self._count += 1
            rank = *one.rank, self._count
            self._arrivals[one.workload], self._arrived[self._count] = self._count, one.workload
            queue_user = self._queue_users[one.workload] = one.queue, one.user
            if one.state:
                (self._parked if one.state == "parked" else self._aside)[one.workload] = rank
            else:
                self._enter(one.workload, rank, queue_user)

    def report(self, workload: str, refusal: Refusal, at_ms: int, uids: tuple[str, ...]) -> None:
        """The refusal is reported of these pods of the workload, in place of the last one."""
        self._reported[workload] = _Report(refusal, at_ms, set(uids))

    def report_more(self, workload: str, uids: tuple[str, ...]) -> tuple[str, ...]:
        """The last refusal is reported of these pods too. Returns those of which it was not."""
        last = self._reported[workload]
        new = tuple([uid for uid in uids if uid not in last.uids])
        last.uids.update(new)
        return new

    def is_reported(self, workload: str, refusal: Refusal, now_ms: int, again_ms: int) -> bool:
        """Whether this refusal is not new for pods of the workload that have a reason: it is the last one, or differs
        in numbers at most from one that was reported less than `again_ms` ago."""
        last = self._reported.get(workload)
        if last is None:
            return False
        if last.refusal is refusal:
            return True
        lately = now_ms - last.at_ms < again_ms
        return (lately and _numbers_only(last.refusal, refusal)) or last.refusal == refusal

    def reports(self) -> Iterator[tuple[str, Refusal, int, tuple[str, ...]]]:
        """All reported refusals: workload, refusal, when, and of which pods; `report` takes them."""
        return (
            (workload, report.refusal, report.at_ms, tuple(sorted(report.uids)))
            for workload, report in self._reported.items()
        )

    def refusal(self, workload: str) -> Refusal | None:
        """The refusal that was last reported of a workload."""
        report = self._reported.get(workload)
        return report.refusal if report is not None else None

    def reported_lately(self, workload: str, now_ms: int, again_ms: int) -> Refusal | None:
        """The refusal that was reported less than `again_ms` ago."""
        report = self._reported.get(workload)
        return report.refusal if report is not None and now_ms - report.at_ms < again_ms else None

    def workloads(self) -> list[str]:
        """All waiting workloads, the parked ones included."""
        return [*self._ranks, *self._parked, *self._aside]

    def ordered(self) -> list[str]:
        """All waiting workloads, the parked ones included, in the order in which they are tried if none of them
        fits."""
        waiting: dict[QueueUser, list[Place]] = {}
        for workload, rank in self._places():
            waiting.setdefault(self._queue_users[workload], []).append(rank)
        for ranks in waiting.values():
            ranks.sort(reverse=True)
        heads: dict[str, dict[QueueUser, str]] = {}
        for queue_user, ranks in waiting.items():
            heads.setdefault(queue_user[0], {})[queue_user] = self._arrived[ranks[-1][-1]]
        order = []
        with self._order.read_only() as turns:
            while (first := turns.first(heads)) is not None:
                ranks = waiting[first]
                order.append(self._arrived[ranks.pop()[-1]])
                if ranks:
                    heads[first[0]][first] = self._arrived[ranks[-1][-1]]
                else:
                    del heads[first[0]][first]
                    if not heads[first[0]]:
                        del heads[first[0]]
                turns.moved(first)
        return order

    def heads(self) -> tuple[dict[str, dict[QueueUser, str]], dict[str, int]]:
        """By queue the first workload of each user, the parked ones included; and how many wait in each queue."""
        first: dict[QueueUser, Place] = {}
        counts: dict[str, int] = {}
        for workload, rank in self._places():
            queue_user = self._queue_users[workload]
            counts[queue_user[0]] = counts.get(queue_user[0], 0) + 1
            if queue_user not in first or rank < first[queue_user]:
                first[queue_user] = rank
        heads: dict[str, dict[QueueUser, str]] = {}
        for queue_user, rank in first.items():
            heads.setdefault(queue_user[0], {})[queue_user] = self._arrived[rank[-1]]
        return heads, counts

    def before(self, workload: str) -> int:
        """How many are tried before this one if none of them fits; 0 where it does not wait."""
        order = self.ordered()
        return order.index(workload) if workload in order else 0

    def queue_user(self, workload: str) -> QueueUser | None:
        """The queue and user of a waiting workload."""
        return self._queue_users.get(workload)

    def lengths(self) -> tuple[int, int]:
        """How many workloads are to be tried, and how many are parked."""
        return len(self._ranks), len(self._parked) + len(self._aside)

    def _places(self) -> Iterator[tuple[str, Place]]:
        yield from self._ranks.items()
        yield from self._parked.items()
        yield from self._aside.items()


def _numbers_only(last: Refusal, refusal: Refusal) -> bool:
    """Whether one refusal differs from another in numbers at most."""
    if last.when is not refusal.when or (last.expected is None) != (refusal.expected is None):
        return False
    if last.reason is refusal.reason and last.reason in _COUNTED:
        return True
    return last.reason in _ROOM_LACKS and refusal.reason in _ROOM_LACKS
