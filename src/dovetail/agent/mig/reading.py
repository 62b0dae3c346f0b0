# SPDX-License-Identifier: Apache-2.0
"""The memory, MIG instances and profiles of one GPU, read from NVML.

Rules
- An instance is listed with its placement, and only if its compute instance fills its GPU instance; others are
  `unread`. While MIG mode is off a driver may return profiles without placements: these have no starts, and size 0.
- NVML returns placements, and the memory of a GPU in MIG mode, only to privileged users (CAP_SYS_ADMIN, or the kernel's
  capability mig/monitor; NVML API reference, "Requires privileged user" and "only if the caller has appropriate
  privileges"). For others the result is `refused` and has no instance. A GPU that is not in MIG mode lacks nothing
  then.
Calls raise NvmlError only if the GPU is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml
from msgspec import Struct

from dovetail.agent.machine import nvml as codes
from dovetail.agent.machine.host import GpuEngines, GpuInstance, GpuProfile, Unread
from dovetail.agent.machine.nvml import Nvml, NvmlError

LOST = frozenset({codes.GPU_IS_LOST, codes.UNINITIALIZED})
"""After one of these no other answer of the GPU counts."""
_ENDS = frozenset({codes.NOT_FOUND, codes.INVALID_ARGUMENT, codes.NOT_SUPPORTED})


class ReadDivision(Struct, frozen=True):
    """`profiles` are in the order of NVML's enumerators, `instances` by their starts, None if MIG mode is off. `unread`
    are fields of the GPU (`mig[0]`), `refused` is the call without permission, if that hides instances. `memory_mib` is
    that of the whole GPU, 0 if unread."""

    profiles: tuple[GpuProfile, ...] = ()
    instances: tuple[GpuInstance, ...] | None = None
    unread: tuple[Unread, ...] = ()
    refused: str = ""
    memory_mib: int = 0


def read(nvml: Nvml, handle: Any, mode: bool) -> ReadDivision:
    """Read a GPU whose MIG mode is on (`mode`) or off."""
    reader = _Reader(nvml, handle, mode)
    profiles = reader.profiles()
    instances = reader.instances(profiles) if mode else None
    memory_mib = reader.memory_mib()
    if reader.refused and mode:
        return ReadDivision(profiles, (), (), reader.refused, memory_mib)
    return ReadDivision(profiles, instances, tuple(reader.unread), memory_mib=memory_mib)


class _Reader:
    def __init__(self, nvml: Nvml, handle: Any, mode: bool) -> None:
        self._nvml, self._handle, self._mode = nvml, handle, mode
        self.unread: list[Unread] = []
        self.refused = ""

    def _miss(self, what: str, why: NvmlError | str) -> None:
        """Record an unread field. Raises the error if the GPU is lost."""
        if isinstance(why, NvmlError) and why.code in LOST:
            raise why
        if isinstance(why, NvmlError) and why.code == codes.NO_PERMISSION:
            self.refused = self.refused or str(why)
        else:
            self.unread.append(Unread(what, str(why)))

    def _ask(self, what: str, default: Any, call: str, *arguments: Any) -> Any:
        try:
            return self._nvml.call(call, *arguments)
        except NvmlError as error:
            if error.code != codes.NOT_SUPPORTED:
                self._miss(what, error)
            return default

    def memory_mib(self) -> int:
        memory = self._ask("memory_mib", None, "nvmlDeviceGetMemoryInfo", self._handle)
        return int(memory.total >> 20) if memory is not None else 0

    def profiles(self) -> tuple[GpuProfile, ...]:
        found = []
        for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self._nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", self._handle, index)
            except NvmlError as error:
                if error.code in _ENDS:
                    continue
                self._miss("profiles", error)
                break
            places = self._placements(f"profiles[{index}].starts", info.id)
            found.append(
                GpuProfile(
                    index=index,
                    id=info.id,
                    name=_text(info.name).removeprefix("MIG "),
                    compute=info.sliceCount,
                    size=max((place.size for place in places), default=0),
                    starts=tuple(sorted(place.start for place in places)),
                    most=info.instanceCount,
                    memory_mib=info.memorySizeMB,
                    engines=GpuEngines(
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

    def _placements(self, what: str, profile_id: int) -> Sequence[Any]:
        call, count = "nvmlDeviceGetGpuInstancePossiblePlacements", c_uint()
        if self._ask(what, None, call, self._handle, profile_id, None, byref(count)) is None:
            return ()
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if self._ask(what, None, call, self._handle, profile_id, places, byref(count)) is None:
            return ()
        return list(places)[: count.value]

    def instances(self, profiles: Iterable[GpuProfile]) -> tuple[GpuInstance, ...]:
        names = {profile.id: profile.name for profile in profiles}
        found = []
        for number in range(self._ask("mig", 0, "nvmlDeviceGetMaxMigDeviceCount", self._handle)):
            where = f"mig[{number}]"
            try:
                device = self._nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, number)
                instance = self._instance(device, where, names)
            except NvmlError as error:
                if error.code not in _ENDS:
                    self._miss(where, error)
                continue
            found += [instance] if instance is not None else []
        return tuple(sorted(found, key=lambda instance: instance.start))

    def _instance(self, device: Any, where: str, names: dict[int, str]) -> GpuInstance | None:
        call = self._nvml.call
        gi, ci = call("nvmlDeviceGetGpuInstanceId", device), call("nvmlDeviceGetComputeInstanceId", device)
        attributes = call("nvmlDeviceGetAttributes", device)
        if attributes.computeInstanceSliceCount != attributes.gpuInstanceSliceCount:
            part = f"{attributes.computeInstanceSliceCount} of the {attributes.gpuInstanceSliceCount} slices"
            self._miss(where, f"compute instance {ci} has {part} of GPU instance {gi}: only whole ones are offered")
            return None
        info = call("nvmlGpuInstanceGetInfo", call("nvmlDeviceGetGpuInstanceById", self._handle, gi))
        if info.profileId not in names:
            self._miss(where, f"NVML lists no profile of the id {info.profileId}")
            return None
        return GpuInstance(
            uuid=call("nvmlDeviceGetUUID", device),
            profile=names[info.profileId],
            gi=gi,
            ci=ci,
            start=info.placement.start,
            size=info.placement.size,
            memory_mib=attributes.memorySizeMB,
            engines=GpuEngines(
                attributes.multiprocessorCount,
                attributes.sharedCopyEngineCount,
                attributes.sharedDecoderCount,
                attributes.sharedEncoderCount,
                attributes.sharedJpegCount,
                attributes.sharedOfaCount,
            ),
        )


def _text(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
