# SPDX-License-Identifier: Apache-2.0
"""The contents of this node's ResourceSlices, as documents.

Rules
- Attributes and capacities have the names and meanings of NVIDIA's driver and of Kubernetes. Two are ours, below
  dovetail.dev: `nvlinkDomain`, the fabric as in the label nvidia.com/gpu.clique, and `nvlinkGroup`, the same number on
  all GPUs of this node that NVLinks connect, directly or not. Unknown values have no attribute.
- With partitionable GPUs each GPU in MIG mode has a counter set, with one counter for each memory slice and kind of
  engine; its devices consume them. A profile that allows fewer instances than it has places has a counter of its own.
- An unhealthy device has a taint, as have all devices of an unhealthy GPU. NoSchedule keeps new claims away; NoExecute
  also ends pods, and is used if only a reboot helps: nothing can run on such a GPU.
- A slice has at most 64 devices or 8 counter sets, the API's limits for slices with taints. Counter sets and devices
  are in separate slices. Sources: k8s.io/api resource/v1 (1.37), dynamic-resource-allocation/deviceattribute,
  dra-driver-nvidia-gpu v0.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from dovetail.agent.dra.offer import Offered, Partition, places
from dovetail.agent.health.health import LOST, Unhealthy
from dovetail.agent.health.xids import Action
from dovetail.agent.machine.host import Gpu, GpuEngines, Host
from dovetail.kube.objects.base import time_text

MOST_DEVICES = 64
MOST_COUNTER_SETS = 8
MOST_TAINTS = 16
_LONGEST_TEXT = 64
_STANDARD = "resource.kubernetes.io"
_OURS = "dovetail.dev"
_ENGINES = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
_ENGINE_COUNTERS = ("multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")
"""NVIDIA's names of the fields of GpuEngines, in their order."""

Document = dict[str, Any]


def contents(host: Host, devices: Sequence[Offered], driver: str, unhealthy: Sequence[Unhealthy]) -> list[Document]:
    """The contents of the slices in their order: `sharedCounters` or `devices` of each spec."""
    groups = _nvlink_groups(host)
    wired = [_device(host, one, groups.get(one.gpu.index), driver, unhealthy) for one in devices]
    divided = {device.gpu.uuid: device.gpu for device in devices if _is_place(device)}
    sets = [_counter_set(gpu, [one for one in devices if one.gpu is gpu]) for gpu in divided.values()]
    return [
        *({"sharedCounters": part} for part in _parts(sets, MOST_COUNTER_SETS)),
        *({"devices": part} for part in _parts(wired, MOST_DEVICES)),
    ]


def faults_of(device: Offered, unhealthy: Iterable[Unhealthy]) -> list[Unhealthy]:
    """The health problems of the device."""
    return [each for each in unhealthy if each.uuid in (device.gpu.uuid, device.uuid)]


def taint(fault: Unhealthy, driver: str) -> Document:
    """The taint of a health problem; the key is NVIDIA's if it has one."""
    key, value = f"{_OURS}/{fault.code}", ""
    if fault.code == LOST:
        key = f"{driver}/gpu-lost"
    elif fault.code.startswith("xid-"):
        value = fault.code.removeprefix("xid-")
        key = f"{driver}/xid"
    since = time_text(fault.since_ms)
    effect = "NoExecute" if fault.action is Action.QUARANTINE_NODE else "NoSchedule"
    return {"key": key, **({"value": value} if value else {}), "effect": effect, "timeAdded": since}


def _is_place(device: Offered) -> bool:
    """Whether an instance is created there for a claim."""
    return device.partition is not None and device.instance is None


def _device(host: Host, device: Offered, group: int | None, driver: str, unhealthy: Sequence[Unhealthy]) -> Document:
    partition = device.partition
    document: Document = {"name": device.name, "attributes": _attributes(host, device, group)}
    document["capacity"] = {name: {"value": value} for name, value in _capacity(device).items()}
    if partition is not None and _is_place(device):
        taken = _amounts(_counters(device.gpu, partition))
        document["consumesCounters"] = [{"counterSet": _set_name(device.gpu), "counters": taken}]
    if taints := [taint(fault, driver) for fault in faults_of(device, unhealthy)]:
        document["taints"] = taints[:MOST_TAINTS]
    return document


