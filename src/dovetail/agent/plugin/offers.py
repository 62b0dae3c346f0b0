# SPDX-License-Identifier: Apache-2.0
"""The resources and devices that a host offers to the kubelet, and its problems.

Rules
- With MIG strategy `none` every GPU is a device of nvidia.com/gpu. With `mixed` a GPU in MIG mode offers its instances,
  with one resource for each profile; other GPUs are offered whole. With `single` all GPUs must be in MIG mode with
  instances of one profile, which are offered as nvidia.com/gpu, or no GPU may be in MIG mode. Else nothing is offered.
- A shared device is offered as replicas `<id>::<n>`, n from 0.
- A device is unhealthy if it or its GPU is.
- A GPU that has gone stays in the list, unhealthy, as long as the agent runs: pods may hold it. An instance that has
  gone from a present GPU was destroyed, and is no longer offered. Source of names and ids: NVIDIA k8s-device-plugin,
  internal/rm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.agent.config import Config, Shared
from dovetail.agent.machine.host import Gpu, Host
from dovetail.core.devices.mig.geometry import resource_of
from dovetail.core.model import GPU, Instance
from dovetail.kube.nodes.instances import shown

_REPLICA = "::"
_LONGEST_RESOURCE = 63


class AdvertisedDevice(Struct, frozen=True):
    """`id` is the device id for the kubelet, `uuid` that of the GPU or MIG instance, `gpu` that of the GPU. `card` is
    NVML's index of the GPU, `index` the name by index (`1`, or `1:0` for the first instance of GPU 1). `part` is the
    device's name in the annotation dovetail.dev/devices; "" if the GPU has gone."""

    id: str
    uuid: str
    gpu: str
    card: int
    index: str
    part: str
    numa: int | None
    healthy: bool


RDMA = "rdma"
"""The profile of RDMA devices."""


class ResourceOffer(Struct, frozen=True):
    """`devices` by id, in order. `profile` is that of MIG instances, "" for whole GPUs, RDMA for RDMA devices, which
    are shared: a container gets all `device_nodes`, which are paths on the host by paths in the container."""

    resource: str
    profile: str
    shared: Shared | None
    devices: Mapping[str, AdvertisedDevice] = field(default_factory=dict)
    device_nodes: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_gpus(self) -> bool:
        return self.profile != RDMA

    def part(self, id: str) -> str | None:
        device = self.devices.get(id)
        return device.part or None if device is not None else None

    def own(self, parts: Iterable[str]) -> tuple[str, ...]:
        """The parts that are of this resource."""
        return tuple(part for part in parts if _profile_of(part) == self.profile)


def _profile_of(part: str) -> str:
    return part.partition("/")[2].partition("@")[0]


def offers(
    host: Host, config: Config, unhealthy: Collection[str], before: Mapping[str, ResourceOffer]
) -> tuple[dict[str, ResourceOffer], tuple[str, ...]]:
    """The offers by resource, and the problems. `unhealthy` has the uuids of devices, `before` the offers until now."""
    problems: list[str] = []
    found: dict[str, ResourceOffer] = {}
    for plain, profile, devices in _unshared(host, config, unhealthy, problems):
        shared = config.sharing.get(plain)
        if shared is not None and shared.strategy == "mps" and profile:
            problems.append(f"{plain} are MIG instances, which MPS does not share: they are offered unshared")
            shared = None
        resource = shared.renamed if shared is not None else plain
        if len(resource) > _LONGEST_RESOURCE:
            problems.append(f"the name {resource} is longer than {_LONGEST_RESOURCE} characters: it is not offered")
            continue
        listed = [replica for device in devices for replica in _replicas(device, shared)]
        found[resource] = ResourceOffer(resource, profile, shared, {device.id: device for device in listed})
    for resource, offer in before.items():
        gone = {
            id: replace(device, healthy=False, part="")
            for id, device in offer.devices.items()
            if host.gpu(device.gpu) is None
        }
        if gone:
            now = found.get(resource, replace(offer, devices={}))
            found[resource] = replace(now, devices={**now.devices, **gone})
    return found, tuple(problems)


def _unshared(
    host: Host, config: Config, unhealthy: Collection[str], problems: list[str]
) -> Iterator[tuple[str, str, list[AdvertisedDevice]]]:
    """The resources without replicas: name, MIG profile, devices."""
    divided = [gpu for gpu in host.gpus if gpu.mig is not None]
    if config.mig_strategy == "none":
        for gpu in divided:
            problems.append(f"GPU {gpu.index} is in MIG mode, which flags.migStrategy none ignores: offered whole")
        divided = []
    invalid = _not_single(host, divided) if config.mig_strategy == "single" else ""
    if invalid:
        problems.append(f"flags.migStrategy is single, and {invalid}: nothing is offered")
        return
    whole = [gpu for gpu in host.gpus if gpu not in divided]
    if whole:
        yield GPU, "", [_device(gpu, unhealthy) for gpu in whole]
    profiles: dict[str, list[AdvertisedDevice]] = {}
    for gpu in divided:
        for i, instance in enumerate(gpu.mig or ()):
            part = shown(Instance(gpu.index, instance.profile, instance.start))
            healthy = not {gpu.uuid, instance.uuid} & {*unhealthy}
            device = AdvertisedDevice(
                instance.uuid, instance.uuid, gpu.uuid, gpu.index, f"{gpu.index}:{i}", part, gpu.numa, healthy
            )
            profiles.setdefault(instance.profile, []).append(device)
    for profile, devices in sorted(profiles.items()):
        yield GPU if config.mig_strategy == "single" else resource_of(profile), profile, devices


def _not_single(host: Host, divided: list[Gpu]) -> str:
    """Why the instances cannot be offered as GPUs; "" if they can, or if no GPU is in MIG mode."""
    if not divided:
        return ""
    whole = [str(gpu.index) for gpu in host.gpus if gpu.mig is None]
    if whole:
        return f"GPU {', '.join(whole)} is not in MIG mode while others are"
    empty = [str(gpu.index) for gpu in divided if not gpu.mig]
    if empty:
        return f"GPU {', '.join(empty)} has no MIG instance"
    profiles = sorted({instance.profile for gpu in divided for instance in gpu.mig or ()})
    return f"there are instances of {', '.join(profiles)}" if len(profiles) > 1 else ""


def _device(gpu: Gpu, unhealthy: Collection[str]) -> AdvertisedDevice:
    index = str(gpu.index)
    return AdvertisedDevice(gpu.uuid, gpu.uuid, gpu.uuid, gpu.index, index, index, gpu.numa, gpu.uuid not in unhealthy)


def _replicas(device: AdvertisedDevice, shared: Shared | None) -> list[AdvertisedDevice]:
    if shared is None:
        return [device]
    return [replace(device, id=f"{device.id}{_REPLICA}{n}") for n in range(shared.replicas)]


def unreplicated(id: str) -> str:
    """The id of a replica's device."""
    return id.partition(_REPLICA)[0]
