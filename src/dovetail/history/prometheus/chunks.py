# SPDX-License-Identifier: Apache-2.0
"""Records as series that a Prometheus scrapes.

Rules
- A UTC day is a list of chunks; a chunk has records of one kind that ended, or began, in one hour. It is named by the
  hash of its bytes, so it never changes: what changed is in another chunk. What did not change keeps its series.
- A chunk is MessagePack, compressed, as base64 in parts of `PART_CHARACTERS`: servers bound the length of a label
  value (Mimir: 2048). So no name that a user chose is a label, and there is not a series for each pod.
- `dovetail_history_part` has the parts; the value means nothing. `dovetail_history_day` names the chunk that lists
  those of a day (`Day`). Its value is the time up to which the history was known then, as epoch milliseconds, which a
  float64 has exactly; of several lists of one day the one with the highest value counts.
- A record of a day is as it was when the day ended: an end after that is in a later day.
"""

from __future__ import annotations

import binascii
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from types import GenericAlias
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from dovetail.history import pod_days
from dovetail.history.day_sums import DaySums
from dovetail.history.pod_days import PodDay
from dovetail.history.prometheus.job_index import JobIndex
from dovetail.history.records import Gap, GpuHold, GpuSpan, PodRecord, UseHour, UseSum

Kind = Literal["day", "span", "hold", "pod", "pod_jobs", "use", "pod_use", "gap", "sums", "pod_sums"]
DAY, PART = "dovetail_history_day", "dovetail_history_part"
PART_CHARACTERS = 2000
_DIGEST_BYTES = 12
_MOST_BYTES = 256 << 20
"""Of a chunk after it is unpacked: whoever can write into a Prometheus decides no more than this."""
_HELP = {
    DAY: "The chunk that lists a day of the history, and the time up to which all is known, in epoch milliseconds",
    PART: "A part of a chunk of the history",
}
_AT_ONCE = 200
_NAME = re.compile(r"[0-9a-f]{24}")
T = TypeVar("T", bound=Struct)


class ChunkError(Exception):
    """The text is not that of the chunk."""


class ChunkName(Struct, frozen=True, array_like=True):
    """`name` is the hash, `parts` how many series it has, `at_ms` the hour of its records, 0 for those without end. A
    kind that is none of Kind is that of a newer program, and not read."""

    kind: str
    at_ms: int
    name: str
    parts: int


class Day(Struct, frozen=True, array_like=True):
    """A day: its chunks, and the time of the first record of the whole history."""

    first_ms: int
    chunks: list[ChunkName]


class Chunk(Struct, frozen=True):
    """A chunk and its text."""

    of: ChunkName
    text: str

    def lines(self, store: str) -> Iterator[str]:
        """Its series in the history of this name, as Prometheus reads them."""
        for number, at in enumerate(range(0, len(self.text), PART_CHARACTERS)):
            data = self.text[at : at + PART_CHARACTERS]
            yield f'{PART}{{store="{store}",chunk="{self.of.name}",part="{number}",data="{data}"}} 1\n'


def header(metric: str) -> str:
    """The lines before the series of a metric."""
    return f"# HELP {metric} {_HELP[metric]}\n# TYPE {metric} gauge\n"


def day_line(store: str, day: str, chunk: Chunk, until_ms: int) -> str:
    """The series that names the list of a day (`2026-11-05`)."""
    labels = f'store="{store}",day="{day}",chunk="{chunk.of.name}",parts="{chunk.of.parts}"'
    return f"{DAY}{{{labels}}} {until_ms}\n"


