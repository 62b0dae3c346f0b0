# SPDX-License-Identifier: Apache-2.0
"""Periods as users write them, and the days of a time zone.

Rules
- `7d`: the day of the end of what is known, up to that end, and the six whole days before it, as in OpenCost's windows
  (core/pkg/opencost/window.go), so that a period has whole days but for its last one. `36h`: so many hours up to that
  end. `2026` is a year, `2026-11` a month, `2026-11-05` a day.
- `FROM..TO` is from FROM on and before TO, each a date (its first moment) or a time such as 2026-11-05T12:00Z. Without
  TO it goes on to that end.
- Dates and times without an offset are of the time zone; UTC if none was named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from dovetail.history.records import HOUR_MS, Period

_LAST = re.compile(r"([0-9]{1,5})([dh])")
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")
_YEAR = re.compile(r"[0-9]{4}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_OFFSET = re.compile(r"([+-])([0-9]{2}):([0-9]{2})")
_LAST_YEAR = 9000
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORMS = "7d, 36h, 2026-11, 2026-11-05 or 2026-11-01..2026-11-08"


class PeriodError(ValueError):
    """A text that is no period, or no time zone."""


def zone_of(text: str) -> tzinfo:
    """`UTC`, `Europe/Berlin` or `+05:30`. Raises PeriodError."""
    match = _OFFSET.fullmatch(text)
    if match is not None:
        size = timedelta(hours=int(match[2]), minutes=int(match[3]))
        if size >= timedelta(hours=24) or int(match[3]) > 59:
            raise PeriodError(f"{text!r} is not an offset from UTC such as +05:30")
        return timezone(-size if match[1] == "-" else size)
    try:
        return ZoneInfo(text)
    except (KeyError, OSError, ValueError) as error:
        known = "write its name as in Europe/Berlin, or an offset such as +05:30"
        raise PeriodError(f"the time zone {text!r} is not known on this machine; {known}") from error


def period_of(text: str, zone: tzinfo, known_ms: int) -> Period:
    """The period that a text names; `known_ms` is the end of what is known. Raises PeriodError."""
    last, month, year = _LAST.fullmatch(text), _MONTH.fullmatch(text), _YEAR.fullmatch(text)
    if last is not None and last[2] == "h":
        found = Period(known_ms - int(last[1]) * HOUR_MS, known_ms)
    elif last is not None:
        first = local(known_ms - 1, zone).date() - timedelta(days=int(last[1]) - 1)
        found = Period(min(_day_ms(first, zone), known_ms), known_ms)
    elif month is not None:
        first = _date(f"{text}-01")
        found = Period(_day_ms(first, zone), _day_ms((first + timedelta(days=31)).replace(day=1), zone))
    elif year is not None:
        first = _date(f"{text}-01-01")
        found = Period(_day_ms(first, zone), _day_ms(first.replace(year=first.year + 1), zone))
    elif _DATE.fullmatch(text):
        day = _date(text)
        found = Period(_day_ms(day, zone), _day_ms(day + timedelta(days=1), zone))
    elif ".." in text:
        start, _, end = text.partition("..")
        found = Period(_moment_ms(start, zone), _moment_ms(end, zone) if end else known_ms)
    else:
        raise PeriodError(f"{text!r} is not a period: write {_FORMS}")
    if not found.ms:
        raise PeriodError(f"the period {text!r} is empty: its end must be after its start")
    if found.start_ms < 0:
        raise PeriodError(f"the period {text!r} begins before 1970")
    return found


def _date(text: str) -> date:
    try:
        found = date.fromisoformat(text)
        if found.year > _LAST_YEAR:
            raise ValueError(f"the year must be at most {_LAST_YEAR}")
        return found
    except ValueError as error:
        raise PeriodError(f"{text!r} is not a date: {error}") from error


def _moment_ms(text: str, zone: tzinfo) -> int:
    if _DATE.fullmatch(text):
        return _day_ms(_date(text), zone)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise PeriodError(f"{text!r} is not a date or a time: write {_FORMS}") from error
    return _epoch_ms(found, zone)


def _epoch_ms(moment: datetime, zone: tzinfo) -> int:
    return ((moment if moment.tzinfo else moment.replace(tzinfo=zone)) - _EPOCH) // _MS


def _day_ms(day: date, zone: tzinfo) -> int:
    return _epoch_ms(datetime.combine(day, time()), zone)


def days(period: Period, zone: tzinfo) -> Iterator[tuple[str, Period]]:
    """The days of the zone that the period touches, with the parts of the period."""
    day = local(period.start_ms, zone).date()
    while (start_ms := _day_ms(day, zone)) < period.end_ms:
        following = day + timedelta(days=1)
        inside = period.clipped(start_ms, _day_ms(following, zone))
        if inside.ms:
            yield day.isoformat(), inside
        day = following


def local(at_ms: int, zone: tzinfo) -> datetime:
    """The time in the zone."""
    return (_EPOCH + at_ms * _MS).astimezone(zone)
