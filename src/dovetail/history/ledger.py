# SPDX-License-Identifier: Apache-2.0
"""The time of all GPUs of a period, divided exactly: allocated to holds, unallocated, or unhealthy.

Rules
- Each GPU has 1000 thousandths at each moment of its spans: what holds take of them is allocated, the rest is unhealthy
  while the GPU is, else unallocated. So the three add up to the time of the spans.
- Holds that take more than 1000 of a GPU together are scaled down to that: each gets its part, rounded down, and what
  is missing goes to the largest remainders, the earlier hold first.
- What is held at a time when the GPU is in no span is charged to nobody: it is `Unknown`.
- Where spans of one GPU overlap, as after a move between nodes that was seen late, the one that started last counts
  as long as it lasts. So a part of a period is divided as the whole period is.
- Slices end where something changes, and at each of `cuts`: never are two days in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Literal, TypeAlias

from msgspec import Struct

from dovetail.history.records import GpuHold, GpuSpan, Period

WHOLE_MILLI = 1000
State = Literal["allocated", "unallocated", "unhealthy"]


class GpuTime(Struct, frozen=True, gc=False):
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


_Piece: TypeAlias = "tuple[int, int, GpuSpan | None]"
_Slice: TypeAlias = "tuple[int, int, Sequence[tuple[GpuHold, int]]]"


def divide(
    spans: Iterable[GpuSpan], holds: Iterable[GpuHold], period: Period, cuts: Sequence[int] = ()
) -> Iterator[GpuTime | Unknown]:
    """The time of the GPUs in the period, by GPU and time. Spans and holds come in the order of `HistoryReader`."""
    of_gpu = {gpu: list(group) for gpu, group in groupby(holds, attrgetter("gpu"))}
    inner = [cut for cut in cuts if period.start_ms < cut < period.end_ms]
    for gpu, group in groupby(spans, attrgetter("gpu")):
        yield from _divide_gpu(_pieces(list(group), period, inner), _together(of_gpu.pop(gpu, ()), period))
    for left in of_gpu.values():
        yield from _divide_gpu(_pieces([], period, inner), _together(left, period))


def _pieces(spans: list[GpuSpan], period: Period, cuts: Sequence[int]) -> Iterator[_Piece]:
    """The period in pieces by the span of a GPU that counts, None where there is none, cut at the cuts."""
    clipped = [(period.clipped(span.start_ms, span.end_ms), span) for span in spans]
    covering = [(part.start_ms, part.end_ms, span) for part, span in clipped if part.ms]
    covering.sort(key=lambda one: (one[2].start_ms, one[2].node, one[2].index))
    if len(covering) == 1 and not cuts and covering[0][:2] == (period.start_ms, period.end_ms):
        yield covering[0]
        return
    times = {period.start_ms, period.end_ms, *cuts}
    times.update(start_ms for start_ms, _, _ in covering)
    times.update(end_ms for _, end_ms, _ in covering)
    for start_ms, end_ms in pairwise(sorted(times)):
        latest = next((span for begin, end, span in reversed(covering) if begin <= start_ms < end), None)
        yield start_ms, end_ms, latest


def _together(holds: Iterable[GpuHold], period: Period) -> Iterator[_Slice]:
    """The times in which the same holds are held, with these and what each gets; times without holds are left out."""
    first_ms, last_ms = period.start_ms, period.end_ms
    overlapping: list[tuple[int, int, GpuHold]] = []
    until_ms = first_ms
    for hold in holds:
        start_ms, end_ms = hold.start_ms, hold.end_ms
        if start_ms < first_ms:
            start_ms = first_ms
        if not end_ms or end_ms > last_ms:
            end_ms = last_ms
        if start_ms >= end_ms:
            continue
        if start_ms >= until_ms and overlapping:
            yield from _overlapping(overlapping)
            overlapping = []
        overlapping.append((start_ms, end_ms, hold))
        if end_ms > until_ms:
            until_ms = end_ms
    if overlapping:
        yield from _overlapping(overlapping)


def _overlapping(held: Sequence[tuple[int, int, GpuHold]]) -> Sequence[_Slice]:
    if len(held) == 1:
        ((start_ms, end_ms, hold),) = held
        return ((start_ms, end_ms, ((hold, min(hold.milli, WHOLE_MILLI)),)),)
    times = {time for start_ms, end_ms, _ in held for time in (start_ms, end_ms)}
    slices = []
    for begin, end in pairwise(sorted(times)):
        active = [hold for start_ms, end_ms, hold in held if start_ms <= begin < end_ms]
        if active:
            parts = scaled([hold.milli for hold in active])
            slices.append((begin, end, tuple(zip(active, parts, strict=True))))
    return slices


def _divide_gpu(pieces: Iterable[_Piece], slices: Iterator[_Slice]) -> Iterator[GpuTime | Unknown]:
    """Both in the order of time."""
    current = next(slices, None)
    for begin, end, span in pieces:
        at = begin
        state: State = "unallocated" if span is not None and span.health == "healthy" else "unhealthy"
        while current is not None and current[0] < end:
            start_ms, end_ms, held = current
            if start_ms < begin:
                start_ms = begin
            until_ms = end_ms if end_ms < end else end
            if span is None:
                for hold, _ in held:
                    yield Unknown(hold, start_ms, until_ms)
            else:
                if at < start_ms:
                    yield GpuTime(span, state, WHOLE_MILLI, at, start_ms)
                rest = WHOLE_MILLI
                for hold, milli in held:
                    rest -= milli
                    yield GpuTime(span, "allocated", milli, start_ms, until_ms, hold)
                if rest:
                    yield GpuTime(span, state, rest, start_ms, until_ms)
            at = until_ms
            if end_ms > end:
                break
            current = next(slices, None)
        if span is not None and at < end:
            yield GpuTime(span, state, WHOLE_MILLI, at, end)


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
