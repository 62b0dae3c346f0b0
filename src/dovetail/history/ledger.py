# SPDX-License-Identifier: Apache-2.0
"""The time of all GPUs of a period, divided exactly: allocated to holds, unallocated, or unhealthy.

Rules
- Each GPU has 1000 thousandths at each moment of its spans: what holds take of them is allocated, the rest is unhealthy
  while the GPU is, else unallocated. So the three add up to the time of the spans.
- Holds that take more than 1000 of a GPU together are scaled down to that: each gets its part, rounded down, and what
  is missing goes to the largest remainders, the earlier hold first.
- What is held at a time when the GPU is in no span is charged to nobody: it is `Unknown`.
- Where spans of one GPU overlap, as after a move between nodes that was seen late, the one that starts later counts.
- Slices end where something changes, and at each of `cuts`: never are two days in one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Literal

from msgspec import Struct

from dovetail.history.records import GpuHold, GpuSpan, Period

WHOLE_MILLI = 1000
State = Literal["allocated", "unallocated", "unhealthy"]


class GpuTime(Struct, frozen=True):
    """`milli` thousandths of a GPU for a time, allocated to `hold` or to nobody."""

    span: GpuSpan
    state: State
    milli: int
    start_ms: int
    end_ms: int
    hold: GpuHold | None = None

    @property
    def amount(self) -> int:
        """Thousandths times milliseconds."""
        return self.milli * (self.end_ms - self.start_ms)


class Unknown(Struct, frozen=True):
    """A hold at a time when its GPU was in no span."""

    hold: GpuHold
    start_ms: int
    end_ms: int


def divide(
    spans: Iterable[GpuSpan], holds: Iterable[GpuHold], period: Period, cuts: Sequence[int] = ()
) -> Iterator[GpuTime | Unknown]:
    """The time of the GPUs in the period, by GPU and time. Spans and holds come by GPU (`HistoryReader`)."""
    of_gpu = {gpu: list(group) for gpu, group in groupby(holds, lambda hold: hold.gpu)}
    inner = [cut for cut in cuts if period.start_ms < cut < period.end_ms]
    for gpu, group in groupby(spans, lambda span: span.gpu):
        yield from _divide_gpu(_apart(group, period), of_gpu.pop(gpu, []), period, inner)
    for left in of_gpu.values():
        yield from _divide_gpu([], left, period, inner)


def _apart(spans: Iterable[GpuSpan], period: Period) -> list[tuple[Period, GpuSpan]]:
    """The spans of a GPU with the parts of the period that they cover; none overlaps the next."""
    ordered = sorted(spans, key=lambda span: (span.start_ms, span.node, span.index))
    starts = [*(span.start_ms for span in ordered[1:]), period.end_ms]
    clipped = [
        (period.clipped(span.start_ms, min(span.end_ms or next_ms, next_ms)), span)
        for span, next_ms in zip(ordered, starts, strict=True)
    ]
    return [(covered, span) for covered, span in clipped if covered.ms]


def _divide_gpu(
    spans: list[tuple[Period, GpuSpan]], holds: list[GpuHold], period: Period, cuts: Sequence[int]
) -> Iterator[GpuTime | Unknown]:
    held = [(covered, hold) for hold in holds if (covered := period.clipped(hold.start_ms, hold.end_ms)).ms]
    times = {covered.start_ms for covered, _ in (*spans, *held)} | {covered.end_ms for covered, _ in (*spans, *held)}
    span_starts = [covered.start_ms for covered, _ in spans]
    held.sort(key=lambda one: (one[0].start_ms, one[1].start_ms, one[1].pod_uid, one[1].device))
    active: list[tuple[Period, GpuHold]] = []
    begun = 0
    for start_ms, end_ms in pairwise(sorted(times.union(cuts))):
        while begun < len(held) and held[begun][0].start_ms <= start_ms:
            active.append(held[begun])
            begun += 1
        active = [one for one in active if one[0].end_ms > start_ms]
        number = bisect_right(span_starts, start_ms) - 1
        if number < 0 or spans[number][0].end_ms <= start_ms:
            yield from (Unknown(hold, start_ms, end_ms) for _, hold in active)
            continue
        span = spans[number][1]
        parts = scaled([hold.milli for _, hold in active])
        for (_, hold), milli in zip(active, parts, strict=True):
            yield GpuTime(span, "allocated", milli, start_ms, end_ms, hold)
        if rest := WHOLE_MILLI - sum(parts):
            state: State = "unallocated" if span.health == "healthy" else "unhealthy"
            yield GpuTime(span, state, rest, start_ms, end_ms)


def scaled(millis: Sequence[int], whole: int = WHOLE_MILLI) -> list[int]:
    """The amounts, scaled down to `whole` if together they are more: the sum is then exactly that."""
    total = sum(millis)
    if total <= whole:
        return list(millis)
    parts = [milli * whole // total for milli in millis]
    by_remainder = sorted(range(len(millis)), key=lambda i: (-(millis[i] * whole % total), i))
    for i in by_remainder[: whole - sum(parts)]:
        parts[i] += 1
    return parts
