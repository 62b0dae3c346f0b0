# SPDX-License-Identifier: Apache-2.0
"""The units that a device counts for its queue: a GPU, a MIG instance, or a device by claim.

Rules: a whole GPU is 1000 milli-GPU. A MIG instance counts the larger of its parts of the card's compute slices and
memory slices, whatever the digit in its name; where the card is not known, the digit counts, in sevenths. A device by
claim counts if its driver is one of GPUs, that is if the driver's name begins with `gpu.`: a partition with a profile
as a MIG instance of that profile, a share of a device as the largest part that it consumes of one capacity, any other
device as a whole GPU. Devices of other drivers (NICs, for example) count nothing. Admin access counts nothing either,
since it allocates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig import products
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX, Geometry, resource_of
from dovetail.core.dra.capacity import Draw
from dovetail.core.dra.kinds import BUS_ID
from dovetail.core.dra.types import Device
from dovetail.core.model import CPU as CPU_RESOURCE
from dovetail.core.model import MEMORY as MEMORY_RESOURCE
from dovetail.core.model import WHOLE_GPU_MILLI, Node
from dovetail.core.queues.types import CPU, GPU, GPU_MEMORY, GPU_SLICES, MEMORY, MODEL_LABEL, MODEL_PREFIX, Amounts

_SEVENTHS = 7
_SLICED = "-MIG-"
"""Stands between product and profile in the label of a node that offers MIG instances as whole GPUs."""
_GPU_DRIVERS = "gpu."
_MIG = "mig"
_BYTES_MILLI = 1000 * 2**20


class DeviceUnits(NamedTuple):
    """Milli-GPU, compute slices, and MiB of GPU memory."""

    milli: int = 0
    slices: int = 0
    memory_mib: int = 0

    def times(self, count: int) -> DeviceUnits:
        return DeviceUnits(self.milli * count, self.slices * count, self.memory_mib * count)

    def and_(self, other: DeviceUnits) -> DeviceUnits:
        return DeviceUnits(self.milli + other.milli, self.slices + other.slices, self.memory_mib + other.memory_mib)


NOTHING = DeviceUnits()


def product(record: Node) -> str:
    """The node's GPU model by its label; "" for none."""
    for key, value in record.labels:
        if key == MODEL_LABEL:
            return value
    return ""


def kind(record: Node) -> tuple[object, ...]:
    """All that `counted` reads of a node: on nodes with equal kinds a pod counts the same amounts."""
    return product(record), record.gpu_memory_mib, record.sliced, tuple(dict.fromkeys(geometries(record)))


def geometries(record: Node | None) -> list[Geometry]:
    """The MIG geometries of the node's GPUs."""
    if record is None:
        return []
    found = [card.geometry for card in record.mig]
    return [*found, record.geometry] if record.geometry is not None else found


def slice_of(record: Node) -> DeviceUnits:
    """The units of one GPU of a node that offers MIG instances as whole GPUs."""
    part = instance(product(record).partition(_SLICED)[2])
    return DeviceUnits(part.milli, part.slices, record.gpu_memory_mib)


