# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node.

Rules
- A GPU is in the list of a GPUNode; without one, indices come from the wiring of the node, its MIG cards, the number
  that it offers, or its label. Without all of these, GPUs are those that ResourceSlices describe. A GPU without a known
  UUID is named NODE/INDEX.
- A GPU is unhealthy while its node does not offer it, is quarantined, or cannot be reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.cluster.nodes import DOWN_TAINTS
from dovetail.core.cluster.placement import indices
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.dra.kinds import BUS_ID
from dovetail.core.dra.types import Device
from dovetail.core.model import GPU, MAX_GPUS, WHOLE_GPU_MILLI, Node
from dovetail.core.queues import device_units
from dovetail.core.state import State

_COUNT_LABEL = "nvidia.com/gpu.count"
_PARENTS = ("parentUUID", "uuid")
"""Attributes of a device by claim that name its GPU."""


class ListedGpu(Struct, frozen=True):
    """A GPU as its node's agent lists it; what is not known is ""."""

    index: int
    uuid: str = ""
    model: str = ""
    healthy: bool = True
    bus_id: str = ""


class NodeGpu(Struct, frozen=True):
    """A GPU of a node. `names` are all by which a device by claim may refer to it."""

    name: str
    index: int
    model: str
    healthy: bool
    names: tuple[str, ...] = ()


def gpus_on(state: State, slot: int, listed: Sequence[ListedGpu]) -> tuple[NodeGpu, ...]:
    """The GPUs of the node in a slot, by index. A node that is gone has none."""
    nodes = state.cluster.nodes
    record = nodes.records[slot]
    if record is None:
        return ()
    model = device_units.product(record).partition("-MIG-")[0]
    if listed:
        found = [
            NodeGpu(
                one.uuid or f"{record.name}/{one.index}", one.index, one.model or model, one.healthy,
                tuple(name for name in (one.uuid, one.bus_id.lower()) if name),
            )
            for one in listed
        ]  # fmt: skip
    else:
        found = [NodeGpu(f"{record.name}/{i}", i, model, True) for i in range(_counted(state, slot, record))]
    claimed = _claimable(state, slot)
    if claimed and (listed or not found):
        found += _described(record, claimed, found, model)
    in_mig = {card.gpu for card in record.mig}
    out = {gpu for gpu in indices(record.gpus_out) if gpu not in in_mig}
    down = bool(record.quarantine_ms or record.plugin_gone or any(one.key in DOWN_TAINTS for one in record.taints))
    return tuple(replace(one, healthy=one.healthy and not down and one.index not in out) for one in found)


def _counted(state: State, slot: int, record: Node) -> int:
    """How many GPUs a node has without a list of them."""
    nodes, amounts, sharing = state.cluster.nodes, dict(record.allocatable), record.sharing
    known = [card.gpu + 1 for card in record.mig]
    if record.layout is not None:
        known.append(record.layout.gpus)
    if record.sliced:
        milli = amounts.get(GPU, 0) * device_units.slice_of(record).milli
        known.append(_rounded(milli))
    else:
        geometries = device_units.geometries(record)
        milli = sum(
            device_units.instance(name, geometries).milli * count
            for name, count in record.allocatable
            if name.startswith(RESOURCE_PREFIX)
        )
        parts = 0 if record.mig else _rounded(milli)
        known.append(nodes.gpu_count(slot) + (sharing.cards if sharing is not None else 0) + parts)
        label = dict(record.labels).get(_COUNT_LABEL, "")
        known.append(int(label) if label.isascii() and label.isdigit() and len(label) < 4 else 0)
    return min(max(known), MAX_GPUS)


def _rounded(milli: int) -> int:
    """How many GPUs have so many thousandths in parts: what rounding adds to the parts makes no other GPU."""
    return (milli + WHOLE_GPU_MILLI // 2) // WHOLE_GPU_MILLI or min(1, milli)


def _claimable(state: State, slot: int) -> list[tuple[str, Device]]:
    """The GPUs, and parts of GPUs, that are offered by claim on this node alone, by driver."""
    devices = state.cluster.claims.answers.own([slot]).get(slot, [])
    return [(driver, device) for driver, device in devices if device_units.is_gpu(driver)]


def _described(
    record: Node, devices: Iterable[tuple[str, Device]], there: Sequence[NodeGpu], model: str
) -> Iterator[NodeGpu]:
    """The GPUs that ResourceSlices describe and that are not there yet."""
    known = {name for one in there for name in one.names}
    names: dict[tuple[str, ...], str] = {}
    for driver, device in devices:
        own = device_names(driver, device)
        if not known.intersection(own):
            known.update(own)
            names[own] = str(dict(device.attributes).get(f"{driver}/productName", "")) or model
    first = max((one.index for one in there), default=-1) + 1
    for index, (own, product) in enumerate(sorted(names.items()), first):
        uuid = next((name for name in own if name.startswith("GPU-")), "")
        yield NodeGpu(uuid or f"{record.name}/{index}", index, product.replace(" ", "-"), True, own)


def device_names(driver: str, device: Device) -> tuple[str, ...]:
    """By which names a device refers to its GPU; at least one."""
    attributes = dict(device.attributes)
    uuid = next((value for name in _PARENTS if isinstance(value := attributes.get(f"{driver}/{name}"), str)), "")
    bus_id = attributes.get(BUS_ID)
    found = tuple(name for name in (uuid, bus_id.lower() if isinstance(bus_id, str) else "") if name)
    return found or (f"{driver}/{device.name}",)
