# SPDX-License-Identifier: Apache-2.0
"""Recorder of the calls of the core (`calls`). It writes in the background.

An observed call is only appended to a queue; a thread encodes and writes twice a second. A failure of the recording
ends only the recording, and is reported once. When a segment is full, the recorder is due to begin the next one, whose
header has the checkpoint that the live state goes on from.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dovetail import __version__
from dovetail.core.checkpoint import Checkpoint
from dovetail.core.policy import Policy
from dovetail.recording.calls import CoreCall, line_of
from dovetail.recording.folder import CannotRecord, RecordingFolder
from dovetail.recording.format import FORMAT, HEADER, Header, raised_as

_PAUSE_S = 0.5
_MOST_WAITING = 20_000
"""Limit of unwritten calls: minutes of a busy scheduler on a disk that hangs."""
_LAST_WRITE_S = 5.0


class _Next(Struct, frozen=True):
    """Marks the start of the next segment in the queue."""

    checkpoint: Checkpoint | None


class Recorder:
    """Records the calls for one state, which must be empty at first. `wrote` is called with the number of bytes after
    each write. `stopped` is called once with the reason if recording ends before `close`. Both calls come mostly from
    the writing thread.
    """

    def __init__(
        self,
        path: Path,
        bound_bytes: int,
        run: str,
        policy: Policy,
        *,
        wrote: Callable[[int], object],
        stopped: Callable[[str], object],
    ) -> None:
        self._path = path
        self._bound_bytes = bound_bytes
        self._run = run
        self._policy = policy
        self._wrote = wrote
        self._stopped = stopped
        self._on = True
        self._ending = threading.Lock()
        self._waiting: deque[CoreCall | _Next] = deque([_Next(None)])
        self._begun = 1
        """Number of the newest segment that the caller began. `_full` is the last one that the thread found full."""
        self._full = 0
        self._put_calls = 0
        self._written_calls = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of calls that are not written yet."""
        return self._put_calls - self._written_calls

    @property
    def due(self) -> bool:
        """Whether the segment is full, and the next one has to begin."""
        return self._on and self._full >= self._begun

    def begin(self, checkpoint: Checkpoint) -> None:
        """Begin the next segment, with the checkpoint in its header."""
        if self._on:
            self._begun += 1
            self._waiting.append(_Next(checkpoint))

    def cannot_begin(self, why: str) -> None:
        """End the recording, as the next segment cannot begin."""
        self._stop(why)

    def observe(self, call: CoreCall) -> None:
        """Record a call."""
        if not self._on:
            return
        self._put_calls += 1
        self._waiting.append(call)
        if self.waiting > _MOST_WAITING:
            self._stop(f"the disk does not keep up: {self.waiting} steps wait to be written")

    def close(self) -> None:
        """Write the remaining calls, for at most `_LAST_WRITE_S` seconds."""
        self._closing.set()
        self._thread.join(_LAST_WRITE_S)

    def _stop(self, why: str) -> None:
        with self._ending:
            if not self._on:
                return
            self._on = False
        self._waiting.clear()
        self._stopped(why)

    def _work(self) -> None:
        try:
            folder = RecordingFolder(self._path, self._bound_bytes)
            try:
                self._write(folder)
            finally:
                folder.close()
        except CannotRecord as error:
            self._stop(str(error))
        except OSError as error:
            self._stop(f"{error}: give it room, or another directory with --recording")
        except Exception as error:
            # A bug of the recording must not end the scheduler.
            self._stop(raised_as(error))

    def _write(self, folder: RecordingFolder) -> None:
        segment, digest = 0, ""
        while True:
            ending = self._closing.is_set()
            lines: list[bytes] = []
            calls = 0
            while (item := self._next()) is not None:
                if isinstance(item, _Next):
                    self._append(folder, lines)
                    segment += 1
                    header = self._header(segment, digest, item.checkpoint)
                    folder.begin(header)
                    self._wrote(len(header))
                else:
                    line, digest = line_of(item, digest)
                    lines.append(line)
                    calls += 1
            self._append(folder, lines)
            if folder.full:
                self._full = segment
            self._written_calls += calls
            if ending or not self._on:
                return
            self._closing.wait(_PAUSE_S)

    def _next(self) -> CoreCall | _Next | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _header(self, segment: int, digest: str, checkpoint: Checkpoint | None) -> bytes:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        header = Header(__version__, FORMAT, self._run, segment, started, self._policy, digest, checkpoint)
        return HEADER.encode(header) + b"\n"

    def _append(self, folder: RecordingFolder, lines: list[bytes]) -> None:
        if lines:
            data = b"".join(lines)
            lines.clear()
            folder.append(data)
            self._wrote(len(data))
