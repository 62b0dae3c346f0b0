# SPDX-License-Identifier: Apache-2.0
"""The actual GPU instances, and the calls that create and destroy them.

Rules: everything is read from the driver when it is needed. Handles are fetched again for each step, since a change of
the mode may reset the GPU. A GPU instance is `whole` if exactly one compute instance fills it; only such instances are
offered to pods. An instance is destroyed after all its compute instances. Processes that cannot be seen (other
containers, no permission) are not counted here: the driver refuses to change what they use, with IN_USE.
Calls block, those that change something for up to seconds. All of them raise NvmlError.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_uint
from typing import Any

import pynvml
from msgspec import Struct

from dovetail.agent.machine.nvml import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    Nvml,
    NvmlError,
)
from dovetail.agent.mig.geometry import Placed
from dovetail.core.devices.mig.geometry import Geometry, MigProfile

_ABSENT = (NOT_SUPPORTED, INVALID_ARGUMENT, NOT_FOUND)
_UNSEEN = (*_ABSENT, NO_PERMISSION, FUNCTION_NOT_FOUND)
_PROCESSES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
_SHARED_ENGINES = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
_OLDEST = 1
"""The version of a profile's structure that every driver with MIG has."""


class GpuInstanceState(Struct, frozen=True):
    """`uuids` are those of its MIG devices, `pids` the processes on it."""

    id: int
    placed: Placed
    whole: bool
    uuids: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


class MigGpu(Struct, frozen=True):
    """A GPU as it is now. `pending` is the mode after its next reset. `pids` are those outside of instances."""

    uuid: str
    mig: bool
    pending: bool
    instances: tuple[GpuInstanceState, ...] = ()
    pids: tuple[int, ...] = ()


class Hardware:
    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml

    def device(self, uuid: str) -> int:
        """The PCI device and vendor of a GPU, as 0x20B010DE."""
        return int(self._nvml.call("nvmlDeviceGetPciInfo", self._handle(uuid)).pciDeviceId)

    def card(self, uuid: str, geometry: Geometry | None) -> MigGpu:
        """The GPU with its instances. Without a geometry its profiles were unknown at its discovery: no instances."""
        handle = self._handle(uuid)
        current, pending = self._nvml.call("nvmlDeviceGetMigMode", handle)
        if not current:
            return MigGpu(uuid, False, bool(pending), pids=self._pids(handle))
        devices = list(self._mig_devices(handle))
        instances = []
        for profile in geometry.profiles if geometry is not None else ():
            for instance in self._gpu_instances(handle, profile):
                info = self._nvml.call("nvmlGpuInstanceGetInfo", instance)
                sizes = [size for size, _ in self._compute_instances(instance)]
                own = [(uuid, pids) for gi, uuid, pids in devices if gi == info.id]
                instances.append(
                    GpuInstanceState(
                        info.id,
                        (profile.name, info.placement.start),
                        sizes == [profile.compute_slices],
                        tuple(uuid for uuid, _ in own),
                        tuple(pid for _, pids in own for pid in pids),
                    )
                )
        instances.sort(key=lambda one: (one.placed[1], one.placed[0]))
        return MigGpu(uuid, True, bool(pending), tuple(instances))

    def set_mode(self, uuid: str, on: bool) -> None:
        """Request the mode. The caller reads it afterwards: some GPUs need a reset first."""
        self._nvml.call("nvmlDeviceSetMigMode", self._handle(uuid), int(on))

    def destroy(self, uuid: str, geometry: Geometry, placed: Placed) -> None:
        """Destroy the GPU instance at this place, if there is one."""
        for instance in self._at(uuid, geometry, placed):
            for _, compute in self._compute_instances(instance):
                self._nvml.call("nvmlComputeInstanceDestroy", compute)
            self._nvml.call("nvmlGpuInstanceDestroy", instance)

    def create(self, uuid: str, geometry: Geometry, placed: Placed) -> None:
        """Create a GPU instance with one compute instance that fills it."""
        name, start = placed
        profile = geometry.profiles[geometry.index(name)]
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, profile.memory_slices)
        handle = self._handle(uuid)
        instance = self._nvml.call("nvmlDeviceCreateGpuInstanceWithPlacement", handle, profile.gi_id, byref(placement))
        for info in self._compute_profiles(instance):
            if info.sliceCount == profile.compute_slices:
                self._nvml.call("nvmlGpuInstanceCreateComputeInstance", instance, info.id)
                return
        raise NvmlError("nvmlGpuInstanceGetComputeInstanceProfileInfo", NOT_FOUND, f"no compute instance fills {name}")

    def _handle(self, uuid: str) -> Any:
        return self._nvml.call("nvmlDeviceGetHandleByUUID", uuid)

    def _at(self, uuid: str, geometry: Geometry, placed: Placed) -> Iterator[Any]:
        name, start = placed
        for instance in self._gpu_instances(self._handle(uuid), geometry.profiles[geometry.index(name)]):
            if self._nvml.call("nvmlGpuInstanceGetInfo", instance).placement.start == start:
                yield instance

    def _gpu_instances(self, handle: Any, profile: MigProfile) -> list[Any]:
        found, count = (pynvml.c_nvmlGpuInstance_t * profile.most)(), c_uint()
        if not self._there("nvmlDeviceGetGpuInstances", handle, profile.gi_id, found, byref(count)):
            return []
        return list(found[: count.value])

    def _compute_instances(self, instance: Any) -> Iterator[tuple[int, Any]]:
        """The compute instances, each with its compute slices."""
        for info in self._compute_profiles(instance):
            found, count = (pynvml.c_nvmlComputeInstance_t * max(info.instanceCount, 1))(), c_uint()
            if self._there("nvmlGpuInstanceGetComputeInstances", instance, info.id, found, byref(count)):
                for compute in found[: count.value]:
                    yield info.sliceCount, compute

    def _compute_profiles(self, instance: Any) -> list[Any]:
        found = []
        for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
            try:
                found.append(self._nvml.call(call, instance, number, _SHARED_ENGINES, _OLDEST))
            except NvmlError as error:
                if error.code not in _ABSENT:
                    raise
        return found

    def _there(self, name: str, *arguments: Any) -> bool:
        """Make the call. False if the driver does not have the profile."""
        try:
            self._nvml.call(name, *arguments)
        except NvmlError as error:
            if error.code not in _ABSENT:
                raise
            return False
        return True

    def _mig_devices(self, handle: Any) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        """GPU instance, uuid and processes of each MIG device."""
        for number in range(self._nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle)):
            try:
                device = self._nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            except NvmlError as error:
                if error.code not in _ABSENT:
                    raise
                continue
            gi = self._nvml.call("nvmlDeviceGetGpuInstanceId", device)
            yield gi, self._nvml.call("nvmlDeviceGetUUID", device), self._pids(device)

    def _pids(self, handle: Any) -> tuple[int, ...]:
        found: set[int] = set()
        for name in _PROCESSES:
            try:
                found.update(process.pid for process in self._nvml.call(name, handle))
            except NvmlError as error:
                if error.code not in _UNSEEN:
                    raise
        return tuple(sorted(found))
