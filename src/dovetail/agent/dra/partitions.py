# SPDX-License-Identifier: Apache-2.0
"""The MIG instance of one partition: finds, creates and destroys it.

Rules: a partition has one GPU instance with one compute instance that fills it. Any other GPU instance at its place
does not count as its instance, but is destroyed like it. Destroying without an instance does nothing. If this process
may not read MIG, the MIG observer is queried.
"""

from __future__ import annotations

from typing import Protocol

from dovetail.agent.dra.offer import Partition
from dovetail.agent.machine.gpus import Observed
from dovetail.agent.machine.host import Gpu, GpuInstance
from dovetail.agent.machine.nvml import NO_PERMISSION, NOT_FOUND, Nvml, NvmlError
from dovetail.agent.mig.geometry import Placed, geometry_of
from dovetail.agent.mig.hardware import Hardware
from dovetail.agent.mig.observer import ObserverError
from dovetail.core.devices.mig.geometry import Geometry


class Partitions(Protocol):
    """Calls block, up to seconds. All of them raise NvmlError."""

    def find(self, gpu: Gpu, partition: Partition) -> GpuInstance | None:
        """The existing instance, or None."""

    def make(self, gpu: Gpu, partition: Partition) -> GpuInstance: ...

    def destroy(self, gpu: Gpu, partition: Partition) -> None: ...


class NvmlPartitions:
    """Opens the library only for each call: an open one would not see a GPU that is back."""

    def __init__(self, nvml: Nvml, observed: Observed | None = None) -> None:
        self._nvml, self._observed = nvml, observed
        self._hardware = Hardware(nvml)

    def find(self, gpu: Gpu, partition: Partition) -> GpuInstance | None:
        try:
            with self._nvml:
                return self._find(gpu, partition)
        except NvmlError as error:
            if error.code != NO_PERMISSION or self._observed is None:
                raise
            return self._seen(self._observed, gpu, partition)

    def _seen(self, observed: Observed, gpu: Gpu, partition: Partition) -> GpuInstance | None:
        try:
            there = observed()[gpu.uuid].instances or ()
        except (ObserverError, KeyError) as error:
            raise NvmlError("nvmlDeviceGetGpuInstances", NO_PERMISSION, str(error)) from error
        placed = (partition.profile, partition.start)
        return next((one for one in there if (one.profile, one.start) == placed), None)

    def _find(self, gpu: Gpu, partition: Partition) -> GpuInstance | None:
        placed: Placed = (partition.profile, partition.start)
        for there in self._hardware.card(gpu.uuid, _geometry(gpu)).instances:
            if there.placed == placed and there.whole and there.uuids:
                uuid = there.uuids[0]
                device = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid)
                ci = self._nvml.call("nvmlDeviceGetComputeInstanceId", device)
                start, size = partition.start, partition.size
                memory_mib, engines = partition.memory_mib, partition.engines
                return GpuInstance(uuid, partition.profile, there.id, ci, start, size, memory_mib, engines)
        return None

    def make(self, gpu: Gpu, partition: Partition) -> GpuInstance:
        with self._nvml:
            self._hardware.create(gpu.uuid, _geometry(gpu), (partition.profile, partition.start))
            made = self._find(gpu, partition)
        if made is None:
            text = f"no MIG device of {partition.profile} at slice {partition.start} after it was made"
            raise NvmlError("nvmlDeviceGetMigDeviceHandleByIndex", NOT_FOUND, text)
        return made

    def destroy(self, gpu: Gpu, partition: Partition) -> None:
        with self._nvml:
            self._hardware.destroy(gpu.uuid, _geometry(gpu), (partition.profile, partition.start))


def _geometry(gpu: Gpu) -> Geometry:
    geometry = geometry_of(gpu)
    if geometry is None:
        raise NvmlError("nvmlDeviceGetGpuInstanceProfileInfo", NOT_FOUND, f"GPU {gpu.uuid} cannot be divided")
    return geometry
