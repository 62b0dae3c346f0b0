# SPDX-License-Identifier: Apache-2.0
"""The requests of a trace: when they arrive, and their lengths.

Rules
- The forms are those of `request_lengths`, and beside the lengths the time of arrival: `TIMESTAMP` (Azure's LLM traces:
  date and time), `timestamp` (Mooncake: milliseconds) or `Timestamp` (BurstGPT: seconds).
- Requests are in the order of their times. One that is earlier than the one before, a time that is none and a line that
  is cut off are errors with the line: what follows would be another load.
- Times are from the first request on; what is later than `MOST_S`, or after `MOST_REQUESTS`, is left out and counted. A
  trace without a second request, or in which all arrive at one time, has no rate.
- A gap of `GAP_S` and more without a request is reported: it can be a night, or a hole in the trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from msgspec import Struct

from dovetail.advice.serve.request_lengths import LengthsError, rows_of
from dovetail.kube.translate.problems import shown

TIMES = ("TIMESTAMP", "timestamp", "Timestamp")
MOST_S, MOST_REQUESTS = 3600.0, 400_000
GAP_S = 300.0
_WINDOW_S = 300.0
_LONGEST_TIME = 40
_MOST_TIME = 1e15


class TracedRequest(Struct, frozen=True, gc=False):
    """A request that arrives `at_s` seconds after the first, with its tokens."""

    at_s: float
    input: int
    output: int


class RequestTrace(Struct, frozen=True):
    """The requests of the first hour at most, the seconds from the first to the last, how many came `later`, and the
    gaps without a request, from when to when."""

    requests: tuple[TracedRequest, ...]
    seconds: float
    later: int
    gaps: tuple[tuple[float, float], ...]

    @property
    def mean_rate(self) -> float:
        """Requests per second."""
        return len(self.requests) / self.seconds

    @property
    def peak_rate(self) -> float:
        """Requests per second in the busiest five minutes, or in the whole trace if it is shorter."""
        window, most, first = min(_WINDOW_S, self.seconds), 0, 0
        for last, one in enumerate(self.requests):
            while one.at_s - self.requests[first].at_s > window:
                first += 1
            most = max(most, last - first + 1)
        return most / window


def read_trace(text: str, file: str) -> RequestTrace:
    """The requests of a trace. Raises LengthsError."""
    found: list[TracedRequest] = []
    gaps: list[tuple[float, float]] = []
    begin = before = 0.0
    later = 0
    column = ""
    for number, (row, prompt, output, where) in enumerate(rows_of(text, file)):
        column = column or _column(row, where)
        now = _time(row.get(column), column, where)
        if not number:
            begin = before = now
        if now < before:
            raise LengthsError(
                f"{where}: the request is {before - now:g} s before that of the line above: sort by time"
            )
        left_out = now - begin > MOST_S or len(found) >= MOST_REQUESTS
        if now - before >= GAP_S and not left_out:
            gaps.append((before - begin, now - begin))
        before = now
        if left_out:
            later += 1
        else:
            found.append(TracedRequest(now - begin, prompt, output))
    if not found or found[-1].at_s == 0:
        what = "no request in it" if not found else f"all {len(found)} requests arrive at one time, so it has no rate"
        raise LengthsError(f"{file}: {what}")
    return RequestTrace(tuple(found), found[-1].at_s, later, tuple(gaps))


def _column(row: Mapping[str, Any], where: str) -> str:
    for name in TIMES:
        if name in row:
            return name
    raise LengthsError(f"{where}: no time of arrival: there is none of {', '.join(TIMES)}")


def _time(value: object, column: str, where: str) -> float:
    """In seconds."""
    found: float | None = None
    try:
        if isinstance(value, str) and len(value) <= _LONGEST_TIME:
            found = float(value) if column != "TIMESTAMP" else _moment(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found = float(value)
    except (ValueError, OverflowError):
        found = None
    if found is None or not isfinite(found) or not 0 <= found <= _MOST_TIME:
        what = "is missing" if value in (None, "") else f"is {shown(repr(value))}"
        raise LengthsError(f"{where}: {column} {what}; each request needs the time of its arrival")
    return found / 1000 if column == "timestamp" else found


def _moment(text: str) -> float:
    """A date and time, in UTC if it names no zone. Raises ValueError."""
    found = datetime.fromisoformat(text.strip())
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
