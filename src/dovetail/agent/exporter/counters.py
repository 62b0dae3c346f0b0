# SPDX-License-Identifier: Apache-2.0
"""Counters that never go back.

Rules
- The driver counts from 0 again when it is loaded. Then a counter goes on from its last value: an offset is added.
- Offsets and last values are kept in a file over restarts of the agent. The file is written at most every `_WRITE_S`,
  and at the end; a failure is a fault, and the agent goes on. A damaged file is set aside.
- Devices that were not read for `_FORGET_S` are forgotten.
Calls may come from several threads.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from msgspec import Struct

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.exporter.kinds import table
from dovetail.agent.exporter.reading import DeviceReading

_WRITE_S = 60.0
_FORGET_S = 30 * 86400.0
_THROTTLE = {
    "power": "DCGM_FI_DEV_POWER_VIOLATION",
    "thermal": "DCGM_FI_DEV_THERMAL_VIOLATION",
    "sync_boost": "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
    "board_limit": "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
    "low_utilization": "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
    "reliability": "DCGM_FI_DEV_RELIABILITY_VIOLATION",
    "hw_thermal": "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",
    "hw_power_brake": "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
}
_NS = 1e-9


class DeviceCounters(Struct):
    """By name of kind: the offset, and the last value of the driver. `seen_s` is Unix time."""

    last: dict[str, tuple[float, float]] = {}
    seen_s: float = 0.0


class CounterMemory(Struct):
    """The content of the file: counters by uuid."""

    devices: dict[str, DeviceCounters] = {}


class Counters:
    """The counters of all devices, kept at `path`."""

    def __init__(self, path: Path) -> None:
        self._file = CheckpointFile(path, CounterMemory)
        memory, wrong = self._file.rescue()
        self._memory = memory or CounterMemory()
        self._lock = threading.Lock()
        self._written_s = time.monotonic()
        self._names = frozenset(kind.name for kind in table().values() if kind.type == "counter")
        self._read_fault = f"counters may have gone back: {wrong}" if wrong else ""
        self._write_fault = ""

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for fault in (self._read_fault, self._write_fault) if fault)

    def apply(self, device: DeviceReading) -> None:
        """Replace the driver's counters by those that never go back, and add what is made of them."""
        with self._lock:
            known = self._memory.devices.setdefault(device.uuid, DeviceCounters())
            known.seen_s = time.time()
            for name in self._names & device.values.keys():
                raw = device.values[name]
                offset, last = known.last.get(name, (0.0, raw))
                if raw < last:
                    offset += last
                known.last[name] = offset, raw
                if offset:
                    device.values[name] = offset + raw
        throttled = [(reason, device.values.get(name)) for reason, name in _THROTTLE.items()]
        if times := tuple(("reason", reason, ns * _NS) for reason, ns in throttled if ns is not None):
            device.labelled["dovetail_gpu_throttle_seconds_total"] = times

    def write(self, *, now: bool = False) -> None:
        """Write the file if it is due."""
        if not now and time.monotonic() - self._written_s < _WRITE_S:
            return
        self._written_s = time.monotonic()
        with self._lock:
            oldest_s = time.time() - _FORGET_S
            devices = {uuid: each for uuid, each in self._memory.devices.items() if each.seen_s >= oldest_s}
            self._memory = CounterMemory(devices)
            try:
                self._file.write(self._memory)
                self._write_fault = ""
            except CheckpointError as error:
                self._write_fault = f"counters may go back at the next restart of the agent: {error}"
