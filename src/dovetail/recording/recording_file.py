# SPDX-License-Identifier: Apache-2.0
"""A recording in one file, for a run whose clock does not wait for the disk: a simulation.

Rules: the state is empty before its first step, and all of its calls are steps. Each is written before `step` returns.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, cast

from dovetail import __version__
from dovetail.core.cycle import step
from dovetail.core.decisions import Decision
from dovetail.core.events import Event
from dovetail.core.state import State
from dovetail.recording.calls import CoreCall, line_of
from dovetail.recording.format import FORMAT, HEADER, Header, RecordedLine


class RecordingFile:
    """A new file, compressed with gzip where its name ends in .gz. `run` names the run. Methods raise OSError."""

    def __init__(self, path: Path, run: str) -> None:
        packed = path.suffix == ".gz"
        self._file = cast(IO[bytes], gzip.open(path, "xb")) if packed else path.open("xb")  # noqa: SIM115
        self._run = run
        self._digest: str | None = None

    def __enter__(self) -> RecordingFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def step(self, state: State, events: Iterable[Event], now_ms: int) -> list[Decision]:
        """`cycle.step`, recorded."""
        events, number = tuple(events), state.steps + 1
        if self._digest is None:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            self._file.write(HEADER.encode(Header(__version__, FORMAT, self._run, 1, started, state.policy)) + b"\n")
            self._digest = ""
        decisions = step(state, events, now_ms)
        line, self._digest = line_of(CoreCall(RecordedLine(now_ms, number, events=events), decisions), self._digest)
        self._file.write(line)
        return decisions
