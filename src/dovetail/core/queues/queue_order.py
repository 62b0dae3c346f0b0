# SPDX-License-Identifier: Apache-2.0
"""Queue order: at each level of the tree, the first of the queues in which workloads wait.

Rules: queues are compared by `Quota.key` with the request of their own first workload; equal queues by age. In a queue
that divides by user, the user with the least usage comes first; the users are kept in a heap, since there may be many.
Control planes of software agents are compared as if the lease that each asks for was charged already, less the time for
which the request has waited: of two that have used the same the one that asks for less comes first (virtual finish time
of fair queueing: Demers, Keshav and Shenker, SIGCOMM'89), and none waits for ever. Scavengers come after all others.
Workloads whose queue does not exist or holds no workloads come first of all: they only get their reason. Answers are
kept until something about the queue changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from heapq import heapify, heappop, heappush

from dovetail.core.bargaining.requests import Requests
from dovetail.core.mark_types import NextMark, OrderMarks
from dovetail.core.model import Pod
from dovetail.core.queues.accounts import QueueUser
from dovetail.core.queues.shares import Shares
from dovetail.core.workloads.index import WorkloadIndex

NOWHERE: QueueUser = ("", "")
"""Of workloads that no queue takes."""
_STALE = 64
"""The number of outdated entries that a heap may have, beside twice the number of waiting users."""
_Next = tuple[QueueUser, Mapping[str, int], int, bool]
"""See `NextMark`."""


class QueueOrder:
    def __init__(self, shares: Shares, workloads: WorkloadIndex, requests: Requests) -> None:
        self._shares = shares
        self._workloads = workloads
        self._requests = requests
        self._best: dict[str, _Next | None] = {}
        self._keys: dict[str, tuple[_Next, tuple[int, int, int, int]]] = {}
        self._dues_version = -1
        """The version of the fair shares by which the keys were computed."""
        self._ratios: dict[QueueUser, int] = {}
        self._turns: dict[str, list[tuple[int, str]]] = {}
        """By queue a heap of its waiting users, as usage and user. Outdated entries stay until they come up."""

    def marks(self) -> OrderMarks:
        """What was compared since queues were last compared again."""
        best = tuple([(queue, _mark(one) if one is not None else None) for queue, one in self._best.items()])
        keys = tuple([(queue, _mark(one), key) for queue, (one, key) in self._keys.items()])
        turns = tuple([(queue, tuple(turns)) for queue, turns in self._turns.items()])
        follows = self._dues_version == self._shares.fair_share.last_version
        return OrderMarks(best, keys, tuple([(*one, ratio) for one, ratio in self._ratios.items()]), turns, follows)

    def restore(self, marks: OrderMarks) -> None:
        """Go on from it."""
        self._best = {queue: _next(one) if one is not None else None for queue, one in marks.best}
        self._keys = {queue: (_next(one), key) for queue, one, key in marks.keys}
        self._ratios = {(queue, user): ratio for queue, user, ratio in marks.ratios}
        self._turns = {queue: list(turns) for queue, turns in marks.turns}
        self._dues_version = self._shares.fair_share.last_version if marks.follows else -1

    @contextmanager
    def read_only(self) -> Iterator[QueueOrder]:
        """A queue order that keeps nothing: a query must not change decisions."""
        with self._shares.fair_share.read_only():
            yield QueueOrder(self._shares, self._workloads, self._requests)

    def queue_user(self, workload: str) -> QueueUser:
        """The queue and user of a workload: those of its first pod."""
        first, tree = self._workloads.first(workload), self._shares.tree
        if first is None:
            return NOWHERE
        queue, user = self._shares.pod_queues.user_of(first)
        usable = queue in tree.written and tree.leaf(queue) and tree.problem(queue) is None
        return (queue, user) if usable else NOWHERE

    def moved(self, queue_user: QueueUser) -> None:
        """The first workload of the queue and user has changed."""
        queue, user = queue_user
        if (turns := self._turns.get(queue)) is not None:
            heappush(turns, (self._ratio(queue_user), user))
        if self._best:
            for name in (*(self._shares.path(queue) or (queue,)), ""):
                self._best.pop(name, None)

    def counted(self, pods: Iterable[Pod]) -> None:
        """The usage of the queues and users of these pods has changed."""
        if self._best or self._keys or self._ratios or self._turns:
            for queue_user in dict.fromkeys([self._shares.pod_queues.user_of(pod) for pod in pods]):
                self.changed(queue_user)

    def changed(self, queue_user: QueueUser) -> None:
        """The usage of the queue and user has changed."""
        self._ratios.pop(queue_user, None)
        self.moved(queue_user)
        if self._keys:
            queue = queue_user[0]
            for name in self._shares.path(queue) or (queue,):
                self._keys.pop(name, None)

    def renew(self) -> None:
        """The time, or a fair share, has changed."""
        self._best.clear()
        self._keys.clear()
        self._ratios.clear()
        self._turns.clear()

    def first(self, waiting: Mapping[str, Mapping[QueueUser, str]]) -> QueueUser | None:
        """The queue and user that come next; None where nothing waits. `waiting` has by queue the users with waiting
        workloads, each with its first workload."""
        if len(waiting) == 1:
            own = next(iter(waiting.values()))
            if len(own) == 1:
                return next(iter(own))
        if NOWHERE[0] in waiting:
            return NOWHERE
        return self.first_in("", waiting)

    def first_in(self, queue: str, waiting: Mapping[str, Mapping[QueueUser, str]]) -> QueueUser | None:
        """The queue and user that come next in a queue and below it."""
        # Fair shares matter only where queues were compared. A division takes longer than the placement of a pod.
        if self._keys and (version := self._shares.fair_share.version) != self._dues_version:
            self._dues_version = version
            self._best.clear()
            self._keys.clear()
        best = self._first(queue, waiting)
        return best[0] if best is not None else None

    def below(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Numbers by queue, each with those of the queues below it."""
        found: dict[str, int] = {}
        for queue, count in counts.items():
            for name in self._shares.path(queue):
                found[name] = found.get(name, 0) + count
        return found

    def _first(self, queue: str, waiting: Mapping[str, Mapping[QueueUser, str]]) -> _Next | None:
        if queue in self._best:
            return self._best[queue]
        own = waiting.get(queue)
        best: _Next | None
        if own:
            queue_user = self._first_user(queue, own)
            best = queue_user, self._shares.wanted_next(own[queue_user]), *self.terms(own[queue_user])
        else:
            below = [
                (child, found) for child in self._shares.tree.children(queue) if (found := self._first(child, waiting))
            ]
            best = below[0][1] if below else None
            if len(below) > 1:
                planes = queue in self._shares.tree.written and self._shares.tree.written[queue].planes
                _, best = min(below, key=lambda one: (one[1][3], self._key(one[0], one[1], planes)))
        self._best[queue] = best
        return best

    def terms(self, workload: str) -> tuple[int, bool]:
        """How long the lease is, in ms, that the workload asks for, less the time for which it has waited; 0 for a job.
        And whether it is that of a scavenger."""
        one = self._requests.by_workload.get(workload) if self._requests.by_workload else None
        if one is None:
            return 0, False
        waited_ms = max(0, self._shares.now_ms - one.request.created_ms)
        return max(0, one.alternatives[one.number].duration_ms - waited_ms), self._requests.scavenges(workload)

    def _key(self, queue: str, best: _Next, plane: bool) -> tuple[int, int, int, int]:
        known = self._keys.get(queue)
        if known is None or known[0] != best:
            known = self._keys[queue] = best, self._shares.quota.key(queue, best[1], best[2] if plane else 0)
        return known[1]

    def _first_user(self, queue: str, own: Collection[QueueUser]) -> QueueUser:
        if len(own) == 1:
            return next(iter(own))
        turns = self._turns.get(queue)
        if turns is None or len(turns) > _STALE + 2 * len(own):
            turns = self._turns[queue] = [(self._ratio(queue_user), queue_user[1]) for queue_user in own]
            heapify(turns)
        while True:
            ratio, user = turns[0]
            queue_user = queue, user
            if queue_user in own and ratio == self._ratio(queue_user):
                return queue_user
            heappop(turns)

    def _ratio(self, queue_user: QueueUser) -> int:
        ratio = self._ratios.get(queue_user)
        if ratio is None:
            ratio = self._ratios[queue_user] = self._shares.accounts.user_ratio(*queue_user)
        return ratio


def _mark(one: _Next) -> NextMark:
    return NextMark(*one[0], tuple(one[1].items()), *one[2:])


def _next(mark: NextMark) -> _Next:
    return (mark.queue, mark.user), dict(mark.wanted), mark.advance_ms, mark.scavenges
