# SPDX-License-Identifier: Apache-2.0
"""The calendar of a queue: in which hours of the week it has another guarantee.

Rules
- A window is open while the clocks of its time zone show a time in it, on its days; one that ends at or before its
  start ends on the next day. So an hour that clocks skip shortens it, and one that they repeat lengthens it.
- Of several windows that are open the first one counts; while none is, the guarantee of the spec does.
- The change is one of the queue: jobs that wait are tried again, and what the queue has beyond its new guarantee is
  borrowed from then on. Nothing is evicted for the change alone.
- The time zone is a table of offsets, as the core reads no files. After its end the last offset stays.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

from dovetail.core.queues.amounts import Amounts

MINUTE_MS, DAY_MS = 60_000, 86_400_000
DAY_MIN = 1440
_WEEK_DAYS = 7
_MONDAY = 3
"""1970-01-01 was a Thursday: day -3 was a Monday."""
_HORIZON_DAYS = 15
"""A week, and another one as the first may have a window in an hour that is skipped."""


class GuaranteeWindow(Struct, frozen=True):
    """On `days` (bit 0 is Monday: the day on which it starts), from `start_min` up to `end_min`, in minutes of the
    local day."""

    days: int
    start_min: int
    end_min: int
    guarantee: Amounts

    def open_at(self, weekday: int, minute: int) -> bool:
        """Whether it is open at this minute of a day."""
        today, yesterday = self.days >> weekday & 1, self.days >> (weekday - 1) % _WEEK_DAYS & 1
        if self.start_min < self.end_min:
            return bool(today) and self.start_min <= minute < self.end_min
        return bool(today and minute >= self.start_min) or bool(yesterday and minute < self.end_min)


class GuaranteeCalendar(Struct, frozen=True):
    """`otherwise` is the guarantee while no window is open. `offsets` are those of local time from UTC, in ms, each
    with the epoch ms from which on it holds; the first one also before."""

    otherwise: Amounts
    windows: tuple[GuaranteeWindow, ...]
    offsets: tuple[tuple[int, int], ...] = ((0, 0),)

    def at(self, now_ms: int) -> Amounts:
        """The guarantee at this time."""
        local_ms = now_ms + self._offset(now_ms)
        weekday, minute = (local_ms // DAY_MS + _MONDAY) % _WEEK_DAYS, local_ms % DAY_MS // MINUTE_MS
        for window in self.windows:
            if window.open_at(weekday, minute):
                return window.guarantee
        return self.otherwise

    def next_change(self, now_ms: int) -> tuple[int, Amounts] | None:
        """When the guarantee changes next, and to what; None where it does not within two weeks."""
        present = self.at(now_ms)
        for at_ms in self._candidates(now_ms):
            if (amounts := self.at(at_ms)) != present:
                return at_ms, amounts
        return None

    def horizon_ms(self, now_ms: int) -> int:
        """Up to when `next_change` looks."""
        return now_ms + _HORIZON_DAYS * DAY_MS

    def _offset(self, now_ms: int) -> int:
        i = bisect_right(self.offsets, (now_ms, 2**62)) - 1
        return self.offsets[max(0, i)][1]

    def _candidates(self, now_ms: int) -> list[int]:
        """Later times at which a window may begin or end, ascending: local times at each offset that holds by then, and
        the changes of offsets."""
        until_ms = self.horizon_ms(now_ms)
        turns = [at_ms for at_ms, _ in self.offsets if now_ms < at_ms <= until_ms]
        found = set(turns)
        minutes = {minute for window in self.windows for minute in (window.start_min, window.end_min % DAY_MIN)}
        for offset in {self._offset(at_ms) for at_ms in (now_ms, *turns)}:
            first_day = (now_ms + offset) // DAY_MS
            for day in range(first_day, first_day + _HORIZON_DAYS + 1):
                found.update(day * DAY_MS + minute * MINUTE_MS - offset for minute in minutes)
        return sorted(at_ms for at_ms in found if now_ms < at_ms <= until_ms)
