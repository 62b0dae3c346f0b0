# SPDX-License-Identifier: Apache-2.0
"""What the pods use of the GPUs, from the processes that NVML lists.

Rules
- Each pod with processes on a GPU or MIG instance has its memory and SM use as series. On a device with several owners
  DCGM_FI_DEV_GPU_UTIL and DCGM_FI_DEV_FB_USED of an owner are its own.
- Without the host's pid namespace NVML lists no process: then there are no such series, rather than zeros.
- A process that holds no part of its device is reported once it was seen for `PERSISTS_S`: PodResources and the watch
  of pods may lag behind a pod that starts or ends. `changed` is called at most that often, as a pod may start a new
  process every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dovetail.agent.exporter.owners import Names, NodePod
from dovetail.agent.exporter.processes import HOLDERS, Foreign, Origins, OwnProcess, ProcessUse, process_use
from dovetail.agent.exporter.reading import GpuReading, Owners, PodValues, Sample

PERSISTS_S = 30.0
NOT_VISIBLE = "the agent does not see the processes of the host: give its pod hostPID"
_MIB = 1 << 20


def sees_host(proc: Path) -> bool:
    """Whether this process is in the host's pid namespace: there pid 2 is the kernel's kthreadd."""
    try:
        return (proc / "2" / "comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


class PodAccounting:
    """Joins processes with pods at each reading. `pods` returns the pods of the node by name, `proc` is where procfs
    is mounted."""

    def __init__(
        self,
        pods: Callable[[], Mapping[Names, NodePod]],
        proc: Path = Path("/proc"),
        clock_s: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._pods = pods
        self._proc = proc
        self._origins = Origins(proc, clock_s)
        self._clock_s = clock_s
        self._changed = changed
        self._reported: frozenset[tuple[str, int]] = frozenset()
        self._reported_s = float("-inf")
        self._seen_s: dict[tuple[str, int], float] = {}
        self.foreign: tuple[Foreign, ...] = ()
        """The processes on devices that their pods do not hold, seen for PERSISTS_S."""
        self.own: tuple[OwnProcess, ...] = ()
        """The processes on devices that their pods hold."""

    @property
    def sees_host(self) -> bool:
        """Whether this process sees the processes of the host now."""
        return sees_host(self._proc)

    def __call__(self, readings: Sequence[GpuReading], owners: Owners) -> PodValues:
        """Blocks shortly: it reads the cgroups of new processes."""
        if not self.sees_host:
            self.foreign, self.own = (), ()
            self._report()
            return PodValues()
        processes = [process for reading in readings for process in reading.processes]
        parents = {one.uuid: one.parent for reading in readings for one in reading.devices if one.parent}
        origins = self._origins.of([process.pid for process in processes])
        use = process_use(processes, origins, owners.by_device, self._pods(), parents)
        self.foreign, self.own = tuple(self._persisting(use.foreign)), use.own
        self._report()
        devices = [one.uuid for reading in readings for one in reading.devices]
        return PodValues(_own_values(owners, use), tuple(_samples(devices, use)))

    def _report(self) -> None:
        """Call `changed` if other processes are foreign than at the last call."""
        now_s, foreign = self._clock_s(), frozenset((one.uuid, one.pid) for one in self.foreign)
        if foreign != self._reported and now_s - self._reported_s >= PERSISTS_S:
            self._reported, self._reported_s = foreign, now_s
            self._changed()

    def _persisting(self, foreign: Iterable[Foreign]) -> Iterator[Foreign]:
        now_s = self._clock_s()
        listed = {(one.uuid, one.pid): one for one in foreign}
        self._seen_s = {key: self._seen_s.get(key, now_s) for key in listed}
        for key, one in listed.items():
            if now_s - self._seen_s[key] >= PERSISTS_S:
                yield one


def _own_values(owners: Owners, use: ProcessUse) -> dict[tuple[str, str], dict[str, float]]:
    """The values of each owner of a shared device."""
    used = {(one.uuid, one.pod_uid): one for one in use.uses}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for uuid, each in owners.by_device.items():
        for owner in each if len(each) > 1 else ():
            one = used.get((uuid, owner.pod_uid))
            values = {"DCGM_FI_DEV_FB_USED": 0.0, "DCGM_FI_DEV_GPU_UTIL": 0.0}
            if one is not None:
                values = {
                    "DCGM_FI_DEV_FB_USED": (one.memory_bytes or 0) // _MIB,
                    "DCGM_FI_DEV_GPU_UTIL": min(one.sm_percent or 0, 100),
                }
            found[uuid, owner.pod_uid] = values
    return found


def _samples(devices: Iterable[str], use: ProcessUse) -> Iterator[Sample]:
    for one in use.uses:
        labels = (("namespace", one.namespace), ("pod", one.pod), ("pod_uid", one.pod_uid))
        if one.memory_bytes is not None:
            yield Sample("dovetail_gpu_pod_memory_used_bytes", one.memory_bytes, one.uuid, labels, owned=False)
        if one.sm_percent is not None:
            yield Sample("dovetail_gpu_pod_sm_ratio", min(one.sm_percent, 100) / 100, one.uuid, labels, owned=False)
    for uuid in devices:
        # A device without processes has zeros, so that an alert on the others ends.
        for holder in HOLDERS:
            by = (("holder", str(holder)),)
            yield Sample("dovetail_gpu_processes", use.counts.get((uuid, holder), 0), uuid, by, owned=False)
            if holder not in ("owner", "system"):
                unowned = use.memory_bytes.get((uuid, holder), 0)
                yield Sample("dovetail_gpu_unowned_memory_bytes", unowned, uuid, by, owned=False)
