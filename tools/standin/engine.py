# SPDX-License-Identifier: Apache-2.0
"""A host engine of DCGM on a stand-in machine, as clients of libdcgm.so.4 see it."""

from __future__ import annotations

import math
import struct
from functools import cached_property
from pathlib import Path

from tools.standin import layout, library
from tools.standin.faults import Faults


class Engine(Faults):
    """No engine runs until start_engine()."""

    @cached_property
    def dcgm(self) -> Path:
        """libdcgm.so.4, built at the first access. Raises StandinUnavailable."""
        return library.build_dcgm() / library.DCGM_NAME

    def start_engine(self, port: int = 5555, *, privileged: bool = True) -> Path:
        """Start the host engine at `port` of this machine, again if it runs: earlier connections end. Only a privileged
        one lets clients watch profiling fields. Returns the client library."""
        with self._changing() as state:
            state.engine_starts += 1
            state.engine_running, state.engine_port, state.engine_unprivileged = 1, port, not privileged
        return self.dcgm

    def stop_engine(self) -> None:
        """End the host engine."""
        with self._changing() as state:
            state.engine_running = 0

    def profiling(self, gpu: int, field: int, value: float = math.nan, *, code: int = 0, gi: int | None = None) -> None:
        """Let the latest value of a watched profiling field be this one, or fail with `code`, until clear(). Values of
        PCIe and NVLink are integers."""
        bits = struct.pack("<q", int(value)) if field in _INTEGERS else struct.pack("<d", value)
        self._override(layout.DCGM, gpu, field, bits, code, gi)


_INTEGERS = range(1009, 1013)
