# SPDX-License-Identifier: Apache-2.0
"""The file that a stand-in library maps, as a test changes it: under its lock, and with the waiters woken."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.standin import layout


class Mapped:
    """The open file, and the calls of the library that its counters need."""

    def _open(self, state_file: Path, library: Path) -> None:
        self._file = state_file.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), ctypes.sizeof(layout.Host))
        self._state = layout.Host.from_buffer(self._map)
        self._address = ctypes.addressof(self._state)
        built = ctypes.CDLL(str(library))
        self._wake, self._clock = built.standin_wake, built.standin_clock
        self._settle_gpu, self._aggregate_gpu = built.standin_settle, built.standin_aggregate
        self._wake.argtypes = self._clock.argtypes = [ctypes.c_void_p]
        self._settle_gpu.argtypes = self._aggregate_gpu.argtypes = [ctypes.c_void_p, ctypes.c_uint]
        self._clock.restype = ctypes.c_int64

    @contextmanager
    def _changing(self) -> Iterator[layout.Host]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._state
        finally:
            self._state.changes = (self._state.changes + 1) % 2**32
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._wake(self._address + layout.Host.changes.offset)

    def _settle(self, gpu: int) -> None:
        """Store the counters of the GPU as of now: before a rate, the power, a reason or a link changes."""
        self._settle_gpu(self._address, gpu)

    def _aggregate(self, gpu: int) -> None:
        """Set the load of a divided GPU to that of its instances: after they changed."""
        self._aggregate_gpu(self._address, gpu)


def or_none(number: int | None) -> int:
    """The number as in the file: layout.NONE if there is none."""
    return layout.NONE if number is None else number
