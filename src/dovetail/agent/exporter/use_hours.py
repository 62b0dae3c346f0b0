# SPDX-License-Identifier: Apache-2.0
"""How pods use the GPUs of this node, hour by hour: integrals of what was read, for the process that keeps the history.

Rules
- Each reading of a device counts for the time since the one before, if that is at most `LONGEST_S`: what was not
  measured is not guessed.
- A device is used by the pod that holds it. The time in which its owner changed, or is not known, is not counted. Of a
  device that several pods hold each has the use of its own processes, where that is known of all (`shared_use`): as a
  utilization, as NVML divides nothing else.
- A pod is known as the owner of a device when the kubelet is asked the next time, at most `OWNERS_S` late.
- What a pod uses of the node's CPUs and memory is divided equally over the devices that it holds, so that it adds up.
- What a MIG instance does is the use of the pod that holds the instance, under the UUID of its GPU.
- The last `KEPT_HOURS` are kept, in a file too, at most `_MOST` records; the oldest hours go first.
- Lengths are of the monotonic clock; the wall clock gives the hour.
Calls may come from several threads.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.exporter.host_use import HostUse
from dovetail.agent.exporter.idle_pods import idle_pods
from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Owners
from dovetail.agent.exporter.shared_use import SharedUse
from dovetail.history.records import HOST_CPU, HOST_MEMORY, HOUR_MS, USE_BINS, UseHour
from dovetail.monitoring.real_use import PARTS, default, weighted

LONGEST_S = 60.0
OWNERS_S = 10.0
KEPT_HOURS = 24
_MOST = 8192
_WRITE_S = 60.0
_MILLI = 1000
_UTILIZATION, _ENGINE, _MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_FB_USED"
ACTIVITIES: dict[str, tuple[str, int]] = {
    **{part.activity: (part.metric, _MILLI) for part in PARTS},
    "utilization": (_UTILIZATION, 10),
    "memory_copy": ("DCGM_FI_DEV_MEM_COPY_UTIL", 10),
    "fp64": ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", _MILLI),
    "pcie_tx": ("DCGM_FI_PROF_PCIE_TX_BYTES", 1),
    "pcie_rx": ("DCGM_FI_PROF_PCIE_RX_BYTES", 1),
    "nvlink_tx": ("DCGM_FI_PROF_NVLINK_TX_BYTES", 1),
    "nvlink_rx": ("DCGM_FI_PROF_NVLINK_RX_BYTES", 1),
}
"""By activity: the kind of its readings, and what makes thousandths, or bytes per second, of them."""
_POWER = "power"
_POWER_DRAW, _POWER_LIMIT = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"
KINDS = frozenset((_MEMORY, _POWER_DRAW, _POWER_LIMIT, *(kind for kind, _ in ACTIVITIES.values())))
"""The kinds of values that are needed."""


class UseMemory(Struct):
    """The content of the file. `since_ms`: since when it counts, in epoch ms."""

    since_ms: int
    hours: list[UseHour] = []


class MeasuredUse(Struct, frozen=True):
    """What a pod used of what it holds: real use, 0 to 1, memory, and activities in thousandths or bytes per second.
    `host_memory_mib` is the part of the pod's memory on the node that is of this device."""

    real: float
    memory_mib: int
    activity: dict[str, float]
    host_memory_mib: float = 0.0


Key = tuple[str, str, int]
"""GPU, pod and hour."""


