# SPDX-License-Identifier: Apache-2.0
"""The devices of a host for claims: whole GPUs, MIG instances, and partitions that are created when claimed.

Rules
- A GPU that is not in MIG mode is one device. A GPU in MIG mode is not a device.
- Existing MIG instances are devices. With `partitionable` every possible place of a profile is a device, too, and an
  instance is created there for a claim. Places that overlap an instance from outside of the agent are not offered.
- Names are those of NVIDIA's driver: gpu-MINOR, gpu-MINOR-mig-PROFILE-ID-START. An instance and the place where one
  could be made have the same name.
Source: kubernetes-sigs/dra-driver-nvidia-gpu v0.5 (names).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.agent.machine.host import Gpu, GpuEngines, GpuInstance, Host

Place = tuple[str, str, int]
"""The uuid of a GPU, the profile of an instance on it, and the memory slice where it starts."""
_NONE: Mapping[Place, str] = {}


class Partition(Struct, frozen=True):
    """A part of a GPU: memory slices [start, start + size). `id` is the profile's number as nvidia-smi shows it."""

    profile: str
    id: int
    start: int
    size: int
    memory_mib: int = 0
    engines: GpuEngines = field(default_factory=GpuEngines)

    def overlaps(self, start: int, size: int) -> bool:
        return self.start < start + size and start < self.start + self.size


class Offered(Struct, frozen=True):
    """`partition` is None for a whole GPU. `instance` is None if it does not exist, or was created for a claim. `uuid`
    is that of the GPU or instance, "" if it does not exist."""

    name: str
    gpu: Gpu
    partition: Partition | None = None
    instance: GpuInstance | None = None
    uuid: str = ""


def offered(host: Host, partitionable: bool = False, own: Mapping[Place, str] = _NONE) -> tuple[Offered, ...]:
    """The devices of the host. `own` are the uuids of the instances that were created for claims."""
    return tuple(device for gpu in host.gpus for device in _of(gpu, partitionable, own))


def _of(gpu: Gpu, partitionable: bool, own: Mapping[Place, str]) -> Iterator[Offered]:
    if gpu.mig is None:
        yield Offered(f"gpu-{gpu.minor}", gpu, uuid=gpu.uuid)
        return
    others = [(_partition(gpu, each), each) for each in gpu.mig if (gpu.uuid, each.profile, each.start) not in own]
    for partition, instance in others:
        yield Offered(_name(gpu, partition), gpu, partition, instance, instance.uuid)
    for partition in places(gpu) if partitionable else ():
        if not any(other.overlaps(partition.start, partition.size) for other, _ in others):
            made = own.get((gpu.uuid, partition.profile, partition.start), "")
            yield Offered(_name(gpu, partition), gpu, partition, uuid=made)


def places(gpu: Gpu) -> Iterator[Partition]:
    """Every possible place of the GPU's profiles; small profiles first, as allocators take the first that fits."""
    for profile in sorted(gpu.profiles, key=lambda p: (p.size, p.compute, p.id)):
        for start in sorted(profile.starts):
            yield Partition(profile.name, profile.id, start, profile.size, profile.memory_mib, profile.engines)


def _partition(gpu: Gpu, instance: GpuInstance) -> Partition:
    """The partition of an instance. If the driver does not list its profile, the id is that of the instance."""
    number = next((profile.id for profile in gpu.profiles if profile.name == instance.profile), instance.gi)
    partition = Partition(instance.profile, number, instance.start, instance.size)
    return replace(partition, memory_mib=instance.memory_mib, engines=instance.engines)


def _name(gpu: Gpu, partition: Partition) -> str:
    profile = re.sub(r"[^a-z0-9]", "-", partition.profile.replace(".", "").lower())
    return f"gpu-{gpu.minor}-mig-{profile}-{partition.id}-{partition.start}"
