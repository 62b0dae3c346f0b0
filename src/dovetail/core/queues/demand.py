# SPDX-License-Identifier: Apache-2.0
"""The amounts that waiting pods count.

Rules: the amounts of a pod may depend on its node: the same memory is a larger part of a smaller GPU, a replica is a
part of its GPU that the node sets, a MIG instance depends on the card, and a claim on the devices. A waiting pod counts
of each class the least that it can count on any node that its selector and affinity admit and that could provide its
GPUs if the node were empty, by the rules for placed pods (`device_units`). Where GPUs differ, that may be too little
and is never too much: what a pod would count on one node never keeps it from another. Limits are checked again with the
chosen node. Where no node could provide a resource, whole GPUs and fractions count as they are written, MIG instances
by the digit in their names, and the rest as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dovetail.core.cluster import Cluster, shares
from dovetail.core.cluster.selection import matches_affinity
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.dra.asks import RequestOption
from dovetail.core.dra.kinds import bits
from dovetail.core.dra.pools import PoolId, PoolOffer
from dovetail.core.model import GPU, SHARED_GPU, WHOLE_GPU_MILLI, Node
from dovetail.core.queues import device_units
from dovetail.core.queues.device_units import NOTHING, DeviceUnits
from dovetail.core.queues.types import Amounts

_REMEMBERED = 65_536


class Demand:
    """`version` grows when earlier answers are out of date. Call `put` for each slot whose node or whose devices by
    claim changed, and `renew` when the same claims select other devices."""

    def __init__(self, cluster: Cluster, kinds: Mapping[int, int]) -> None:
        """kinds: by slot, the number of the node's class (`device_units.kind`)."""
        self._cluster = cluster
        self._kinds = kinds
        self.version = 0
        self._wanted: dict[int, Amounts] = {}
        self._on: dict[tuple[int, int], Amounts | None] = {}
        """By shape and class of nodes: the amounts; None where such a node cannot provide the GPUs."""
        self._numbers: dict[object, int] = {}
        self._named: dict[tuple[Amounts, str], Amounts] = {}
        """The part of a node's resources that counts, by its resources and the resource name of its shared GPUs."""
        self._last = 0
        self._of_slot: dict[int, int] = {}
        """By slot: the number of the class of nodes that could provide the same."""
        self._slots: dict[int, dict[int, None]] = {}
        self._labels: dict[int, tuple[tuple[str, str], ...]] = {}

    def renew(self) -> None:
        """Drop all answers."""
        self.version += 1
        self._wanted.clear()
        self._on.clear()

    def put(self, slot: int) -> None:
        """Count with the node that is in the slot now."""
        nodes = self._cluster.nodes
        record = nodes.records[slot] if nodes.usable[slot] else None
        before, labels = self._of_slot.get(slot), self._labels.pop(slot, None)
        number = self._number(slot, record) if record is not None else None
        if record is not None:
            self._labels[slot] = record.labels
        if number != before:
            self._enter(slot, number)
        if number != before or labels != self._labels.get(slot):
            self.renew()

    def _enter(self, slot: int, number: int | None) -> None:
        before = self._of_slot.pop(slot, None)
        if before is not None:
            del self._slots[before][slot]
            if not self._slots[before]:
                del self._slots[before]
        if number is not None:
            self._of_slot[slot] = number
            self._slots.setdefault(number, {})[slot] = None

    def _number(self, slot: int, record: Node) -> int:
        place = self._cluster.claims.offers.places.get(slot)
        devices: tuple[object, ...] = ()
        if place is not None:
            worth = [device_units.by_claim(pool[0], offer.device, None, 0) for pool, offer in place.offers]
            devices = place.stock.kind.number, tuple(worth)
        shared = record.sharing.resource if record.sharing is not None else ""
        resources = self._named.get((record.allocatable, shared))
        if resources is None:
            if len(self._named) >= _REMEMBERED:
                self._named.clear()
            resources = self._named[record.allocatable, shared] = _resources(record.allocatable, shared)
        kind = self._kinds[slot], record.sharing, resources, devices
        number = self._numbers.get(kind)
        if number is None:
            if len(self._numbers) >= _REMEMBERED:
                self._numbers.clear()
            self._last += 1
            number = self._numbers[kind] = self._last
        return number

    def wanted(self, shape: Shape) -> Amounts:
        """The amounts that a pod of the shape will count at least."""
        amounts = self._wanted.get(shape.id)
        if amounts is None:
            kinds = self._cluster.claims.offers.kinds
            version = kinds.version - 1
            while version != kinds.version:
                # The claims of the shape may be the first to read an attribute in which nodes of one class differ.
                version = kinds.version
                amounts = self._least(shape)
                if version != kinds.version:
                    self._number_again()
            assert amounts is not None
            if len(self._wanted) >= _REMEMBERED:
                self._wanted.clear()
            self._wanted[shape.id] = amounts
        return amounts

    def _number_again(self) -> None:
        self._on.clear()
        for slot in list(self._of_slot):
            record = self._cluster.nodes.records[slot]
            self._enter(slot, self._number(slot, record) if record is not None else None)

    def _least(self, shape: Shape) -> Amounts:
        found: dict[str, int] | None = None
        for slot in self._candidates(shape):
            amounts = self._counted_on(shape, slot)
            if amounts is not None:
                here = dict(amounts)
                if found is not None:
                    here = {name: min(found[name], here[name]) for name in found if name in here}
                found = here
        if found is None:
            cards = max(1, shape.shared) if shape.request.gpu_milli and not shape.gpus else 0
            return device_units.counted(shape, None, cards, shape.request.gpu_milli, NOTHING)
        return tuple(sorted(found.items()))

    def _candidates(self, shape: Shape) -> Iterable[int]:
        """One node of each class that the shape's selector and affinity admit; none if the shape requests no GPU."""
        request = shape.request
        if not (shape.gpus or shape.shared or shape.slices or shape.fraction or shape.wants or shape.stand_ins):
            return ()
        if not request.node_selector and request.node_terms is None:
            return [next(iter(slots)) for slots in self._slots.values()]
        nodes = self._cluster.nodes
        admitted, found = matches_affinity(nodes, request, slice(0, nodes.used)), dict[int, int]()
        for slot in np.flatnonzero(admitted).tolist():
            if slot in self._of_slot:
                found.setdefault(self._of_slot[slot], slot)
        return found.values()

    def _counted_on(self, shape: Shape, slot: int) -> Amounts | None:
        key = shape.id, self._of_slot[slot]
        if key not in self._on:
            if len(self._on) >= _REMEMBERED:
                self._on.clear()
            self._on[key] = self._on_node(self._cluster.shapes.at(shape, slot), slot)
        return self._on[key]

    def _on_node(self, shape: Shape, slot: int) -> Amounts | None:
        """The amounts of the shape on this node; None where the node could not provide its GPUs."""
        nodes = self._cluster.nodes
        record, sharing = nodes.records[slot], nodes.sharing(slot)
        there = dict(record.allocatable) if record is not None else {}
        asked = [(GPU, shape.gpus), (SHARED_GPU, shape.shared), *shape.slices]
        if any(amount > there.get(name, 0) for name, amount in asked):
            return None
        count = shape.replicas(sharing) if sharing is not None else 0
        if shape.fraction and not (shape.gpus or shape.shared or nodes.gpu_count(slot)):
            return None
        taken = shares.take(nodes, shape, slice(slot, slot + 1))
        share = int(taken[0]) if taken is not None else 0
        claimed = self._by_claims(shape, slot)
        if share == shares.NOWHERE or claimed is None:
            return None
        whole = share + shares.extra(nodes, shape, slot) if share else 0
        milli = -(-whole * WHOLE_GPU_MILLI // int(nodes.gpu_whole[slot]))
        return device_units.counted(shape, record, max(count, 1) if share else 0, milli, claimed)

    def _by_claims(self, shape: Shape, slot: int) -> DeviceUnits | None:
        """The units of its claims on this node; None where the node does not have the devices."""
        if not shape.wants:
            return NOTHING
        view, offers = self._cluster.claims.answers.view(slot, shape.wants)
        memory_mib = int(self._cluster.nodes.gpu_memory_mib[slot])
        if view.fault is not None:
            return None
        found = NOTHING
        for alternatives in (options for requests in view.claims for options in requests):
            worths = [worth for option in alternatives if (worth := _worth(option, offers, memory_mib)) is not None]
            if not worths:
                return None
            found = found.and_(min(worths))
        return found


def _resources(allocatable: Amounts, shared: str) -> Amounts:
    """The resources of a node that matter here. Only the numbers of GPUs count; any other extended resource matters
    because a claim may stand in for it."""
    return tuple(
        [
            (name, amount if name in (GPU, SHARED_GPU, shared) or name.startswith(RESOURCE_PREFIX) else 1)
            for name, amount in allocatable
            if amount and "/" in name
        ]
    )


def _worth(option: RequestOption, offers: Sequence[tuple[PoolId, PoolOffer]], memory_mib: int) -> DeviceUnits | None:
    """The least units that the devices of a request can count; None where there are too few devices."""
    if option.count > option.matching.bit_count():
        return None
    if option.request.admin_access:
        return NOTHING
    worths = []
    for bit in bits(option.matching):
        pool, offer = offers[bit]
        drawn = option.draws[bit] if offer.device.shareable else None
        worths.append(device_units.by_claim(pool[0], offer.device, drawn, memory_mib))
    found = NOTHING
    for worth in sorted(worths)[: option.count]:
        found = found.and_(worth)
    return found
