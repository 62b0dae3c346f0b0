# SPDX-License-Identifier: Apache-2.0
"""What each pod uses of a device that several hold, from the processes in one reading.

Rules
- The use of a pod is that of the SMs by its processes, as NVML reports it since the reading before, as a part of what
  the pod holds: at most all of that.
- It is known only if it is known of all: the processes of the host are seen, NVML reports the use of each process on
  the device, each is one of a pod that holds a part of it, and there is use by processes where the device has any.
  Otherwise nothing of the device is measured. So nothing is with MPS, whose server is a process of another pod or of
  none: whether NVML divides its use by client is not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import Struct

from dovetail.agent.exporter.accounting import sees_host
from dovetail.agent.exporter.processes import Origins
from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Owner, Process

_UTILIZATION = "DCGM_FI_DEV_GPU_UTIL"
_LEAST_PERCENT = 5
"""Less of a device may go unseen between the samples of its processes."""
_MIB = 1 << 20


class PartUse(Struct, frozen=True):
    """`use` is the part of what the pod holds that its processes use, 0 to 1."""

    use: float
    memory_mib: int


class SharedUse:
    """`proc` is where procfs is mounted. One thread at a time calls it."""

    def __init__(self, proc: Path = Path("/proc"), clock_s: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._origins = Origins(proc, clock_s)

    def of(self, device: DeviceReading, reading: GpuReading, owners: Collection[Owner]) -> dict[str, PartUse]:
        """By pod (uid); empty if it is not known. Blocks shortly: it reads the cgroups of new processes."""
        if not sees_host(self._proc):
            return {}
        processes = [one for one in reading.processes if one.uuid == device.uuid]
        by_pod = self._by_pod(processes, {one.pod_uid for one in owners})
        unseen = not any(one.sm_percent for one in processes) and device.values.get(_UTILIZATION, 0) >= _LEAST_PERCENT
        if by_pod is None or unseen:
            return {}
        return {uid: _part(by_pod[uid], [one for one in owners if one.pod_uid == uid]) for uid in by_pod}

    def _by_pod(self, processes: Collection[Process], pods: Collection[str]) -> dict[str, list[Process]] | None:
        """The processes of each pod; None where one of them is of no such pod, or its use is not known."""
        origins = self._origins.of([one.pid for one in processes])
        found: dict[str, list[Process]] = {uid: [] for uid in pods}
        for one in processes:
            origin = origins.get(one.pid)
            if origin is None:
                continue  # It has ended.
            if origin.uid not in found or one.sm_percent is None:
                return None
            found[origin.uid].append(one)
        return found


def _part(processes: Collection[Process], shares: Collection[Owner]) -> PartUse:
    held = sum(one.share for one in shares)
    percent = sum(one.sm_percent or 0 for one in processes)
    memory = sum(one.memory_bytes or 0 for one in processes)
    return PartUse(min(1.0, percent / 100 / held) if held else 0.0, memory // _MIB)
