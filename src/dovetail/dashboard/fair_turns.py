# SPDX-License-Identifier: Apache-2.0
"""In which order the pages of several users are asked for, so that those of one do not delay those of another.

Rules
- A turn takes TURN_S at most, and one page at least; what it did not reach comes first in the next.
- The next page is one of the user that had the least time, and of that user's pages the one that was asked for longest
  ago. Half of the time is forgotten with each turn.
- A page that several users have is asked for once, for the one of them that comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Any, Generic, Protocol, TypeVar

TURN_S = 0.5


class Ordered(Protocol):
    """What can be sorted."""

    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Ordered)


class FairTurns(Generic[K]):
    """Over pages. `clock_s` is the time that pages take."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.cut = False
        """Whether the last turn ended before all pages were asked for."""
        self._clock_s = clock_s
        self._spent_s: dict[str, float] = {}
        self._looked: dict[K, int] = {}
        self._count = 0

    def turn(self, wanted: Mapping[str, Collection[K]]) -> Iterator[K]:
        """The pages of the next turn, of what these users have open now."""
        self._spent_s = {user: self._spent_s.get(user, 0.0) / 2 for user in wanted}
        self._looked = {page: self._looked.get(page, 0) for pages in wanted.values() for page in pages}
        # The last of each list is the next.
        waiting = {
            user: sorted(pages, key=lambda page: (self._looked[page], page), reverse=True)
            for user, pages in wanted.items()
        }
        users = [(self._spent_s[user], user) for user in wanted if wanted[user]]
        heapify(users)
        taken: set[K] = set()
        began_s = self._clock_s()
        while users and (not taken or self._clock_s() - began_s < TURN_S):
            _, user = users[0]
            page = waiting[user].pop()
            if page not in taken:
                taken.add(page)
                self._count += 1
                self._looked[page] = self._count
                then_s = self._clock_s()
                yield page
                self._spent_s[user] += self._clock_s() - then_s
            if waiting[user]:
                heapreplace(users, (self._spent_s[user], user))
            else:
                heappop(users)
        self.cut = bool(users)