def _attributes(host: Host, device: Offered, group: int | None) -> Document:
    gpu, partition = device.gpu, device.partition
    texts = {
        "type": "gpu" if partition is None else "mig",
        "uuid": "" if _is_place(device) else device.uuid,
        "parentUUID": gpu.uuid if partition is not None else "",
        "profile": partition.profile if partition is not None else "",
        "productName": gpu.product,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "addressingMode": gpu.addressing,
        f"{_STANDARD}/pciBusID": gpu.pci_bus_id,
        f"{_STANDARD}/pcieRoot": gpu.pcie_root,
        f"{_OURS}/nvlinkDomain": gpu.fabric.domain if gpu.fabric is not None else "",
    }
    versions = {
        "cudaComputeCapability": _version(gpu.compute),
        "driverVersion": _version(host.driver.split(".")),
        "cudaDriverVersion": _version(host.cuda),
    }
    # Instances cannot reach each other, nor other GPUs, over NVLink.
    numbers = {
        f"{_STANDARD}/numaNode": gpu.numa,
        f"{_OURS}/nvlinkGroup": group if partition is None else None,
    }
    return {
        **{name: {"string": text[:_LONGEST_TEXT]} for name, text in texts.items() if text},
        **{name: {"version": version} for name, version in versions.items() if version},
        **{name: {"int": number} for name, number in numbers.items() if number is not None},
    }


def _version(parts: Iterable[object] | None) -> str:
    """A semantic version of three numbers without leading zeros; "" if it cannot be one."""
    numbers = [str(part) for part in parts or ()]
    if not numbers or len(numbers) > 3 or not all(number.isdecimal() for number in numbers):
        return ""
    return ".".join(str(int(number)) for number in (*numbers, "0", "0")[:3])


def _capacity(device: Offered) -> dict[str, str]:
    """The capacities; memory is that of the driver."""
    partition = device.partition
    if partition is None:
        return {"memory": f"{device.gpu.memory_mib}Mi"}
    slices = range(partition.start, partition.start + partition.size) if device.instance is not None else ()
    return {
        "memory": f"{partition.memory_mib}Mi",
        **dict(zip(_ENGINES, map(str, astuple(partition.engines)), strict=True)),
        **{f"memorySlice{number}": "1" for number in slices},
    }


def _set_name(gpu: Gpu) -> str:
    return f"gpu-{gpu.minor}-counter-set"


def _counter_set(gpu: Gpu, devices: Iterable[Offered]) -> Document:
    """The counter set of a GPU. Each counter is the most that instances of any one profile take, or the GPU's own
    number if that is more, less what instances from outside of the agent take."""
    counters: Counter[str] = Counter({"memory": gpu.memory_mib})
    counters.update(_engines(gpu.engines))
    for profile in gpu.profiles:
        many = Counter({"memory": profile.memory_mib * profile.most})
        many.update({name: count * profile.most for name, count in _engines(profile.engines).items()})
        counters |= many
    for place in places(gpu):
        scarce = {name: most for name, (_, most) in _scarce(gpu, place.id).items()}
        counters |= Counter(dict.fromkeys(_slices(place), 1) | scarce)
    for device in devices:
        if device.partition is not None and not _is_place(device):
            counters.subtract(_counters(gpu, device.partition))
    return {"name": _set_name(gpu), "counters": _amounts({name: max(left, 0) for name, left in counters.items()})}


def _counters(gpu: Gpu, partition: Partition) -> dict[str, int]:
    """The counters that the partition consumes."""
    return {
        "memory": partition.memory_mib,
        **_engines(partition.engines),
        **dict.fromkeys(_slices(partition), 1),
        **{name: one for name, (one, _) in _scarce(gpu, partition.id).items()},
    }


def _engines(engines: GpuEngines) -> dict[str, int]:
    return {name: count for name, count in zip(_ENGINE_COUNTERS, astuple(engines), strict=True) if count}


def _slices(partition: Partition) -> list[str]:
    return [f"memory-slice-{number}" for number in range(partition.start, partition.start + partition.size)]


def _scarce(gpu: Gpu, profile: int) -> dict[str, tuple[int, int]]:
    """The counter of a profile with more places than instances: (1, the most instances); else empty."""
    found = next((each for each in gpu.profiles if each.id == profile), None)
    if found is None or found.most >= len(found.starts):
        return {}
    return {f"profile-{profile}": (1, found.most)}


def _amounts(counters: Mapping[str, int]) -> Document:
    return {name: {"value": f"{count}Mi" if name == "memory" else str(count)} for name, count in counters.items()}


def _nvlink_groups(host: Host) -> dict[int, int]:
    """The group of each GPU that has NVLinks to another: the least index in it."""
    links = host.nvlinks or ()
    group = list(range(len(links)))
    for i, row in enumerate(links):
        for j in range(i):
            if row[j] > 0 and group[i] != group[j]:
                low, high = sorted((group[i], group[j]))
                group = [low if each == high else each for each in group]
    return {i: each for i, each in enumerate(group) if group.count(each) > 1}


def _parts(items: list[Document], size: int) -> Iterator[list[Document]]:
    return (items[i : i + size] for i in range(0, len(items), size))
