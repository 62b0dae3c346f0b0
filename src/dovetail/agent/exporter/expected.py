# SPDX-License-Identifier: Apache-2.0
"""How many GPUs a node should have, kept over restarts of the agent and reboots of the node.

Rules: the configured number counts. Without it, the number is the most GPUs that were ever seen, and a file keeps it.
Removing the file while the agent is stopped resets the number. A file that cannot be written is a fault, and the agent
goes on with the number in memory; the write is repeated after `AGAIN_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile

AGAIN_S = 60.0


class SeenGpus(Struct):
    """The content of the file: the most GPUs that were seen."""

    most: int = 0


class ExpectedGpus:
    """`configured` is the number of GPUs, 0 if it is not configured; the file is at `path`."""

    def __init__(self, path: Path, configured: int = 0, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._configured = configured
        self._file = CheckpointFile(path, SeenGpus)
        memory, wrong = self._file.rescue()
        self._written = memory.most if memory is not None else 0
        self._most = self._written
        self._clock_s = clock_s
        self._failed_s = float("-inf")
        self._read_fault = f"the number of expected GPUs may be too low: {wrong}" if wrong else ""
        self._write_fault = ""

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for fault in (self._read_fault, self._write_fault) if fault)

    def count(self, seen: int) -> int:
        """The number of GPUs that the node should have, after `seen` GPUs were seen."""
        self._most = max(self._most, seen)
        if self._most != self._written and self._clock_s() - self._failed_s >= AGAIN_S:
            self._write()
        return self._configured or self._most

    def _write(self) -> None:
        try:
            self._file.write(SeenGpus(self._most))
            self._written, self._write_fault = self._most, ""
        except CheckpointError as error:
            self._failed_s = self._clock_s()
            self._write_fault = f"the number of expected GPUs will be forgotten at the next restart: {error}"