def counted(shape: Shape, record: Node | None, cards: int, share_milli: int, claimed: DeviceUnits) -> Amounts:
    """The amounts of a pod of the shape on a node, with a share of `cards` GPUs there, and these units by claim."""
    memory_mib = record.gpu_memory_mib if record is not None else 0
    part = NOTHING
    if cards:
        milli = share_milli * cards
        part = DeviceUnits(milli, 0, -(-memory_mib * milli // WHOLE_GPU_MILLI))
    elif shape.gpus and record is not None and record.sliced:
        part = slice_of(record).times(shape.gpus)
    elif shape.gpus:
        part = DeviceUnits(WHOLE_GPU_MILLI, 0, memory_mib).times(shape.gpus)
    for name, count in shape.slices:
        part = part.and_(instance(name, geometries(record)).times(count))
    return amounts(record, shape.request.resources, part.and_(claimed))


def amounts(record: Node | None, resources: Iterable[tuple[str, int]], part: DeviceUnits) -> Amounts:
    """The amounts by resource class, including the class of the node's GPU model."""
    named = dict(resources)
    found = {
        CPU: named.get(CPU_RESOURCE, 0), MEMORY: named.get(MEMORY_RESOURCE, 0), GPU: part.milli,
        GPU_SLICES: part.slices, GPU_MEMORY: part.memory_mib,
    }  # fmt: skip
    model = product(record).partition(_SLICED)[0] if record is not None else ""
    if model:
        found[MODEL_PREFIX + model] = part.milli
    return tuple(sorted((name, amount) for name, amount in found.items() if amount))


def is_gpu(driver: str) -> bool:
    """Whether the devices of the driver are GPUs."""
    return driver.startswith(_GPU_DRIVERS)


def instance(resource: str, geometries: Iterable[Geometry] = ()) -> DeviceUnits:
    """The units of a MIG instance of this resource on a node whose GPUs have these geometries."""
    for geometry in geometries:
        number = geometry.find(resource)
        if number is not None:
            profile = geometry.profiles[number]
            milli = max(
                -(-WHOLE_GPU_MILLI * profile.compute_slices // geometry.compute_slices),
                -(-WHOLE_GPU_MILLI * profile.memory_slices // geometry.memory_slices),
            )
            return DeviceUnits(milli, profile.compute_slices, profile.memory_mib)
    return _unknown(resource)


@lru_cache(maxsize=4096)
def _unknown(resource: str) -> DeviceUnits:
    digits = resource.removeprefix(RESOURCE_PREFIX).partition("g.")[0]
    slices = int(digits) if digits.isdecimal() else 1
    return DeviceUnits(-(-WHOLE_GPU_MILLI * slices // _SEVENTHS), slices)


def by_claim(driver: str, device: Device | None, drawn: Draw | None, memory_mib: int) -> DeviceUnits:
    """The units of a device by claim; `device` is None where it is not offered any more. `drawn` is what is consumed of
    its capacities where it is shared (None: all of it is allocated). `memory_mib` is the memory of a GPU of the node,
    for devices that do not state theirs."""
    if not is_gpu(driver):
        return NOTHING
    if device is None:
        return DeviceUnits(WHOLE_GPU_MILLI, 0, memory_mib)
    whole = _whole(driver, device, memory_mib)
    if drawn is None:
        return whole
    capacities = [(taken, capacity.milli) for taken, (_, capacity) in zip(drawn, device.capacity, strict=True)]
    milli = max(
        (-(-WHOLE_GPU_MILLI * taken // there) for taken, there in capacities if there > 0), default=WHOLE_GPU_MILLI
    )
    return DeviceUnits(*(-(-one * milli // WHOLE_GPU_MILLI) for one in whole))


def cards(devices: Iterable[tuple[str, Device]], memory_mib: int) -> DeviceUnits:
    """The units of the GPUs that a node offers by claim, each with its driver. A driver may offer the partitions of a
    GPU beside or instead of the whole GPU: devices with one PCI bus id count as one GPU."""
    found, seen = NOTHING, set[object]()
    for driver, device in sorted(devices, key=lambda each: _is_instance(*each)):
        if not is_gpu(driver):
            continue
        attributes = dict(device.attributes)
        card = attributes.get(BUS_ID)
        if card is not None and card in seen:
            continue
        seen.add(card)
        if card is not None and _is_instance(driver, device):
            geometry = _geometry(driver, device)
            slices = geometry.compute_slices if geometry is not None else 0
            found = found.and_(DeviceUnits(WHOLE_GPU_MILLI, slices, memory_mib))
        else:
            found = found.and_(_whole(driver, device, memory_mib))
    return found


def _is_instance(driver: str, device: Device) -> bool:
    return dict(device.attributes).get(f"{driver}/type") == _MIG


def _geometry(driver: str, device: Device) -> Geometry | None:
    product = dict(device.attributes).get(f"{driver}/productName")
    return products.of_product(product) if isinstance(product, str) else None


def _whole(driver: str, device: Device, memory_mib: int) -> DeviceUnits:
    attributes = dict(device.attributes)
    memory = dict(device.capacity).get(f"{driver}/memory")
    mib = memory.milli // _BYTES_MILLI if memory is not None else memory_mib
    profile = attributes.get(f"{driver}/profile")
    if _is_instance(driver, device) and isinstance(profile, str):
        geometry = _geometry(driver, device)
        part = instance(resource_of(profile), [geometry] if geometry is not None else ())
        return DeviceUnits(part.milli, part.slices, mib if memory is not None else part.memory_mib)
    return DeviceUnits(WHOLE_GPU_MILLI, 0, mib)
