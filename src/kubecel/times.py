# SPDX-License-Identifier: Apache-2.0
"""Timestamps and durations: parsing, formatting, arithmetic and accessors.

Rules: a duration is signed 64 bit nanoseconds in Go's notation ("1h30m", "-2.5s"). A timestamp is RFC 3339 between the
years 1 and 9999. A time zone is a fixed offset ("+02:00") or UTC. Other names need the machine's tz database and are an
error here.
Source: cel-go v0.29.2, common/types/{duration,timestamp,overflow}.go; Go's time.ParseDuration.
"""

from __future__ import annotations

import re
from typing import Final

from kubecel.values import MAX_INT, MIN_INT, NO_OVERLOAD, Duration, Err, Timestamp, Value, shortest

_SECOND: Final = 10**9
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": _SECOND, "m": 60 * _SECOND,
            "h": 3600 * _SECOND}  # fmt: skip
_PART = re.compile(r"(?a)(\d*)(?:\.(\d*))?([^\d.]+)")
_RFC3339 = re.compile(r"(?a)(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(Z|([+-])(\d\d):(\d\d))")
_DAY_S: Final = 86400
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
FIRST_S: Final = -62135596800
"""The start of the year 1 in seconds since 1970: Go's zero time."""
_LAST_S: Final = 253402300799
_OVERFLOW = Err("timestamp overflow")
_INT_OVERFLOW = Err("integer overflow")


def duration_of(text: str) -> Duration | None:
    """The duration, or None if the text is not a duration."""
    sign, rest = (text[0], text[1:]) if text[:1] in ("+", "-") else ("+", text)
    if rest == "0":
        return Duration(0)
    total, at = 0, 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or part[3] not in _UNIT_NS or not (part[1] or part[2]) or len(part[1]) > 19:
            return None
        unit = _UNIT_NS[part[3]]
        digits = (part[2] or "")[:18]
        total += int(part[1] or 0) * unit + int(digits or 0) * unit // 10 ** len(digits)
        at = part.end()
    if not rest or total > MAX_INT + (sign == "-"):
        return None
    return Duration(-total if sign == "-" else total)


