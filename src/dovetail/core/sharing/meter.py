# SPDX-License-Identifier: Apache-2.0
"""What pods are counted with, and what there is of it, by resource class (see `records`).

Rules: a whole GPU is 1000 milli-GPU, a replica or a fraction what it holds of its GPU. A MIG instance is the larger of
its parts of the card's compute and memory slices, whatever the digit in its name says. Of a profile whose card is not
known the digit counts, in sevenths. Each device by claim that comes from a pool of GPUs counts as one GPU. What a pod
that waits will have of memory and of which model depends on the node that it gets: `wanted` leaves both out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX, Geometry
from dovetail.core.model import CPU as CPU_RESOURCE
from dovetail.core.model import GPU as GPU_RESOURCE
from dovetail.core.model import MEMORY as MEMORY_RESOURCE
from dovetail.core.model import WHOLE_GPU_MILLI, Node
from dovetail.core.sharing.records import CPU, GPU, GPU_MEMORY, GPU_SLICES, MEMORY, MODEL_LABEL, MODEL_PREFIX, Amounts

_SEVENTHS = 7
_GPU_DRIVERS = "gpu."
_SLICED = "-MIG-"
"""Between product and profile in the label of a node that offers MIG instances as whole GPUs."""


class Meter:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._wanted: dict[int, Amounts] = {}
        self._held: dict[tuple[int, int, int, int, int], Amounts] = {}
        self._kinds: dict[int, int] = {}
        """By slot a number for what the amounts of pods there depend on."""
        self._numbers: dict[object, int] = {}
        self._capacity: dict[str, int] = {}
        self._of_slot: dict[int, Amounts] = {}
        self._alike: dict[Amounts, Amounts] = {}
        self._seen = -1
        self.moved: list[int] = []
        """Slots where pods may count with other amounts than before; whoever counts them empties it."""

    def wanted(self, shape: Shape) -> Amounts:
        """What a pod of the shape will be counted with, wherever it goes."""
        amounts = self._wanted.get(shape.id)
        if amounts is None:
            if len(self._wanted) >= 65_536:
                self._wanted.clear()
            resources = dict(shape.request.resources)
            gpu_milli = WHOLE_GPU_MILLI * (shape.gpus + _claimed(shape))
            if shape.fraction:
                gpu_milli = max(1, shape.gpus + shape.shared) * shape.request.gpu_milli
            gpu_milli += sum(_instance(name, None)[0] * count for name, count in shape.slices)
            slices = sum(_instance(name, None)[1] * count for name, count in shape.slices)
            amounts = self._wanted[shape.id] = _amounts(
                {
                    CPU: resources.get(CPU_RESOURCE, 0), MEMORY: resources.get(MEMORY_RESOURCE, 0),
                    GPU: gpu_milli, GPU_SLICES: slices,
                }
            )  # fmt: skip
        return amounts

    def held(self, placement: Placement) -> Amounts:
        """What a placed pod is counted with."""
        return self.held_by((placement,))[0]

    def held_by(self, placements: Sequence[Placement]) -> list[Amounts]:
        """What each of these placed pods is counted with."""
        if self.behind:
            self.capacity()
        found: list[Amounts] = []
        shape: Shape | None = None
        amounts: Amounts = ()
        last = 0
        for placement in placements:
            kind = self._kinds.get(placement.slot, 0)
            claims = bool(placement.grants or placement.pod.device_claims)
            # Pods of a gang mostly have the same, on nodes of one kind.
            if placement.shape is not shape or kind != last or claims or placement.share_bits:
                amounts = self._held_on(placement, kind, self._granted(placement) if claims else 0)
                shape, last = None if claims or placement.share_bits else placement.shape, kind
            found.append(amounts)
        return found

    def _held_on(self, placement: Placement, kind: int, claimed: int) -> Amounts:
        """On a node of the kind, with so many GPUs by claims."""
        known = self._held
        key = placement.shape.id, placement.share_milli, placement.share_bits.bit_count(), kind, claimed
        amounts = known.get(key)
        if amounts is None:
            if len(known) >= 65_536:
                known.clear()
            amounts = known[key] = self._count(placement, claimed)
        return amounts

    def _count(self, placement: Placement, claimed: int) -> Amounts:
        """What it is counted with, with so many GPUs by claims."""
        shape, nodes = placement.shape, self._cluster.nodes
        record = nodes.records[placement.slot]
        resources = dict(shape.request.resources)
        counted = {CPU: resources.get(CPU_RESOURCE, 0), MEMORY: resources.get(MEMORY_RESOURCE, 0)}
        memory_mib = int(nodes.gpu_memory_mib[placement.slot])
        cards = placement.share_bits.bit_count()
        gpu_milli, gpu_memory_mib, slices = 0, 0, 0
        if cards:
            gpu_milli = placement.share_milli * cards
            gpu_memory_mib = -(-memory_mib * gpu_milli // WHOLE_GPU_MILLI)
        elif shape.gpus and record is not None and record.sliced:
            each, slices_each = _instance(_product(record).partition(_SLICED)[2], None)
            gpu_milli, slices, gpu_memory_mib = each * shape.gpus, slices_each * shape.gpus, memory_mib * shape.gpus
        elif shape.gpus:
            gpu_milli, gpu_memory_mib = WHOLE_GPU_MILLI * shape.gpus, memory_mib * shape.gpus
        for name, count in shape.slices:
            each, slices_each, memory_each = _instance_of(name, record)
            gpu_milli += each * count
            slices += slices_each * count
            gpu_memory_mib += memory_each * count
        gpu_milli += WHOLE_GPU_MILLI * claimed
        gpu_memory_mib += memory_mib * claimed
        counted |= {GPU: gpu_milli, GPU_SLICES: slices, GPU_MEMORY: gpu_memory_mib}
        model = _product(record).partition(_SLICED)[0] if record is not None else ""
        if model:
            counted[MODEL_PREFIX + model] = gpu_milli
        return _amounts(counted)

    def _granted(self, placement: Placement) -> int:
        """The GPUs by claims that this pod uses first of all pods."""
        claims, pod, found = self._cluster.claims, placement.pod, 0
        for key in dict.fromkeys([*pod.device_claims, *[grant.claim for grant in placement.grants]]):
            allocation = claims.allocation(key)
            if allocation is not None and next(iter(claims.users(key)), pod.uid) == pod.uid:
                found += sum([grant.driver.startswith(_GPU_DRIVERS) for grant in allocation.grants])
        return found

    @property
    def behind(self) -> bool:
        """Whether nodes have changed since it was asked what there is."""
        return self._seen != self._cluster.nodes.records_journal.end

    def capacity(self) -> Mapping[str, int]:
        """What the nodes have in all; nodes with a problem have nothing."""
        nodes = self._cluster.nodes
        changed = nodes.records_journal.since(self._seen) if self._seen >= 0 else None
        slots = range(nodes.used) if changed is None else changed.tolist()
        self._seen = nodes.records_journal.end
        for slot in slots:
            old, record = self._of_slot.pop(slot, ()), nodes.records[slot]
            new = _offered(record, int(nodes.gpu_count(slot))) if record is not None and nodes.usable[slot] else ()
            if new:
                # Thousands of nodes are alike.
                self._of_slot[slot] = self._alike.setdefault(new, new)
            before = self._kinds.pop(slot, 0)
            if record is not None:
                cards = tuple(dict.fromkeys(card.geometry for card in record.mig))
                kind = _product(record), record.gpu_memory_mib, record.sliced, cards, record.geometry
                self._kinds[slot] = self._numbers.setdefault(kind, len(self._numbers) + 1)
            if self._kinds.get(slot, 0) != before:
                self.moved.append(slot)
            for sign, amounts in ((-1, old), (1, new)):
                for name, amount in amounts:
                    self._capacity[name] = self._capacity.get(name, 0) + sign * amount
        return self._capacity


def _amounts(counted: Mapping[str, int]) -> Amounts:
    return tuple(sorted((name, amount) for name, amount in counted.items() if amount))


def _product(record: Node) -> str:
    return next((value for key, value in record.labels if key == MODEL_LABEL), "")


def _offered(record: Node, gpus: int) -> Amounts:
    resources = dict(record.allocatable)
    memory_mib, slices = record.gpu_memory_mib * gpus, 0
    gpu_milli = WHOLE_GPU_MILLI * gpus
    if record.sliced:
        count = resources.get(GPU_RESOURCE, 0)
        each, slices_each = _instance(_product(record).partition(_SLICED)[2], None)
        gpu_milli, slices, memory_mib = each * count, slices_each * count, record.gpu_memory_mib * count
    elif record.sharing is not None:
        gpu_milli += WHOLE_GPU_MILLI * record.sharing.cards
        memory_mib += record.gpu_memory_mib * record.sharing.cards
    for name, count in record.allocatable:
        if name.startswith(RESOURCE_PREFIX):
            each, slices_each, memory_each = _instance_of(name, record)
            gpu_milli += each * count
            slices += slices_each * count
            memory_mib += memory_each * count
    counted = {
        CPU: resources.get(CPU_RESOURCE, 0), MEMORY: resources.get(MEMORY_RESOURCE, 0), GPU: gpu_milli,
        GPU_SLICES: slices, GPU_MEMORY: memory_mib,
    }  # fmt: skip
    model = _product(record).partition(_SLICED)[0]
    return _amounts(counted | {MODEL_PREFIX + model: gpu_milli} if model else counted)


def _instance_of(resource: str, record: Node | None) -> tuple[int, int, int]:
    """Milli-GPU, compute slices and MiB of an instance on a node."""
    geometries: list[Geometry] = []
    if record is not None:
        geometries += [card.geometry for card in record.mig]
        geometries += [record.geometry] if record.geometry is not None else []
    for geometry in geometries:
        number = geometry.find(resource)
        if number is not None:
            return *_instance(resource, geometry), geometry.profiles[number].memory_mib
    return *_instance(resource, None), 0


@lru_cache(maxsize=4096)
def _instance(resource: str, geometry: Geometry | None) -> tuple[int, int]:
    """Milli-GPU and compute slices of an instance."""
    if geometry is not None and (number := geometry.find(resource)) is not None:
        profile = geometry.profiles[number]
        part = max(
            -(-WHOLE_GPU_MILLI * profile.compute_slices // geometry.compute_slices),
            -(-WHOLE_GPU_MILLI * profile.memory_slices // geometry.memory_slices),
        )
        return part, profile.compute_slices
    digits = resource.removeprefix(RESOURCE_PREFIX).partition("g.")[0]
    slices = int(digits) if digits.isdecimal() else 1
    return -(-WHOLE_GPU_MILLI * slices // _SEVENTHS), slices


def _claimed(shape: Shape) -> int:
    """How many devices the claims of the shape ask for by number, by the first of each request's alternatives."""
    return sum(max(0, alternatives[0].count) for spec in shape.wants for alternatives in spec.requests if alternatives)
