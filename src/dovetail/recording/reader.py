# SPDX-License-Identifier: Apache-2.0
"""Reader of recordings: groups files into runs, and yields the checked lines of segments.

A run is the output of one process. Its segments are consecutive by number and digest. An unusable file or line is an
error that names both. A segment may be compressed with gzip. The end of a segment may be truncated, since a process or
a machine may stop at any moment: the reader yields the complete lines and sets `cut`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TypeVar, cast

import msgspec
from msgspec import Struct, field

from dovetail import __version__
from dovetail.core.json_text import JsonError, decode_json
from dovetail.recording.folder import segments
from dovetail.recording.format import FORMAT, HEADER, LINE, Header, RecordedLine, chained

T = TypeVar("T")


class BadRecording(Exception):
    """A recording is unusable. The message has the file, the line (if not 0) and the reason."""

    def __init__(self, file: Path, line: int, why: str) -> None:
        super().__init__(f"{file}: line {line}: {why}" if line else f"{file}: {why}")


class _Before(msgspec.Struct, frozen=True):
    """The part of a checkpoint that `Brief` decodes: the number of steps before it."""

    steps: int


class Brief(msgspec.Struct, frozen=True):
    """The part of a header that is decoded before its format is checked. It leaves out most of the checkpoint."""

    dovetail: str
    format: int
    run: str = ""
    segment: int = 0
    started: str = ""
    checkpoint: _Before | None = None

    @property
    def first_step(self) -> int:
        """The lowest step number that the segment can have."""
        return 1 + (self.checkpoint.steps if self.checkpoint is not None else 0)


class LinePlace(Struct, frozen=True):
    """The place after line `number` of a segment: where the next line begins in its unpacked bytes, and the last step
    before it with its digest."""

    number: int
    offset_bytes: int
    step: int
    digest: str


class Segment(Struct):
    """One file. `cut` (the end is truncated) is valid after all lines were read. `offset_bytes` is where the line after
    the one that was yielded last begins in the unpacked bytes."""

    file: Path
    brief: Brief
    size_bytes: int
    cut: bool = False
    offset_bytes: int = 0

    def read(self, at: Callable[[int], object]) -> tuple[Header, Iterator[tuple[int, RecordedLine]]]:
        """The header, and each line with its number. `at` is called with the number of bytes read so far."""
        lines = self._whole_lines(at)
        header = self._decode(HEADER.decode, next(lines, b""), 1)
        steps = header.checkpoint.steps if header.checkpoint else 0
        return header, self._calls(LinePlace(1, 0, steps, header.digest), lines)

    def read_after(self, place: LinePlace) -> Iterator[tuple[int, RecordedLine]]:
        """Each line after this place, with its number."""
        return self._calls(place, self._whole_lines(lambda _: None, place.offset_bytes, place.number + 1))

    def _calls(self, place: LinePlace, lines: Iterator[bytes]) -> Iterator[tuple[int, RecordedLine]]:
        digest, step = place.digest, place.step
        for number, data in enumerate(lines, place.number + 1):
            line = self._decode(LINE.decode, data, number)
            if line.applied if line.step else not line.applied or line.events or line.digest:
                raise BadRecording(self.file, number, "is neither a step nor events without one")
            if line.step:
                digest, step = chained(digest, line.decisions), step + 1
                if (line.step, line.digest) != (step, digest):
                    why = f"does not follow: step {step} with digest {digest} is due, not step {line.step} with digest "
                    why += f"{line.digest}: this line was changed, or a step before it was taken out"
                    raise BadRecording(self.file, number, why)
            yield number, line

    def _whole_lines(self, at: Callable[[int], object], offset_bytes: int = 0, number: int = 1) -> Iterator[bytes]:
        self.offset_bytes = offset_bytes
        try:
            with self.file.open("rb") as raw:
                unpacked = _unpacked(self.file, raw)
                if offset_bytes:
                    unpacked.seek(offset_bytes)
                for line in unpacked:
                    at(raw.tell())
                    if not line.endswith(b"\n"):
                        self.cut = True
                        return
                    self.offset_bytes += len(line)
                    yield line
                    number += 1
        except EOFError:
            self.cut = True
        except (OSError, zlib.error) as error:
            raise BadRecording(self.file, number, f"cannot be read: {error}") from error

    def _decode(self, decode: Callable[[bytes], T], data: bytes, number: int) -> T:
        try:
            return decode(data)
        except JsonError as error:
            by = self.brief.dovetail
            written = "" if by == __version__ else f" (written by dovetail {by}; this is {__version__})"
            raise BadRecording(self.file, number, f"{error}{written}") from error


class RecordedRun(Struct):
    """The available segments of one process, sorted by number."""

    name: str
    segments: list[Segment] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


def find(paths: Iterable[Path]) -> tuple[list[RecordedRun], list[BadRecording]]:
    """The runs in these directories and files, in the order in which they were written, and the errors of the files
    that belong to no run."""
    runs: dict[str, RecordedRun] = {}
    wrong: list[BadRecording] = []
    for path in paths:
        files = segments(path) if path.is_dir() else [path]
        if not files:
            wrong.append(BadRecording(path, 0, "holds no recording: no file is named like 000001.jsonl"))
        for file in files:
            try:
                segment = _segment(file)
            except BadRecording as error:
                wrong.append(error)
            else:
                runs.setdefault(segment.brief.run, RecordedRun(segment.brief.run)).segments.append(segment)
    for run in runs.values():
        run.segments.sort(key=lambda segment: segment.brief.segment)
    return list(runs.values()), wrong


def _segment(file: Path) -> Segment:
    try:
        size_bytes = file.stat().st_size
        with file.open("rb") as raw:
            line = next(_unpacked(file, raw), b"")
    except (OSError, EOFError, zlib.error) as error:
        raise BadRecording(file, 0, f"cannot be read: {error}") from error
    if not line:
        raise BadRecording(file, 0, "is empty: no header, nothing to replay")
    if not line.endswith(b"\n"):
        raise BadRecording(file, 1, "the header is cut short, or this is no recording: nothing to replay")
    try:
        brief = decode_json(line, Brief)
    except JsonError as error:
        raise BadRecording(file, 1, f"is no recording: its first line is no header: {error}") from error
    if brief.format != FORMAT:
        why = f"has format {brief.format} (written by dovetail {brief.dovetail}); dovetail {__version__} reads format "
        raise BadRecording(file, 1, f"{why}{FORMAT}: replay it with the version that wrote it")
    return Segment(file, brief, size_bytes)


def _unpacked(file: Path, raw: IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(raw)) if file.suffix == ".gz" else raw
