# SPDX-License-Identifier: Apache-2.0
"""Time zones as tables of offsets, which is what the core can read.

Rules: a table covers the years FIRST_YEAR to LAST_YEAR; before and after it, the first and the last offset hold. It is
of the time zone database of this machine (the package `tzdata`, where the system has none). A name is looked up there,
so one that is a path or names nothing is an error, and so is a file of the database that is no zone of its own: the
local time of the machine, and the zones again with and without leap seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

FIRST_YEAR, LAST_YEAR = 2025, 2045
_LONGEST = 64
_NO_ZONES = ("Factory", "localtime", "posix/", "posixrules", "right/")
_STEP_S = 86_400
Offsets = tuple[tuple[int, int], ...]


@lru_cache(maxsize=64)
def offsets_of(name: str) -> Offsets:
    """The offsets of local time from UTC in ms, each with the epoch ms from which on it holds. Raises ValueError if
    there is no such time zone."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        zone = ZoneInfo(name if len(name) <= _LONGEST and not name.startswith(_NO_ZONES) else "")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(name) from None
    first = _epoch_s(FIRST_YEAR)
    found = [(first * 1000, _offset_s(zone, first) * 1000)]
    for day_s in range(first, _epoch_s(LAST_YEAR + 1), _STEP_S):
        # No zone changes twice in a day.
        low, high = day_s, day_s + _STEP_S
        before, after = _offset_s(zone, low), _offset_s(zone, high)
        if before == after:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset_s(zone, middle) == before else (low, middle)
        found.append((high * 1000, after * 1000))
    return tuple(found)


def _offset_s(zone: tzinfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, zone).utcoffset() or timedelta()
    return round(offset.total_seconds())


def _epoch_s(year: int) -> int:
    return round(datetime(year, 1, 1, tzinfo=UTC).timestamp())