def timestamp_of(text: str) -> Timestamp | Err | None:
    """The timestamp, an error if it is out of range, or None if the text is not a timestamp."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    offset_s = 0
    if match[9]:
        hours, minutes = int(match[10]), int(match[11])
        if hours > 24 or minutes > 60:
            return None
        offset_s = (hours * 3600 + minutes * 60) * (-1 if match[9] == "-" else 1)
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    if not (is_date(year, month, day) and hour < 24 and minute < 60 and second < 60):
        return None
    seconds = _days(year, month, day) * _DAY_S + hour * 3600 + minute * 60 + second - offset_s
    if not FIRST_S <= seconds <= _LAST_S:
        return _OVERFLOW
    return Timestamp(seconds * _SECOND + int((match[7] or "0")[:9].ljust(9, "0")), offset_s)


def is_date(year: int, month: int, day: int) -> bool:
    """Whether the date exists in the calendar."""
    if not 1 <= month <= 12:
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= day <= _MONTH_DAYS[month - 1] + (leap and month == 2)


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01. Source: howardhinnant.github.io/date_algorithms.html."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def _date(days: int) -> tuple[int, int, int]:
    """Year, month and day for a number of days since 1970-01-01. Same source."""
    era, of_era = divmod(days + 719468, 146097)
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def timestamp_of_seconds(seconds: int) -> Timestamp | Err:
    return Timestamp(seconds * _SECOND) if FIRST_S <= seconds <= _LAST_S else _OVERFLOW


def duration_text(duration: Duration) -> str:
    """Seconds as the shortest decimal of the double."""
    return f"{shortest(_seconds(duration))}s"


def timestamp_text(timestamp: Timestamp) -> str:
    """RFC 3339 in the original zone, without trailing zeros."""
    days, seconds = divmod(timestamp.ns // _SECOND + timestamp.offset_s, _DAY_S)
    year, month, day = _date(days)
    fraction = f".{timestamp.ns % _SECOND:09d}".rstrip("0").rstrip(".")
    offset = abs(timestamp.offset_s) // 60
    sign = "-" if timestamp.offset_s < 0 else "+"
    zone = f"{sign}{offset // 60:02d}:{offset % 60:02d}" if timestamp.offset_s else "Z"
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{year:04d}-{month:02d}-{day:02d}T{clock}{fraction}{zone}"


def added(one: Duration | Timestamp, other: Value) -> Value:
    if type(one) is Duration and type(other) is Duration:
        return _duration(one.ns + other.ns)
    if isinstance(one, Timestamp) and isinstance(other, Duration):
        return _timestamp(one.ns + other.ns, one.offset_s)
    if isinstance(one, Duration) and isinstance(other, Timestamp):
        return _timestamp(one.ns + other.ns, other.offset_s)
    return NO_OVERLOAD


def subtracted(one: Duration | Timestamp, other: Value) -> Value:
    if type(one) is type(other):
        return _duration(one.ns - other.ns)
    if type(one) is Timestamp and type(other) is Duration:
        return _INT_OVERFLOW if other.ns == MIN_INT else _timestamp(one.ns - other.ns, one.offset_s)
    return NO_OVERLOAD


def _duration(ns: int) -> Duration | Err:
    return Duration(ns) if MIN_INT <= ns <= MAX_INT else _INT_OVERFLOW


def _timestamp(ns: int, offset_s: int) -> Timestamp | Err:
    return Timestamp(ns, offset_s) if FIRST_S <= ns // _SECOND <= _LAST_S else _OVERFLOW


def negated(duration: Duration) -> Duration | Err:
    return _duration(-duration.ns)


def _seconds(duration: Duration) -> float:
    # As in Go: whole seconds and the remainder are converted to doubles separately.
    whole = abs(duration.ns) // _SECOND
    value = float(whole) + float(abs(duration.ns) % _SECOND) / 1e9
    return -value if duration.ns < 0 else value


def _truncated(ns: int, unit_ns: int) -> int:
    return abs(ns) // unit_ns * (-1 if ns < 0 else 1)


def _east_s(zone: str) -> int | Err:
    """The offset of a time zone east of UTC in seconds."""
    if zone in ("", "UTC"):
        return 0
    match = re.fullmatch(r"(?a)([+-]?\d{1,2}):([+-]?\d{1,2})", zone)
    if match is None:
        return Err(f"unknown time zone {zone}: only UTC and offsets such as +02:00 are known here")
    return (int(match[1]) * 60 + int(match[2]) * (-1 if zone[0] == "-" else 1)) * 60


_WHOLE_NS = {"getHours": 3600 * _SECOND, "getMinutes": 60 * _SECOND, "getSeconds": _SECOND, "getMilliseconds": 10**6}


def part(function: str, value: Value, zone: str = "UTC") -> Value:
    """A component of a timestamp in a time zone, or a duration converted to a unit."""
    if type(value) is Duration:
        return _truncated(value.ns, _WHOLE_NS[function])
    east_s = _east_s(zone)
    if isinstance(east_s, Err):
        return east_s
    days, seconds = divmod(value.ns // _SECOND + east_s, _DAY_S)
    year, month, day = _date(days)
    match function:
        case "getFullYear":
            return year
        case "getMonth":
            return month - 1
        case "getDayOfYear":
            return days - _days(year, 1, 1)
        case "getDayOfMonth":
            return day - 1
        case "getDate":
            return day
        case "getDayOfWeek":
            return (days + 4) % 7
        case "getHours":
            return seconds // 3600
        case "getMinutes":
            return seconds // 60 % 60
        case "getSeconds":
            return seconds % 60
    return value.ns % _SECOND // 10**6
