# SPDX-License-Identifier: Apache-2.0
"""Reads one GPU and its MIG instances through NVML.

Rules
- A GPU is identified once for each time that the library is opened; its MIG instances at each reading, as they change.
- A MIG instance that vanishes during the reading is left out.
- Which processes use a device is read with it. NVML reports memory by process, and the use of the SMs as samples since
  the reading before: their mean counts, and none means 0.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from ctypes import byref
from typing import Any

import pynvml
from msgspec import Struct
from msgspec.structs import replace

from dovetail.agent.exporter.dcgm import FIELDS as DCGM_FIELDS
from dovetail.agent.exporter.dcgm import PERIOD_S as DCGM_PERIOD_S
from dovetail.agent.exporter.dcgm import Dcgm
from dovetail.agent.exporter.kinds import Kind, OwnSource
from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Process
from dovetail.agent.exporter.sources import GONE, UNSUPPORTED, DeviceSources
from dovetail.agent.machine import nvml as codes
from dovetail.agent.machine.nvml import Nvml, NvmlError

WINDOW_S = 300.0
_EVENTS = {
    0x1: "gpu_idle", 0x2: "clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
_READER_PARTS = {"margin", "fb_used_percent", "nvlinks_active", "gpm_support", "clock_events", "throttle"}
_FABRIC_PARTS = {"fabric_status", "fabric_error", "fabric_clique", "fabric_health", "fabric_ready"}
_SAMPLES_S = 2.0
"""Longer than the time between two of NVML's samples."""


class _Used(Struct, frozen=True):
    """The use of the SMs by pid, and the time of its newest sample, by NVML's clock and by ours."""

    last_us: int = 0
    percent: dict[int, int] = {}
    read_s: float = float("-inf")


