# SPDX-License-Identifier: Apache-2.0
"""A directory of segments with one writer and a size limit.

Segments are named `NNNNNN.jsonl`, numbered consecutively over all runs. A segment that was compressed with gzip later
counts too. Before each write the oldest segments are deleted, those of earlier runs first, so that the directory never
exceeds the limit. A lock on the directory excludes a second writer. Only the owner can read segments (mode 0600): they
hold the names and labels of pods.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

MIB = 2**20
SEGMENT = re.compile(r"(\d{6,})\.jsonl(\.gz)?")


class CannotRecord(Exception):
    """Recording is impossible. The message has the reason and the remedy."""


class RecordingFolder:
    """Writes segments. Every method raises OSError or CannotRecord."""

    def __init__(self, path: Path, bound_bytes: int) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._bound_bytes = bound_bytes
        self._limit_bytes = 0
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise CannotRecord(f"another process records into {path}: give each its own directory") from None
        self._file: Path | None = None
        self._closed = self._others()
        """Sizes of the closed segments in bytes, the oldest first."""
        self._number = max(map(_number, self._closed), default=0)
        self._descriptor = -1
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether the caller should begin the next segment."""
        return self._bytes > self._limit_bytes

    def begin(self, header: bytes) -> None:
        """Close the segment and begin the next one. A segment is full at a quarter of the limit, or at twice the size
        of its header if that is larger."""
        self._end_segment()
        self._limit_bytes = max(self._bound_bytes // 4, 2 * len(header))
        if self._limit_bytes > self._bound_bytes:
            raise self._too_large("a checkpoint with as much again for steps", self._limit_bytes)
        self._make_room(len(header))
        self._number += 1
        file = self._path / f"{self._number:06}.jsonl"
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = file
        try:
            self.append(header)
        except OSError:
            file.unlink(missing_ok=True)
            raise

    def append(self, data: bytes) -> None:
        self._make_room(len(data))
        rest = memoryview(data)
        while rest:
            written = os.write(self._descriptor, rest)
            self._bytes += written
            rest = rest[written:]

    def close(self) -> None:
        self._end_segment()
        os.close(self._lock)

    def _end_segment(self) -> None:
        if self._file is not None:
            os.close(self._descriptor)
            self._closed[self._file] = self._bytes
        self._file, self._bytes = None, 0

    def _others(self) -> dict[Path, int]:
        sizes: dict[Path, int] = {}
        for file in segments(self._path):
            if file != self._file:
                with suppress(FileNotFoundError):
                    sizes[file] = file.stat().st_size
        return sizes

    def _make_room(self, more_bytes: int) -> None:
        def over() -> bool:
            return self._bytes + sum(self._closed.values()) + more_bytes > self._bound_bytes

        if over():
            # Segments may have been compressed or removed from outside.
            self._closed = self._others()
        while over():
            oldest = next(iter(self._closed), None)
            if oldest is None:
                raise self._too_large("a segment", self._bytes + more_bytes)
            oldest.unlink(missing_ok=True)
            del self._closed[oldest]

    def _too_large(self, what: str, needed_bytes: int) -> CannotRecord:
        return CannotRecord(
            f"{what} would take {-(-needed_bytes // MIB)} MiB of the {self._bound_bytes / MIB:g} MiB of the recording: "
            "raise --recording-mib to four times what it needs"
        )


def segments(path: Path) -> list[Path]:
    """The segments in a directory, the oldest first."""
    return sorted((file for file in path.iterdir() if SEGMENT.fullmatch(file.name)), key=_number)


def _number(file: Path) -> int:
    match = SEGMENT.fullmatch(file.name)
    assert match is not None
    return int(match[1])
