# SPDX-License-Identifier: Apache-2.0
"""How often each XID was reported for each device, kept over restarts of the agent.

Rules: an XID counts for the MIG instances that it affects, else for the GPU. The file is written at each XID, but
at most once per second; the rest is written with the next scrape, and at the end (`write`). A failure is a fault, and
the counts go on in memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.exporter.reading import Sample
from dovetail.agent.health.gpu_events import XID, GpuEvent
from dovetail.agent.health.xids import XidTable

WINDOW_S = 300.0
_WRITE_S = 1.0
_MOST_RECENT = 10_000


class XidCount(Struct):
    """`last_s` is Unix time."""

    count: int = 0
    last_s: float = 0.0


class XidMemory(Struct):
    """The content of the file: counts by uuid and code."""

    devices: dict[str, dict[int, XidCount]] = {}


class XidCounts:
    """The counts of all devices, kept at `path`; the actions are those of `table`."""

    def __init__(self, path: Path, table: XidTable) -> None:
        self._file = CheckpointFile(path, XidMemory)
        memory, wrong = self._file.rescue()
        self._memory = memory or XidMemory()
        self._table = table
        self._recent: deque[tuple[float, str, int]] = deque(maxlen=_MOST_RECENT)
        self._last: dict[str, int] = {}
        self._written_s = float("-inf")
        self._changed = False
        self._read_fault = f"XIDs may have been forgotten: {wrong}" if wrong else ""
        self._write_fault = ""

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for fault in (self._read_fault, self._write_fault) if fault)

    def event(self, event: GpuEvent) -> None:
        """Count the event if it is an XID."""
        if event.kind != XID:
            return
        for uuid in event.hit or (event.gpu,):
            count = self._memory.devices.setdefault(uuid, {}).setdefault(event.number, XidCount())
            count.count += 1
            count.last_s = time.time()
            self._last[uuid] = event.number
            self._recent.append((time.monotonic(), uuid, event.number))
        self._changed = True
        self.write(now=False)

    def samples(self) -> Iterator[Sample]:
        """The metrics of all devices that had an XID."""
        self.write(now=False)
        for uuid, counts in self._memory.devices.items():
            for xid, count in counts.items():
                labels = (("xid", str(xid)), ("action", self._table.meaning(xid).action.word))
                yield Sample("dovetail_gpu_xids_total", count.count, uuid, labels)
                yield Sample("dovetail_gpu_xid_last_seconds", count.last_s, uuid, labels)
        for uuid, xid in self._last.items():
            yield Sample("DCGM_FI_DEV_XID_ERRORS", xid, uuid)
        while self._recent and self._recent[0][0] < time.monotonic() - WINDOW_S:
            self._recent.popleft()
        window: dict[tuple[str, int], int] = {}
        for _, uuid, xid in self._recent:
            window[uuid, xid] = window.get((uuid, xid), 0) + 1
        length = ("window_size_in_ms", str(int(WINDOW_S * 1000)))
        for (uuid, xid), number in window.items():
            yield Sample("DCGM_EXP_XID_ERRORS_COUNT", number, uuid, (("xid", str(xid)), length))

    def write(self, *, now: bool = True) -> None:
        """Write the file if anything changed, and (without `now`) if it is due."""
        if not self._changed or (not now and time.monotonic() - self._written_s < _WRITE_S):
            return
        self._written_s, self._changed = time.monotonic(), False
        try:
            self._file.write(self._memory)
            self._write_fault = ""
        except CheckpointError as error:
            self._changed = True
            self._write_fault = f"XIDs will be forgotten at the next restart of the agent: {error}"