class DeviceReader:
    """Reads the GPU with NVML's index `index` through the open library; `dcgm` has the profiling values of GPUs that
    NVML does not measure. Raises NvmlError if it cannot be identified.
    `errors` counts failed calls by name."""

    def __init__(self, nvml: Nvml, index: int, kinds: Iterable[Kind], dcgm: Dcgm | None = None) -> None:
        self._nvml, self._dcgm = nvml, dcgm
        self._kinds = tuple(kinds)
        self._handle = handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        self._minor = self._optional("nvmlDeviceGetMinorNumber")
        bus_id = nvml.call("nvmlDeviceGetPciInfo", handle).busId
        self._identity = DeviceReading(
            uuid=nvml.call("nvmlDeviceGetUUID", handle),
            gpu=index,
            pci_bus_id=bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else str(bus_id),
            product=self._optional("nvmlDeviceGetName") or "",
            minor=self._minor,
            parent="",
            gi=None,
            ci=None,
            profile="",
            values={},
        )
        self._links = self._count_links()
        self._sources = DeviceSources(nvml, handle, self._kinds, links=self._links)
        self._parts = {kind.sources[0].part for kind in kinds if isinstance(kind.sources[0], OwnSource)}
        self._instances: dict[str, DeviceSources] = {}
        self._events: deque[tuple[float, int]] = deque()
        self._used: dict[str, _Used] = {}
        self.texts: dict[str, str] = {}
        """The label kinds: name and text."""
        self._read_texts()
        self.errors: Counter[str] = Counter()
        self.since_s = 0.0
        """The begin of the time over which the profiling values of the last reading are means."""

    def close(self) -> None:
        """Free what the library holds for this reader, as long as it is open."""
        for sources in (self._sources, *self._instances.values()):
            sources.close()

    @property
    def uuid(self) -> str:
        return self._identity.uuid

    def read(self) -> GpuReading:
        """Raises NvmlError if the GPU or NVML as a whole fails."""
        # After a reload of the driver each call fails by itself: without this one all kinds would just be missing.
        self._nvml.call("nvmlDeviceGetUUID", self._handle)
        values = self._sources.read()
        absent = dict(self._sources.absent)
        gpu = self._with(self._identity, values)
        self._own(gpu, absent)
        self._profile(gpu, absent)
        devices, processes = [gpu], list(self._processes(self._handle, gpu.uuid))
        for device, handle in self._mig(values):
            devices.append(device)
            processes += self._processes(handle, device.uuid)
        absent = {name: why for name, why in absent.items() if name not in gpu.values and name not in gpu.labelled}
        self._count_errors()
        return GpuReading(tuple(devices), tuple(processes), time.monotonic(), absent)

    def _profile(self, gpu: DeviceReading, absent: dict[str, str]) -> None:
        """Add DCGM's profiling values to those of a GPU that NVML does not measure."""
        self.since_s = self._sources.since_s
        names = DCGM_FIELDS.keys() & absent.keys()
        if self._dcgm is None or self._sources.gpm or not names:
            return
        self.since_s = time.monotonic() - DCGM_PERIOD_S
        found = self._dcgm.read(gpu.uuid)
        gpu.values.update((name, value) for name, value in found.items() if name in names)
        absent.update((name, f"{absent[name]}; {self._dcgm.why}") for name in names - found.keys())

    @staticmethod
    def _with(identity: DeviceReading, values: dict[str, float]) -> DeviceReading:
        return replace(identity, values=values, labelled={})

    def _optional(self, call: str, *arguments: Any) -> Any:
        """The answer, None if the call fails. Raises NvmlError if no other answer of the GPU counts."""
        try:
            return self._nvml.call(call, self._handle, *arguments)
        except NvmlError as error:
            if error.code in GONE:
                raise
            return None

    def _count_links(self) -> int:
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                self._nvml.call("nvmlDeviceGetNvLinkState", self._handle, link)
            except NvmlError as error:
                if error.code in GONE:
                    raise
                return link
        return int(pynvml.NVML_NVLINK_MAX_LINKS)

    def _read_texts(self) -> None:
        for kind in self._kinds:
            for source in kind.sources if kind.type == "label" else ():
                name, arguments = getattr(source, "name", ""), getattr(source, "arguments", ())
                try:
                    system = name.startswith("nvmlSystem")
                    answer = self._nvml.call(name, *(() if system else (self._handle,)), *arguments)
                except NvmlError as error:
                    if error.code in GONE:
                        raise
                    continue
                self.texts[kind.name] = str(answer)

    def _own(self, gpu: DeviceReading, absent: dict[str, str]) -> None:
        """The values that are made of other ones, or by calls with structures."""
        values, parts = gpu.values, self._parts
        if "fb_used_percent" in parts:
            _share_of_memory(values)
        if "margin" in parts:
            margin = values.get("DCGM_FI_DEV_GPU_TEMP_LIMIT")
            if margin is None and {"DCGM_FI_DEV_SLOWDOWN_TEMP", "DCGM_FI_DEV_GPU_TEMP"} <= values.keys():
                margin = values["DCGM_FI_DEV_SLOWDOWN_TEMP"] - values["DCGM_FI_DEV_GPU_TEMP"]
            if margin is not None:
                values["dovetail_gpu_slowdown_margin_celsius"] = margin
        if self._sources.own("nvlinks_active") and self._links:
            up = sum(bool(self._optional("nvmlDeviceGetNvLinkState", link)) for link in range(self._links))
            values["dovetail_gpu_nvlinks_active"] = up
        if "xid" in parts:
            # Other parts of the agent replace it.
            values["DCGM_FI_DEV_XID_ERRORS"] = 0
        if "gpm_support" in parts:
            values["DCGM_FI_DEV_GPM_SUPPORT"] = int(self._sources.gpm)
        if "clock_events" in parts:
            self._clock_events(gpu)
        if parts & _FABRIC_PARTS:
            self._fabric(values, absent)
        for kind in self._kinds:
            if isinstance(kind.sources[0], OwnSource) and kind.sources[0].reason:
                absent[kind.name] = kind.sources[0].reason

    def _clock_events(self, gpu: DeviceReading) -> None:
        mask = gpu.values.get("DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
        if mask is None:
            return
        now_s = time.monotonic()
        self._events.append((now_s, int(mask)))
        while self._events[0][0] < now_s - WINDOW_S:
            self._events.popleft()
        masks = Counter(mask for _, mask in self._events)
        gpu.labelled["DCGM_EXP_CLOCK_EVENTS_COUNT"] = tuple(
            ("clock_event", name, sum(count for mask, count in masks.items() if mask & bit))
            for bit, name in _EVENTS.items()
        )

    def _fabric(self, values: dict[str, float], absent: dict[str, str]) -> None:
        info: Any = pynvml.c_nvmlGpuFabricInfo_v2_t()
        call, health = "nvmlDeviceGetGpuFabricInfoV", True
        try:
            try:
                self._nvml.call(call, self._handle, byref(info))
            except NvmlError as error:
                if error.code not in UNSUPPORTED or error.code == codes.NOT_SUPPORTED:
                    raise
                info, call, health = pynvml.c_nvmlGpuFabricInfo_t(), "nvmlDeviceGetGpuFabricInfo", False
                self._nvml.call(call, self._handle, byref(info))
        except NvmlError as error:
            if error.code in GONE:
                raise
            why = str(error)
        else:
            why = f"{call}: the GPU has no NVLink fabric"
        kinds = [kind for kind in self._kinds if kind.group == "fabric"]
        if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            absent.update((kind.name, why) for kind in kinds)
            return
        values["DCGM_FI_DEV_FABRIC_MANAGER_STATUS"] = info.state
        values["DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE"] = info.status
        values["DCGM_FI_DEV_FABRIC_CLIQUE_ID"] = info.cliqueId
        if health:
            values["DCGM_FI_DEV_FABRIC_HEALTH_MASK"] = info.healthMask
        ready = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and not info.status
        values["dovetail_gpu_fabric_ready"] = int(ready)

    def _mig(self, values: dict[str, float]) -> Iterator[tuple[DeviceReading, Any]]:
        """The MIG instances now, each with its handle."""
        found = []
        mode = values["DCGM_FI_DEV_MIG_MODE"] if "DCGM_FI_DEV_MIG_MODE" in values else self._mig_mode()
        for number in range(self._optional("nvmlDeviceGetMaxMigDeviceCount") or 0) if mode else ():
            try:
                found.append(self._instance(number))
            except NvmlError as error:
                if error.code in GONE:
                    raise
        for uuid in self._instances.keys() - {device.uuid for device, _ in found}:
            self._instances.pop(uuid).close()
        yield from found

    def _mig_mode(self) -> bool:
        mode = self._optional("nvmlDeviceGetMigMode")
        return bool(mode and mode[0])

    def _instance(self, number: int) -> tuple[DeviceReading, Any]:
        """Raises NvmlError if there is none with this number, or no longer."""
        nvml = self._nvml
        handle = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, number)
        uuid = nvml.call("nvmlDeviceGetUUID", handle)
        gi = nvml.call("nvmlDeviceGetGpuInstanceId", handle)
        sources = self._instances.get(uuid)
        if sources is None:
            kinds = [kind for kind in self._kinds if kind.per_instance]
            sources = self._instances[uuid] = DeviceSources(nvml, handle, kinds, parent=self._handle, gi=gi)
        values = sources.read()
        _share_of_memory(values)
        identity = self._identity
        device = DeviceReading(
            uuid, identity.gpu, identity.pci_bus_id, identity.product, self._minor, identity.uuid, gi,
            nvml.call("nvmlDeviceGetComputeInstanceId", handle), _profile(nvml, handle), values, {},
        )  # fmt: skip
        return device, handle

    def _processes(self, handle: Any, uuid: str) -> Iterator[Process]:
        memory: dict[int, int | None] = {}
        for call in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for process in self._list(call, handle):
                memory[process.pid] = process.usedGpuMemory
        if not memory:
            return
        percent = self._utilization(handle, uuid)
        for pid, used in memory.items():
            yield Process(pid, uuid, used, percent.get(pid, 0) if percent is not None else None)

    def _list(self, call: str, handle: Any) -> Any:
        """Older drivers have only the second version of these calls."""
        for name in (call, f"{call}_v2"):
            try:
                return self._nvml.call(name, handle)
            except NvmlError as error:
                if error.code in GONE:
                    raise
                if error.code != codes.FUNCTION_NOT_FOUND:
                    return ()
        return ()

    def _utilization(self, handle: Any, uuid: str) -> dict[int, int] | None:
        """The use of the SMs in percent by process, since the reading before; None if NVML does not report it."""
        seen = self._used.get(uuid, _Used())
        try:
            samples = self._nvml.call("nvmlDeviceGetProcessUtilization", handle, seen.last_us)
        except NvmlError as error:
            if error.code in GONE:
                raise
            if error.code != codes.NOT_FOUND:
                return None
            # NVML has no newer sample, or no process did anything.
            return seen.percent if time.monotonic() - seen.read_s < _SAMPLES_S else {}
        sums: dict[int, list[int]] = {}
        last_us = seen.last_us
        for sample in samples:
            sums.setdefault(sample.pid, []).append(sample.smUtil)
            last_us = max(last_us, sample.timeStamp)
        percent = {pid: round(sum(each) / len(each)) for pid, each in sums.items()}
        self._used[uuid] = _Used(last_us, percent, time.monotonic())
        return percent

    def _count_errors(self) -> None:
        for sources in (self._sources, *self._instances.values()):
            self.errors += sources.errors
            sources.errors.clear()


def _share_of_memory(values: dict[str, float]) -> None:
    used, free = values.get("DCGM_FI_DEV_FB_USED"), values.get("DCGM_FI_DEV_FB_FREE")
    if used is not None and free is not None and used + free:
        values["DCGM_FI_DEV_FB_USED_PERCENT"] = used / (used + free)


def _profile(nvml: Nvml, handle: Any) -> str:
    """The MIG profile in NVIDIA's notation, from the name of the instance ("NVIDIA A100-SXM4-40GB MIG 1g.5gb")."""
    try:
        return str(nvml.call("nvmlDeviceGetName", handle)).rpartition("MIG ")[2]
    except NvmlError as error:
        if error.code in GONE:
            raise
        return ""
