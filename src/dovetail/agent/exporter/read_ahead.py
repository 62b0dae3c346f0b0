# SPDX-License-Identifier: Apache-2.0
"""Readings that are begun before the scrape that is to find them.

Rules
- A scrape after two equal gaps (to `_JITTER_S`) of `_SHORTEST_S` to `_LONGEST_S` is one of a scraper with this period:
  its next scrape is expected. Only times count, not addresses, so that several scrapers are followed, also behind one
  address. Several periods may fit, as twice a period does; each counts.
- `read` is called `LEAD_S` before it, perhaps several times for one scrape. A scrape that is expected and does not come
  has cost one reading.
- The last `_KEPT` scrapes are known, which are two periods of seven scrapers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

LEAD_S = 1.0
"""Twice the jitter: a scrape that is early still finds the reading done."""
_JITTER_S = 0.5
_SHORTEST_S, _LONGEST_S = 1.5, 120.0
_KEPT = 16


def _later(delay_s: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, call)


class ReadAhead:
    """Calls `read` before each expected scrape. `later` calls a function after so many seconds."""

    def __init__(self, read: Callable[[], None], later: Callable[[float, Callable[[], None]], None] = _later) -> None:
        self._read, self._later = read, later
        self._scrapes: deque[float] = deque(maxlen=_KEPT)

    def scraped(self, now_s: float) -> None:
        """A scrape has come, at this time of the monotonic clock."""
        periods_s = list(self._periods(now_s))
        self._scrapes.append(now_s)
        for period_s in periods_s:
            self._later(period_s - LEAD_S, self._read)

    def _periods(self, now_s: float) -> Iterator[float]:
        for last_s in self._scrapes:
            period_s = now_s - last_s
            if _SHORTEST_S <= period_s <= _LONGEST_S and any(
                abs(last_s - before_s - period_s) <= _JITTER_S for before_s in self._scrapes
            ):
                yield period_s
