# SPDX-License-Identifier: Apache-2.0
"""The line of those who wait: priority first, then age; who failed waits aside until something is freed."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from dovetail.core.reasons import Reason, Refusal

Rank = tuple[int, int, int, str]
_COUNTED = {
    Reason.NO_NODE_FITS, Reason.GANG_INCOMPLETE, Reason.GANG_DOES_NOT_FIT, Reason.GANG_TOO_LARGE, Reason.SEARCH_LIMIT,
}  # fmt: skip
"""Reasons whose details are numbers, which change all the time; the details of all others name what is wrong."""


@dataclass(slots=True)
class _Told:
    """What was said about a root, when, and of which pods."""

    refusal: Refusal
    at_ms: int
    uids: set[str]


class Pending:
    """Roots to try, in order. A root that failed is parked and comes back when `wake` says that room was freed, or
    when something about itself changes (`push`)."""

    def __init__(self) -> None:
        self._heap: list[Rank] = []
        self._ranks: dict[str, Rank] = {}
        self._parked: dict[str, Rank] = {}
        self._told: dict[str, _Told] = {}
        self._arrivals: dict[str, int] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def push(self, root: str, priority: int, created_ms: int) -> None:
        """Try the root in its turn."""
        rank = self._rank(root, priority, created_ms)
        self._parked.pop(root, None)
        if self._ranks.get(root) != rank:
            self._ranks[root] = rank
            heapq.heappush(self._heap, rank)
            if len(self._heap) > 64 + 2 * len(self._ranks):
                # A process that does not lead pushes and forgets, and never pops.
                self._heap = sorted(self._ranks.values())

    def pop(self) -> str | None:
        """The next root to try."""
        while self._heap:
            rank = heapq.heappop(self._heap)
            if self._ranks.get(rank[3]) == rank:
                del self._ranks[rank[3]]
                return rank[3]
        return None

    def park(self, root: str, priority: int, created_ms: int) -> None:
        self._parked[root] = self._rank(root, priority, created_ms)

    def _rank(self, root: str, priority: int, created_ms: int) -> Rank:
        """Priority, then age; creation times are whole seconds, so then who came first."""
        arrival = self._arrivals.get(root)
        if arrival is None:
            self._count += 1
            arrival = self._arrivals[root] = self._count
        return -priority, created_ms, arrival, root

    def forget(self, root: str) -> None:
        """The root is placed or gone."""
        self._ranks.pop(root, None)
        self._parked.pop(root, None)
        self._told.pop(root, None)
        self._arrivals.pop(root, None)

    def wake(self) -> None:
        """Room was freed: everybody parked is tried again."""
        for root, rank in self._parked.items():
            self._ranks[root] = rank
            heapq.heappush(self._heap, rank)
        self._parked.clear()

    def tell(self, root: str, refusal: Refusal, uids: tuple[str, ...], now_ms: int, again_ms: int) -> tuple[str, ...]:
        """Which of the pods this refusal is news for: all of them for another reason than last told, or for other
        numbers after a while; else those that were not told yet."""
        last = self._told.get(root)
        if last is not None:
            same_reason = (last.refusal.reason, last.refusal.when) == (refusal.reason, refusal.when)
            numbers_only = same_reason and refusal.reason in _COUNTED
            if last.refusal == refusal or (numbers_only and now_ms - last.at_ms < again_ms):
                untold = tuple(uid for uid in uids if uid not in last.uids)
                last.uids.update(untold)
                return untold
        self._told[root] = _Told(refusal, now_ms, set(uids))
        return uids

    def tellings(self) -> Iterator[tuple[str, Refusal, int, tuple[str, ...]]]:
        """What was told: root, refusal, when, and of which pods; `retell` takes it."""
        return ((root, told.refusal, told.at_ms, tuple(sorted(told.uids))) for root, told in self._told.items())

    def retell(self, root: str, refusal: Refusal, at_ms: int, uids: tuple[str, ...]) -> None:
        """Remember what was told before."""
        self._told[root] = _Told(refusal, at_ms, set(uids))

    def refusal(self, root: str) -> Refusal | None:
        """What was last told about a root."""
        told = self._told.get(root)
        return told.refusal if told is not None else None

    def told_lately(self, root: str, now_ms: int, again_ms: int) -> Refusal | None:
        """What the root was told, where that is not `again_ms` ago."""
        told = self._told.get(root)
        return told.refusal if told is not None and now_ms - told.at_ms < again_ms else None

    def before(self, root: str) -> int:
        """How many roots are tried before this one; 0 where it is not in the line."""
        rank = self._ranks.get(root)
        return 0 if rank is None else sum(1 for other in self._ranks.values() if other < rank)

    def lengths(self) -> tuple[int, int]:
        """How many roots are in the line, and how many wait aside."""
        return len(self._ranks), len(self._parked)
