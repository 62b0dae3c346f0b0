# SPDX-License-Identifier: Apache-2.0
"""The time for which GPUs of one kind of node were stranded: free, and of no use for any pod that waited.

Rules
- They are those of `dovetail free` at each moment (`views.stranded`): on a node with F free GPUs, where C pods with G
  GPUs each would fit, F - C x G are stranded. Of these F mod G are `fragmented`; for the others CPUs or memory are all
  that there is room for C pods, where it is known what a node has of them. Of several shapes of waiting pods the one
  counts that uses most of the node, among equals the smallest. How many pods wait does not count.
- While no pod waits the typical pod of the kind counts: the shape that held the most GPU time in the period. That is
  kept apart: nothing waited for these GPUs.
- A GPU is free while it is healthy and no pod holds a part of it. Which rule of the scheduler refused a node, as a
  taint, is not in the history.
- Of the shapes that wait `_MOST_SHAPES` count with CPUs and memory, those with the most waiting pods; of the others the
  GPUs alone, so that what they could use is never called stranded.
- Nodes in the same state share one integral, which is brought up to date when another set of shapes waits. So time is
  the changes of nodes, and the changes of that set times the states of nodes with free GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple

from msgspec import Struct

from dovetail.history.occupancy import KindUse, PodShape
from dovetail.history.packing import NodeSize
from dovetail.history.records import GpuSpan, Period

StrandedCause = Literal["fragmented", "cpu", "memory"]
CAUSES: tuple[StrandedCause, ...] = ("fragmented", "cpu", "memory")
_MOST_SHAPES = 32
_NOTHING = (0,) * (2 * len(CAUSES))
_Sums = tuple[int, ...]
"""GPUs, or GPUs times ms: by cause while pods waited, then by cause while none did."""


class StrandedTime(Struct, frozen=True):
    """GPU time (GPUs times ms) of one node, of which `span` is a GPU, from `start_ms` on, which is the start of the
    period or one of the cuts. `waited`: pods waited then, and none could use it."""

    span: GpuSpan
    start_ms: int
    waited: bool
    cause: StrandedCause
    gpu_ms: int


class _Room(NamedTuple):
    """What a node has free."""

    gpus: int
    cpu_milli: int
    memory_mib: int


class _Change(NamedTuple):
    """At a time: so much more of a node is free, with a GPU of it; or, for the node "", more pods of a shape wait."""

    at_ms: int
    node: str
    room: _Room
    span: GpuSpan | None = None
    shape: PodShape | None = None
    pods: int = 0


class _Integral:
    """What is stranded on a node in one state, added up since it was first seen."""

    def __init__(self, now_ms: int, rates: _Sums) -> None:
        self._rates, self._since_ms, self._sums = rates, now_ms, _NOTHING

    def at(self, now_ms: int) -> _Sums:
        ms = now_ms - self._since_ms
        if ms and any(self._rates):
            self._sums = tuple(total + ms * rate for total, rate in zip(self._sums, self._rates, strict=True))
        self._since_ms = now_ms
        return self._sums

    def go_on(self, now_ms: int, rates: _Sums) -> None:
        """From now on with these rates."""
        self.at(now_ms)
        self._rates = rates


def left_over(room: _Room, shapes: Sequence[PodShape], counts: bool) -> tuple[int, int, int]:
    """The GPUs that are stranded, by cause; `shapes` come by size, and `counts` is whether CPUs and memory do."""
    most, found = -1, (0, 0, 0)
    for shape in shapes:
        bounds = [room.gpus // shape.gpus]
        for free, each in ((room.cpu_milli, shape.cpu_milli), (room.memory_mib, shape.memory_mib)):
            bounds.append(max(0, free) // each if counts and each else bounds[0])
        pods = min(bounds)
        if pods * shape.gpus > most:
            most, rest = pods * shape.gpus, (bounds[0] - pods) * shape.gpus
            found = room.gpus % shape.gpus, *((rest, 0) if bounds[1] == pods else (0, rest))
    return found


class _Sweep:
    """Goes through the changes of one kind of node."""

    def __init__(self, size: NodeSize, typical: PodShape | None) -> None:
        self._size, self._typical = size, (typical,) if typical is not None else ()
        self._waiting: Counter[PodShape] = Counter()
        self._rooms: dict[str, _Room] = {}
        self._spans: dict[str, GpuSpan] = {}
        self._nodes_in: Counter[_Room] = Counter()
        self._integrals: dict[_Room, _Integral] = {}
        self._entered: dict[str, _Sums] = {}

    def _rates(self, room: _Room) -> _Sums:
        shapes = sorted(self._waiting, key=attrgetter("gpus")) or self._typical
        found = left_over(room, shapes, self._size.counts)
        nothing = (0,) * len(CAUSES)
        return found + nothing if self._waiting else nothing + found

    def apply(self, now_ms: int, changes: Iterable[_Change]) -> Iterator[tuple[GpuSpan, _Sums]]:
        """All changes of one time; yields what nodes that change had stranded until then."""
        shapes = frozenset(self._waiting)
        moved: dict[str, _Room] = {}
        for one in changes:
            if one.shape is not None:
                self._waiting[one.shape] += one.pods
                if not self._waiting[one.shape]:
                    del self._waiting[one.shape]
                continue
            before = moved.get(one.node) or self._rooms.get(one.node) or _Room(0, *self._size_of_host())
            moved[one.node] = _Room(*(a + b for a, b in zip(before, one.room, strict=True)))
            if one.span is not None:
                self._spans[one.node] = one.span
        for node in moved:
            yield from self._leave(node, now_ms)
        if shapes != frozenset(self._waiting):
            for room, integral in self._integrals.items():
                integral.go_on(now_ms, self._rates(room))
        for node, room in moved.items():
            self._enter(node, room, now_ms)

    def cut(self, now_ms: int) -> Iterator[tuple[GpuSpan, _Sums]]:
        """What all nodes had stranded until now since they changed, or since the last cut."""
        for node in list(self._entered):
            room = self._rooms[node]
            yield from self._leave(node, now_ms)
            self._enter(node, room, now_ms)

    def _size_of_host(self) -> tuple[int, int]:
        return self._size.cpu_milli, self._size.memory_mib

    def _leave(self, node: str, now_ms: int) -> Iterator[tuple[GpuSpan, _Sums]]:
        entered = self._entered.pop(node, None)
        if entered is None:
            return
        room = self._rooms[node]
        sums = self._integrals[room].at(now_ms)
        self._nodes_in[room] -= 1
        if not self._nodes_in[room]:
            del self._nodes_in[room], self._integrals[room]
        if sums != entered:
            yield self._spans[node], tuple(now - then for now, then in zip(sums, entered, strict=True))

    def _enter(self, node: str, room: _Room, now_ms: int) -> None:
        self._rooms[node] = room
        if room.gpus <= 0:
            return
        integral = self._integrals.get(room)
        if integral is None:
            integral = self._integrals[room] = _Integral(now_ms, self._rates(room))
        self._nodes_in[room] += 1
        self._entered[node] = integral.at(now_ms)


def stranded(use: KindUse, size: NodeSize, period: Period, cuts: Sequence[int] = ()) -> Iterator[StrandedTime]:
    """The times of one kind of node in the period, whose nodes have this size, by node and part of the period between
    the cuts."""
    sweep = _Sweep(size, use.typical)
    start_ms, sums = period.start_ms, dict[str, tuple[GpuSpan, _Sums]]()
    ends = iter([cut for cut in sorted(cuts) if period.start_ms < cut < period.end_ms] + [period.end_ms])
    end_ms: int | None = next(ends)
    for at_ms, some in groupby(sorted(_changes(use, size.counts), key=itemgetter(0)), itemgetter(0)):
        while end_ms is not None and at_ms > end_ms:
            _add(sums, sweep.cut(end_ms))
            yield from _rows(sums, start_ms)
            start_ms, end_ms, sums = end_ms, next(ends, None), {}
        _add(sums, sweep.apply(at_ms, some))
    while end_ms is not None:
        _add(sums, sweep.cut(end_ms))
        yield from _rows(sums, start_ms)
        start_ms, end_ms, sums = end_ms, next(ends, None), {}


def _add(sums: dict[str, tuple[GpuSpan, _Sums]], more: Iterable[tuple[GpuSpan, _Sums]]) -> None:
    for span, some in more:
        _, before = sums.get(span.node, (span, _NOTHING))
        sums[span.node] = span, tuple(a + b for a, b in zip(before, some, strict=True))


def _rows(sums: Mapping[str, tuple[GpuSpan, _Sums]], start_ms: int) -> Iterator[StrandedTime]:
    for span, some in sums.values():
        for number, gpu_ms in enumerate(some):
            if gpu_ms:
                yield StrandedTime(span, start_ms, number < len(CAUSES), CAUSES[number % len(CAUSES)], gpu_ms)


def _changes(use: KindUse, counts: bool) -> Iterator[_Change]:
    for span, part in use.free:
        yield _Change(part.start_ms, span.node, _Room(1, 0, 0), span)
        yield _Change(part.end_ms, span.node, _Room(-1, 0, 0))
    for node, part, cpu_milli, memory_mib in use.requests if counts else ():
        yield _Change(part.start_ms, node, _Room(0, -cpu_milli, -memory_mib))
        yield _Change(part.end_ms, node, _Room(0, cpu_milli, memory_mib))
    known = {shape for shape, _ in Counter(shape for _, shape in use.waiting).most_common(_MOST_SHAPES)}
    nothing = _Room(0, 0, 0)
    for part, shape in use.waiting:
        counted = shape if shape in known else PodShape(shape.gpus)
        yield _Change(part.start_ms, "", nothing, shape=counted, pods=1)
        yield _Change(part.end_ms, "", nothing, shape=counted, pods=-1)
