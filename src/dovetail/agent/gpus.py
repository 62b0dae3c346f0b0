# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of one GPU: what it is, its MIG instances and what it can be divided into, its fabric, its NVLinks.

Rules
- An optional call that fails leaves its field empty and an `Unread` with the call and the reason; a call that the
  product does not have (NOT_SUPPORTED) leaves it empty without one, as there is nothing to read.
- A GPU without uuid, bus id and minor number cannot be given to anybody, and one that is lost between two calls has no
  answers that fit together: it is not read at all.
- MIG instances are told by their placement, and only where the compute instance fills its GPU instance: others are
  named. While MIG mode is off a driver may tell profiles without placements: these have no starts, and size 0.
- What is at the other end of an NVLink is what NVML says; where it does not know, what the kernel sees at that bus id.
Sources: NVML API reference; names of brands and architectures as go-nvlib gives them, which NVIDIA's DRA driver
publishes.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml
from msgspec import Struct

from dovetail.agent import nvml as codes
from dovetail.agent.host import Engines, Fabric, Gpu, Instance, Profile, Unread
from dovetail.agent.nvml import Nvml, NvmlError
from dovetail.agent.sysfs import SWITCH_CLASS, PciDevice

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
_LOST = frozenset({codes.GPU_IS_LOST, codes.UNINITIALIZED})
"""After one of these no other answer of the GPU counts."""
_ENDS = frozenset({codes.NOT_FOUND, codes.INVALID_ARGUMENT, codes.NOT_SUPPORTED})
_BUS_ID = re.compile(r"0*([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_MIB = 1 << 20


class Links(Struct, frozen=True):
    """The active NVLinks of a GPU: how many lead to each bus id, and how many to switches."""

    to: Counter[str]
    to_switches: int = 0


class GpuReader:
    """Reads GPUs through the open library; `pci` is what the kernel has. What is missed goes to `unread`."""

    def __init__(self, nvml: Nvml, pci: Mapping[str, PciDevice], unread: list[Unread]) -> None:
        self._nvml, self._pci, self._unread = nvml, pci, unread

    def ask(self, what: str, default: Any, call: str, *arguments: Any) -> Any:
        """The answer to an optional call. Raises NvmlError only where the GPU is lost."""
        try:
            return self._nvml.call(call, *arguments)
        except NvmlError as error:
            if error.code in _LOST:
                raise
            if error.code != codes.NOT_SUPPORTED:
                self._miss(what, error)
            return default

    def _miss(self, what: str, why: Exception | str) -> None:
        self._unread.append(Unread(what, str(why)))

    def read(self, index: int) -> tuple[Gpu, Links | None]:
        """Raises NvmlError where the GPU is lost, or cannot be told from others."""
        nvml, at = self._nvml, f"gpus[{index}]"
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        bus_id = _bus_id(nvml.call("nvmlDeviceGetPciInfo", handle).busId)
        place = self._pci.get(bus_id)
        if place is None:
            self._miss(f"{at}.numa", f"the kernel tells of no PCI device {bus_id}")
        elif place.numa is None:
            self._miss(f"{at}.numa", f"numa_node of {bus_id} is -1: the firmware does not tell")
        memory = self.ask(f"{at}.memory_mib", None, "nvmlDeviceGetMemoryInfo", handle)
        mode, pending = self.ask(f"{at}.mig", (0, 0), "nvmlDeviceGetMigMode", handle)
        profiles = self._profiles(handle, at)
        gpu = Gpu(
            index=index,
            minor=nvml.call("nvmlDeviceGetMinorNumber", handle),
            uuid=nvml.call("nvmlDeviceGetUUID", handle),
            product=self.ask(f"{at}.product", "", "nvmlDeviceGetName", handle),
            pci_bus_id=bus_id,
            memory_mib=memory.total // _MIB if memory is not None else 0,
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
            mig=self._instances(handle, at, profiles) if mode else None,
            mig_pending=bool(pending) if pending != mode else None,
            profiles=profiles,
        )
        return gpu, self._links(handle, at)

    def _fabric(self, handle: Any, at: str) -> Fabric | None:
        info: Any = pynvml.c_nvmlGpuFabricInfo_v2_t()
        try:
            self._nvml.call("nvmlDeviceGetGpuFabricInfoV", handle, byref(info))
        except NvmlError as error:
            if error.code == codes.NOT_SUPPORTED:
                return Fabric("not-supported")
            if error.code not in (codes.FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                if error.code in _LOST:
                    raise
                self._miss(f"{at}.fabric", error)
                return None
            # Older drivers know no such structure, or have the call without a version only.
            info = pynvml.c_nvmlGpuFabricInfo_t()
            if self.ask(f"{at}.fabric", None, "nvmlDeviceGetGpuFabricInfo", handle, byref(info)) is None:
                return None
        state = _FABRIC_STATES.get(info.state, "not-supported")
        return Fabric(state, str(uuid.UUID(bytes=bytes(info.clusterUuid))), info.cliqueId)

    def _profiles(self, handle: Any, at: str) -> tuple[Profile, ...]:
        """In the order of NVML's enumerators."""
        found = []
        for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self._nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", handle, index)
            except NvmlError as error:
                if error.code in _LOST:
                    raise
                if error.code not in _ENDS:
                    self._miss(f"{at}.profiles", error)
                    break
                continue
            places = self._placements(handle, f"{at}.profiles[{index}].starts", info.id)
            found.append(
                Profile(
                    index=index,
                    id=info.id,
                    name=_text(info.name).removeprefix("MIG "),
                    compute=info.sliceCount,
                    size=max((place.size for place in places), default=0),
                    starts=tuple(sorted(place.start for place in places)),
                    most=info.instanceCount,
                    memory_mib=info.memorySizeMB,
                    engines=Engines(
                        info.multiprocessorCount,
                        info.copyEngineCount,
                        info.decoderCount,
                        info.encoderCount,
                        info.jpegCount,
                        info.ofaCount,
                    ),
                )
            )
        return tuple(found)

    def _placements(self, handle: Any, what: str, profile_id: int) -> Sequence[Any]:
        call, count = "nvmlDeviceGetGpuInstancePossiblePlacements", c_uint()
        if self.ask(what, None, call, handle, profile_id, None, byref(count)) is None:
            return ()
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if self.ask(what, None, call, handle, profile_id, places, byref(count)) is None:
            return ()
        return list(places)[: count.value]

    def _instances(self, handle: Any, at: str, profiles: Iterable[Profile]) -> tuple[Instance, ...]:
        """By their starts."""
        names = {profile.id: profile.name for profile in profiles}
        found = []
        for number in range(self.ask(f"{at}.mig", 0, "nvmlDeviceGetMaxMigDeviceCount", handle)):
            where = f"{at}.mig[{number}]"
            try:
                device = self._nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
                instance = self._instance(handle, device, where, names)
            except NvmlError as error:
                if error.code in _LOST:
                    raise
                if error.code not in _ENDS:
                    self._miss(where, error)
                continue
            found += [instance] if instance is not None else []
        return tuple(sorted(found, key=lambda instance: instance.start))

    def _instance(self, handle: Any, device: Any, where: str, names: dict[int, str]) -> Instance | None:
        call = self._nvml.call
        gi, ci = call("nvmlDeviceGetGpuInstanceId", device), call("nvmlDeviceGetComputeInstanceId", device)
        told = call("nvmlDeviceGetAttributes", device)
        if told.computeInstanceSliceCount != told.gpuInstanceSliceCount:
            part = f"{told.computeInstanceSliceCount} of the {told.gpuInstanceSliceCount} slices"
            self._miss(where, f"compute instance {ci} has {part} of GPU instance {gi}: only whole ones are offered")
            return None
        info = call("nvmlGpuInstanceGetInfo", call("nvmlDeviceGetGpuInstanceById", handle, gi))
        if info.profileId not in names:
            self._miss(where, f"NVML lists no profile of the id {info.profileId}")
            return None
        return Instance(
            uuid=call("nvmlDeviceGetUUID", device),
            profile=names[info.profileId],
            gi=gi,
            ci=ci,
            start=info.placement.start,
            size=info.placement.size,
            memory_mib=told.memorySizeMB,
            engines=_engines(told),
        )

    def _links(self, handle: Any, at: str) -> Links | None:
        """None where the driver cannot tell."""
        to: Counter[str] = Counter()
        elsewhere: Counter[str] = Counter()
        switches = 0
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                if not self._nvml.call("nvmlDeviceGetNvLinkState", handle, link):
                    continue
            except NvmlError as error:
                if error.code in _LOST:
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
            target = _bus_id(remote.busId) if remote is not None else "nobody knows where"
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
        """What NVML says is at the other end; not known where its driver is too old to say."""
        try:
            return int(self._nvml.call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link))
        except NvmlError as error:
            if error.code in _LOST:
                raise
            return _UNKNOWN


def _bus_id(text: Any) -> str:
    """As sysfs writes it: NVML's domain has eight digits, the kernel's four unless it needs more."""
    name = _text(text).lower()
    match = _BUS_ID.fullmatch(name)
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}" if match else name


def _text(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _engines(told: Any) -> Engines:
    return Engines(
        told.multiprocessorCount,
        told.sharedCopyEngineCount,
        told.sharedDecoderCount,
        told.sharedEncoderCount,
        told.sharedJpegCount,
        told.sharedOfaCount,
    )
