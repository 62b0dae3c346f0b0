# SPDX-License-Identifier: Apache-2.0
"""The time of all GPUs of a UTC day by pod and node: what answers about pods, jobs, labels and nodes are made of, in
place of all records. As `day_sums`, of which they are the finer half: made, kept and dropped with them.

Rules
- What a pod is called is not in it, but for its uid: names and labels may change.
- It is kept as columns of 64-bit integers, compressed: a day of 8,000 GPUs has some 40,000 rows.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder
from numpy.typing import NDArray

from dovetail.history.day_sums import Place
from dovetail.history.gpu_use import UseOfPods
from dovetail.history.ledger import GpuTime, State
from dovetail.history.records import DAY_MS, Period

STATES: tuple[State, ...] = ("allocated", "unallocated", "unhealthy")
"""Of rows, by their numbers."""
_COLUMNS = 8
_INTEGERS = np.dtype("<i8")
_MOST_BYTES = 1 << 30


class PodDay(Struct):
    """The day that begins at `start_ms`. `columns` are place, node, state, pod, time, start-up, used and idle time: the
    first four are indices into `places`, `nodes`, `STATES` and `uids` (-1: of no pod), the others as in `TimeSum`."""

    start_ms: int
    places: list[Place]
    nodes: list[str]
    uids: list[str]
    columns: NDArray[np.int64]
    unknown_ms: int = 0
    assumed_time: int = 0

    @property
    def period(self) -> Period:
        return Period(self.start_ms, self.start_ms + DAY_MS)


class _Packed(Struct, array_like=True):
    """A PodDay as it is kept."""

    start_ms: int
    places: list[Place]
    nodes: list[str]
    uids: list[str]
    columns: bytes
    unknown_ms: int
    assumed_time: int


_DECODER = Decoder(_Packed)
_ENCODER = Encoder()


def encoded(day: PodDay) -> bytes:
    columns = zlib.compress(np.ascontiguousarray(day.columns, _INTEGERS).tobytes(), 1)
    kept = day.start_ms, day.places, day.nodes, day.uids, columns, day.unknown_ms, day.assumed_time
    return _ENCODER.encode(_Packed(*kept))


def decoded(blob: bytes, most_bytes: int = _MOST_BYTES) -> PodDay:
    """Raises MsgspecError, also for columns that unpack to more bytes, or that name what is not listed."""
    kept = _DECODER.decode(blob)
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(kept.columns, most_bytes)
        if not unpacking.eof:
            raise ValueError(f"they have more than {most_bytes} bytes, or end too soon")
        columns = np.frombuffer(unpacked, _INTEGERS).reshape(_COLUMNS, -1)
        _check(columns, (len(kept.places), len(kept.nodes), len(STATES), len(kept.uids)))
    except (zlib.error, ValueError) as error:
        raise msgspec.ValidationError(f"the sums of a day cannot be unpacked: {error}") from error
    lists = kept.places, kept.nodes, kept.uids
    return PodDay(kept.start_ms, *lists, columns, kept.unknown_ms, kept.assumed_time)


def _check(columns: NDArray[np.int64], listed: tuple[int, ...]) -> None:
    """Raises ValueError for an index that is not in its list."""
    lowest = 0, 0, 0, -1
    for column, first, count in zip(columns, lowest, listed, strict=False):
        if column.size and not (first <= column.min() and column.max() < count):
            raise ValueError("a row names what is not listed")


class PodDaySummer:
    """Adds up the times of one day. They come by GPU."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._places: dict[Place, int] = {}
        self._nodes: dict[str, int] = {}
        self._uids: dict[str, int] = {}
        self._rows: dict[int, int] = {}
        """The first number of each row in `_numbers`, by place, node, state and pod in one integer."""
        self._numbers = array("q")

    def add(self, times: Iterable[GpuTime], use: UseOfPods) -> None:
        span, at, numbers = None, (0, 0), self._numbers
        for one in times:
            if one.span is not span:
                span = one.span
                kind = span.instance_type, span.region, span.zone, span.spot
                place = Place(span.model, *kind, span.gpus, span.index)
                at = (
                    self._places.setdefault(place, len(self._places)),
                    self._nodes.setdefault(span.node, len(self._nodes)),
                )
            hold = one.hold
            uid = self._uids.setdefault(hold.pod_uid, len(self._uids)) if hold is not None else -1
            state = STATES.index(one.state)
            row = self._rows.setdefault((at[0] << 96) + (at[1] << 64) + (state << 60) + uid + 1, len(numbers))
            if row == len(numbers):
                numbers.extend((*at, state, uid, 0, 0, 0, 0))
            numbers[row + 4] += one.amount
            if hold is not None:
                for number, amount in enumerate(use.parts(one, hold), row + 5):
                    numbers[number] += amount

    def made(self, unknown_ms: int, assumed_time: int) -> PodDay:
        table = np.frombuffer(self._numbers, np.int64).reshape(-1, _COLUMNS)
        lists = list(self._places), list(self._nodes), list(self._uids)
        return PodDay(self._start_ms, *lists, table.T, unknown_ms, assumed_time)