def chunk(kind: Kind, at_ms: int, content: bytes) -> Chunk:
    """These bytes as a chunk."""
    packed = zlib.compress(content)
    text = b64encode(packed).decode()
    return Chunk(ChunkName(kind, at_ms, _name(packed), -(-len(text) // PART_CHARACTERS)), text)


def content(name: str, text: str) -> bytes:
    """The bytes of the chunk of this name. Raises ChunkError."""
    try:
        packed = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ChunkError("a part is no base64") from error
    if _name(packed) != name:
        raise ChunkError("a part is missing or was changed")
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(packed, _MOST_BYTES)
    except zlib.error as error:
        raise ChunkError("it cannot be unpacked") from error
    if not unpacking.eof:
        raise ChunkError(f"it has more than {_MOST_BYTES} bytes")
    return found


def is_name(text: str) -> bool:
    """Whether the text could be the name of a chunk."""
    return _NAME.fullmatch(text) is not None


def _name(packed: bytes) -> str:
    return blake2b(packed, digest_size=_DIGEST_BYTES).hexdigest()


class ColumnWriter(Generic[T]):
    """Takes records one by one, and keeps them as bytes: they are many, and as objects ten times as large."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._columns = [bytearray() for _ in names]
        self._waiting: list[T] = []
        self._length = 0

    def add(self, record: T) -> None:
        self._waiting.append(record)
        if len(self._waiting) == _AT_ONCE:
            self._write()

    def written(self) -> bytes:
        """The array of the columns, each of which is an array."""
        self._write()
        head = _array_head(self._length)
        return b"".join((_array_head(len(self._columns)), *(part for one in self._columns for part in (head, one))))

    def _write(self) -> None:
        some, self._waiting = self._waiting, []
        self._length += len(some)
        skipped = len(_array_head(len(some)))
        for column, name in zip(self._columns, self._names, strict=True):
            column += memoryview(msgspec.msgpack.encode([getattr(one, name) for one in some]))[skipped:]


def _array_head(length: int) -> bytes:
    """What MessagePack has before the elements of an array."""
    if length < 16:
        return bytes([0x90 | length])
    return b"\xdc" + length.to_bytes(2) if length < 1 << 16 else b"\xdd" + length.to_bytes(4)


class RecordColumns(Generic[T]):
    """Records of one type as bytes: column by column, which compresses well, and is checked when it is read. What an
    older program did not write yet, columns at the end, has its default."""

    def __init__(self, kind: type[T]) -> None:
        self._make: Any = kind
        self._columns = tuple(msgspec.msgpack.Decoder(GenericAlias(list, (one.type,))) for one in fields(kind))
        self._fewest = sum(one.required for one in fields(kind))

    def encoded(self, records: Iterable[T]) -> bytes:
        """Of one record at least."""
        writer = self.writer()
        for one in records:
            writer.add(one)
        return writer.written()

    def writer(self) -> ColumnWriter[T]:
        return ColumnWriter(self._make.__struct_fields__)

    def decoded(self, blob: bytes) -> list[T]:
        """Raises ChunkError."""
        try:
            parts = msgspec.msgpack.decode(blob, type=list[msgspec.Raw])
            if not self._fewest <= len(parts) <= len(self._columns):
                raise ValueError(f"{len(parts)} columns")
            columns = [column.decode(part) for column, part in zip(self._columns, parts, strict=False)]
            return [self._make(*row) for row in zip(*columns, strict=True)]
        except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError) as error:
            raise ChunkError(f"it is of another version than this program ({error})") from error


SPANS, HOLDS, PODS = RecordColumns(GpuSpan), RecordColumns(GpuHold), RecordColumns(PodRecord)
USE, POD_USE, GAPS = RecordColumns(UseHour), RecordColumns(UseSum), RecordColumns(Gap)


def decoded(blob: bytes, kind: type[T]) -> T:
    """A `Day`, `DaySums` or `JobIndex`. Raises ChunkError."""
    try:
        return msgspec.msgpack.decode(blob, type=kind)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError) as error:
        raise ChunkError(f"it is of another version than this program ({error})") from error


def decoded_pod_day(blob: bytes) -> PodDay:
    """Raises ChunkError."""
    try:
        return pod_days.decoded(blob, _MOST_BYTES)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError) as error:
        raise ChunkError(f"it is of another version than this program ({error})") from error


def encoded(value: Day | DaySums | JobIndex) -> bytes:
    return msgspec.msgpack.encode(value)