class UseHours:
    """What is kept at `path` of the devices of `node`. `clock_ms` is the wall clock."""

    def __init__(
        self,
        path: Path,
        node: str,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        shared: SharedUse | None = None,
        host: HostUse | None = None,
    ) -> None:
        self._file = CheckpointFile(path, UseMemory)
        memory, wrong = self._file.rescue()
        memory = memory or UseMemory(clock_ms())
        self._since_ms = memory.since_ms
        self._source = f"{node}/{memory.since_ms}"
        self._hours: dict[Key, UseHour] = {(one.gpu, one.pod_uid, one.hour_ms): one for one in memory.hours}
        self._clock_ms, self._shared, self._host = clock_ms, shared or SharedUse(), host
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held by the one thread that writes the file: a GPU that answers late writes beside the end of the agent."""
        self._owners: Owners | None = None
        self._devices_of: Counter[str] = Counter()
        self._known_s = 0.0
        """Since when the owners are known, if they are."""
        self._changed_s: dict[str, float] = {}
        self._read_s: dict[str, float] = {}
        self._gpus: dict[str, str] = {}
        """The GPU of each device that was read: itself, or that of a MIG instance."""
        self._written_s = time.monotonic()
        self._idle = default("idle_util")
        self._read_fault = f"the use of GPUs is counted anew: {wrong}" if wrong else ""
        self._write_fault = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """Sentences for an operator."""
        return tuple(fault for fault in (self._read_fault, self._write_fault) if fault)

    def owned(self, owners: Owners | None) -> None:
        """Take the owners of the devices from now on; None if they are not known."""
        now_s = time.monotonic()
        with self._lock:
            if self._owners is None or owners is None:
                self._known_s = now_s
            else:
                before, after = self._owners.by_device, owners.by_device
                changed = (uuid for uuid in before.keys() | after.keys() if before.get(uuid) != after.get(uuid))
                self._changed_s.update(dict.fromkeys(changed, now_s))
            self._owners = owners
            held = owners.by_device.values() if owners is not None else ()
            self._devices_of = Counter(uid for some in held for uid in {one.pod_uid for one in some})

    def apply(self, reading: GpuReading) -> None:
        """Count a reading of a GPU and its instances."""
        with self._lock:
            for device in reading.devices:
                before_s = self._read_s.get(device.uuid, float("-inf"))
                self._read_s[device.uuid] = reading.read_s
                self._gpus[device.uuid] = device.parent or device.uuid
                took_s = reading.read_s - before_s
                if 0 < took_s <= LONGEST_S:
                    for pod, use in self._uses(device, reading, before_s):
                        self._count(device, pod, self._with_host(pod, use, reading.read_s), round(took_s * 1000))

    def since(self, hour_ms: int) -> list[UseHour]:
        """The hours from this one on."""
        with self._lock:
            return [one for one in self._hours.values() if one.hour_ms >= hour_ms]

    def idle(self) -> dict[str, int]:
        """The pods (uid) that use none of the GPUs that they hold now, each with the time since which it does not; none
        where that is not known."""
        with self._lock:
            held: dict[str, set[str]] = {}
            for device, owners in self._owners.by_device.items() if self._owners is not None else ():
                for one in owners:
                    held.setdefault(one.pod_uid, set()).add(self._gpus.get(device, device))
            return idle_pods(self._hours.values(), held, self._clock_ms())

    def write(self, *, now: bool = False) -> None:
        """Write the file if it is due."""
        if not now and time.monotonic() - self._written_s < _WRITE_S:
            return
        self._written_s = time.monotonic()
        with self._writing:
            try:
                self._file.write(self._memory())
                self._write_fault = ""
            except CheckpointError as error:
                self._write_fault = f"the measured use of GPUs is lost when the agent restarts: {error}"

    def _memory(self) -> UseMemory:
        with self._lock:
            # An instance that is created again has a new UUID.
            oldest_s = time.monotonic() - LONGEST_S
            self._read_s = {uuid: read_s for uuid, read_s in self._read_s.items() if read_s >= oldest_s}
            self._changed_s = {uuid: at_s for uuid, at_s in self._changed_s.items() if at_s >= oldest_s}
            self._gpus = {uuid: gpu for uuid, gpu in self._gpus.items() if uuid in self._read_s}
            return UseMemory(self._since_ms, list(self._hours.values()))

    def _uses(self, device: DeviceReading, reading: GpuReading, before_s: float) -> Iterator[tuple[str, MeasuredUse]]:
        """How the pods that held the device since then use it, by uid, "" for nobody; none where that is not known."""
        if self._owners is None or max(self._known_s, self._changed_s.get(device.uuid, 0.0)) > before_s:
            return
        owners = self._owners.by_device.get(device.uuid, ())
        pods = {one.pod_uid for one in owners}
        if len(pods) > 1:
            for pod, part in self._shared.of(device, reading, owners).items():
                yield pod, MeasuredUse(part.use, part.memory_mib, {"utilization": _MILLI * part.use})
        elif (use := _real_use(device)) is not None:
            yield next(iter(pods), ""), MeasuredUse(use, int(device.values.get(_MEMORY, 0)), _values(device))

    def _with_host(self, pod: str, use: MeasuredUse, now_s: float) -> MeasuredUse:
        found = self._host.of(pod, now_s) if self._host is not None and pod else None
        if found is None:
            return use
        devices = max(1, self._devices_of[pod])
        activity = use.activity | {HOST_CPU: found.cpu_milli / devices}
        return replace(use, activity=activity, host_memory_mib=found.memory_mib / devices)

    def _count(self, device: DeviceReading, pod_uid: str, use: MeasuredUse, took_ms: int) -> None:
        end_ms = self._clock_ms()
        for start_ms, until_ms in _by_hour(end_ms - took_ms, end_ms):
            key = device.parent or device.uuid, pod_uid, start_ms - start_ms % HOUR_MS
            hour = self._hours.get(key) or self._begin(key)
            hour = _with(hour, use, until_ms - start_ms)
            if use.real < self._idle:
                hour = replace(hour, idle_ms=hour.idle_ms + until_ms - start_ms)
            else:
                hour = replace(hour, used_until_ms=max(hour.used_until_ms, until_ms))
            self._hours[key] = hour

    def _begin(self, key: Key) -> UseHour:
        """A record of an hour, for which old ones make room."""
        gpu, pod_uid, hour_ms = key
        oldest_ms = hour_ms - KEPT_HOURS * HOUR_MS
        if any(hour < oldest_ms for _, _, hour in self._hours) or len(self._hours) >= _MOST:
            kept = sorted(self._hours.items(), key=lambda item: item[0][2])[-_MOST + 1 :]
            self._hours = {key: one for key, one in kept if one.hour_ms >= oldest_ms}
        return UseHour(gpu, pod_uid, hour_ms, 0, 0, 0, histogram=(0,) * USE_BINS, source=self._source)


def _by_hour(start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """The parts of a time, each within one hour."""
    while start_ms < end_ms:
        until_ms = min(end_ms, start_ms - start_ms % HOUR_MS + HOUR_MS)
        yield start_ms, until_ms
        start_ms = until_ms


def _values(device: DeviceReading) -> dict[str, float]:
    """The activities that the device reports, in thousandths or bytes per second, and its power."""
    read = ((name, device.values.get(kind), scale) for name, (kind, scale) in ACTIVITIES.items())
    found = {name: value * scale for name, value, scale in read if value is not None}
    draw, limit = device.values.get(_POWER_DRAW), device.values.get(_POWER_LIMIT)
    if draw is not None and limit:
        found[_POWER] = _MILLI * draw / limit
    return found


def _real_use(device: DeviceReading) -> float | None:
    """Real use, 0 to 1, by the rules of `monitoring.real_use`."""
    utilization = device.values.get(_UTILIZATION)
    other = utilization / 100 if utilization is not None else device.values.get(_ENGINE)
    use = weighted({part.activity: device.values.get(part.metric) for part in PARTS}, other)
    return min(max(use, 0.0), 1.0) if use is not None else None


def _with(hour: UseHour, use: MeasuredUse, ms: int) -> UseHour:
    """The record with `ms` more."""
    bins = list(hour.histogram)
    bins[min(int(use.real * USE_BINS), USE_BINS - 1)] += ms
    activity = dict(hour.activity)
    for name, value in use.activity.items():
        activity[name] = activity.get(name, 0) + round(value * ms)
    # The most of the hour so far, for all of it: so the amounts of hours and devices add up as integrals do.
    memory_mib = max(hour.activity.get(HOST_MEMORY, 0) / max(1, hour.measured_ms), use.host_memory_mib)
    if memory_mib:
        activity[HOST_MEMORY] = round(memory_mib * (hour.measured_ms + ms))
    return replace(
        hour,
        measured_ms=hour.measured_ms + ms,
        use=hour.use + round(use.real * _MILLI * ms),
        memory_peak_mib=max(hour.memory_peak_mib, use.memory_mib),
        histogram=tuple(bins),
        activity=activity,
    )
