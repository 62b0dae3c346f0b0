# SPDX-License-Identifier: Apache-2.0
"""One GPU as NVML describes it: identity, MIG instances and profiles, fabric, NVLinks.

Rules
- An optional call that fails leaves its field empty and adds an `Unread` with the call and the reason. A call that the
  product does not have (NOT_SUPPORTED) leaves the field empty without an `Unread`.
- A GPU without uuid, bus id or minor number cannot be allocated, and answers of a GPU that is lost between two calls do
  not fit together: such a GPU is not read at all.
- The MIG instances are read by `mig.reading`, or by an observer (`mig.observer`) if this process may not read them. If
  neither can, the field `gpus[INDEX].mig` is unread, and the instances are unknown.
- The remote device of an NVLink is the one that NVML names, else the kernel's PCI device with that bus id.
Sources: NVML API reference; names of brands and architectures as in go-nvlib, which NVIDIA's DRA driver publishes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from ctypes import byref
from functools import cache
from typing import Any
from uuid import UUID

import pynvml
from msgspec import Struct

from dovetail.agent.machine import nvml as codes
from dovetail.agent.machine.host import Gpu, GpuFabric, Unread
from dovetail.agent.machine.nvml import Nvml, NvmlError
from dovetail.agent.machine.pci_device import SWITCH_CLASS, PciDevice
from dovetail.agent.mig.observer import ObserverError
from dovetail.agent.mig.reading import LOST, ReadDivision, read

_BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "Rubin",
}
_ADDRESSING = {
    pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE: "None",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS",
}
_FABRIC_STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: "not-supported",
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not-started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in-progress",
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
}
_GPU, _SWITCH, _UNKNOWN = (
    int(pynvml.NVML_NVLINK_DEVICE_TYPE_GPU),
    int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH),
    int(pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN),
)
Observed = Callable[[], dict[str, ReadDivision]]
_BUS_ID = re.compile(r"0*([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


class Links(Struct, frozen=True):
    """The active NVLinks of a GPU: the number to each bus id, and the number to NVSwitches."""

    to: Counter[str]
    to_switches: int = 0


class GpuReader:
    """Reads GPUs through the open library. `pci` are the kernel's PCI devices by bus id, `observed` queries the MIG
    observer. Fields that cannot be read are appended to `unread`."""

    def __init__(
        self, nvml: Nvml, pci: Mapping[str, PciDevice], unread: list[Unread], observed: Observed | None = None
    ) -> None:
        self._nvml, self._pci, self._unread = nvml, pci, unread
        self._observed = cache(observed) if observed is not None else None

    def ask(self, what: str, default: Any, call: str, *arguments: Any) -> Any:
        """The answer to an optional call, or `default`. Raises NvmlError only if the GPU is lost."""
        try:
            return self._nvml.call(call, *arguments)
        except NvmlError as error:
            if error.code in LOST:
                raise
            if error.code != codes.NOT_SUPPORTED:
                self._miss(what, error)
            return default

    def _miss(self, what: str, why: Exception | str) -> None:
        self._unread.append(Unread(what, str(why)))

    def read(self, index: int) -> tuple[Gpu, Links | None]:
        """The GPU with this index, and its NVLinks. Raises NvmlError if it is lost or cannot be identified."""
        nvml, at = self._nvml, f"gpus[{index}]"
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        bus_id = _bus_id(nvml.call("nvmlDeviceGetPciInfo", handle).busId)
        place = self._pci.get(bus_id)
        if place is None:
            self._miss(f"{at}.numa", f"the kernel lists no PCI device {bus_id}")
        elif place.numa is None:
            self._miss(f"{at}.numa", f"numa_node of {bus_id} is -1: the firmware sets none")
        mode, pending = self.ask(f"{at}.mig", (0, 0), "nvmlDeviceGetMigMode", handle)
        uuid = nvml.call("nvmlDeviceGetUUID", handle)
        divided = self._divided(handle, uuid, bool(mode), at)
        gpu = Gpu(
            index=index,
            minor=nvml.call("nvmlDeviceGetMinorNumber", handle),
            uuid=uuid,
            product=self.ask(f"{at}.product", "", "nvmlDeviceGetName", handle),
            pci_bus_id=bus_id,
            memory_mib=divided.memory_mib,
            brand=_BRANDS.get(self.ask(f"{at}.brand", None, "nvmlDeviceGetBrand", handle), ""),
            architecture=_ARCHITECTURES.get(
                self.ask(f"{at}.architecture", None, "nvmlDeviceGetArchitecture", handle), ""
            ),
            compute=self.ask(f"{at}.compute", None, "nvmlDeviceGetCudaComputeCapability", handle),
            serial=self.ask(f"{at}.serial", "", "nvmlDeviceGetSerial", handle),
            module=self.ask(f"{at}.module", None, "nvmlDeviceGetModuleId", handle),
            addressing=_ADDRESSING.get(self.ask(f"{at}.addressing", None, "nvmlDeviceGetAddressingMode", handle), ""),
            numa=place.numa if place is not None else None,
            pcie_root=place.root if place is not None else "",
            fabric=self._fabric(handle, at),
            mig=divided.instances,
            mig_pending=bool(pending) if pending != mode else None,
            profiles=divided.profiles,
        )
        return gpu, self._links(handle, at)

    def _fabric(self, handle: Any, at: str) -> GpuFabric | None:
        info: Any = pynvml.c_nvmlGpuFabricInfo_v2_t()
        try:
            self._nvml.call("nvmlDeviceGetGpuFabricInfoV", handle, byref(info))
        except NvmlError as error:
            if error.code == codes.NOT_SUPPORTED:
                return GpuFabric("not-supported")
            if error.code not in (codes.FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                if error.code in LOST:
                    raise
                self._miss(f"{at}.fabric", error)
                return None
            # Older drivers do not have this structure, or have only the call without a version.
            info = pynvml.c_nvmlGpuFabricInfo_t()
            if self.ask(f"{at}.fabric", None, "nvmlDeviceGetGpuFabricInfo", handle, byref(info)) is None:
                return None
        state = _FABRIC_STATES.get(info.state, "not-supported")
        return GpuFabric(state, str(UUID(bytes=bytes(info.clusterUuid))), info.cliqueId)

    def _divided(self, handle: Any, uuid: str, mode: bool, at: str) -> ReadDivision:
        """Its memory, MIG instances and profiles; from the observer if this process may not read them."""
        found = read(self._nvml, handle, mode)
        if found.refused and self._observed is not None:
            try:
                found = self._observed().get(uuid, found)
            except ObserverError as error:
                self._miss(f"{at}.mig", error)
                return found
        if found.refused:
            self._miss(f"{at}.mig", f"{found.refused}; add the function mig-observer")
        for one in found.unread:
            self._miss(f"{at}.{one.what}", one.why)
        return found

    def _links(self, handle: Any, at: str) -> Links | None:
        """None if the driver has no call for link states."""
        to: Counter[str] = Counter()
        elsewhere: Counter[str] = Counter()
        switches = 0
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                if not self._nvml.call("nvmlDeviceGetNvLinkState", handle, link):
                    continue
            except NvmlError as error:
                if error.code in LOST:
                    raise
                if error.code == codes.INVALID_ARGUMENT:
                    break
                if error.code == codes.FUNCTION_NOT_FOUND:
                    self._miss(f"{at}.nvlinks", error)
                    return None
                if error.code != codes.NOT_SUPPORTED:
                    self._miss(f"{at}.nvlinks[{link}]", error)
                continue
            kind = self._kind(handle, link)
            if kind == _SWITCH:
                switches += 1
            if kind not in (_GPU, _UNKNOWN):
                continue
            remote = self.ask(f"{at}.nvlinks[{link}]", None, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            target = _bus_id(remote.busId) if remote is not None else "an unknown device"
            device = self._pci.get(target)
            if kind == _GPU or (device is not None and device.is_gpu):
                to[target] += 1
            elif device is not None and device.kind == SWITCH_CLASS:
                switches += 1
            else:
                elsewhere[target] += 1
        for target, count in elsewhere.items():
            self._miss(
                f"{at}.nvlinks", f"{count} of them lead to {target}, which is neither a GPU nor an NVSwitch here"
            )
        return Links(to, switches)

    def _kind(self, handle: Any, link: int) -> int:
        """The kind of the remote device; unknown if the driver does not have the call."""
        try:
            return int(self._nvml.call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link))
        except NvmlError as error:
            if error.code in LOST:
                raise
            return _UNKNOWN


def _bus_id(text: Any) -> str:
    """As sysfs writes it: NVML's domain has eight digits, the kernel's four unless it needs more."""
    name = _text(text).lower()
    match = _BUS_ID.fullmatch(name)
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}" if match else name


def _text(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
