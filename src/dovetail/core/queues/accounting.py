# SPDX-License-Identifier: Apache-2.0
"""The units that placed pods count, and the capacity of the nodes, by resource class (see `types`).

Rules: a whole GPU is 1000 milli-GPU, a replica or a fraction its part of the GPU. MIG instances and devices by claim
count as `device_units` states. A claim that several pods share counts for one of them: the first that is placed.
`demand` counts waiting pods by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.dra.allocations import Use
from dovetail.core.dra.types import Device
from dovetail.core.model import GPU as GPU_RESOURCE
from dovetail.core.model import WHOLE_GPU_MILLI, Node
from dovetail.core.queues import device_units
from dovetail.core.queues.demand import Demand
from dovetail.core.queues.device_units import NOTHING, DeviceUnits
from dovetail.core.queues.types import Amounts

_REMEMBERED = 65_536


class Accounting:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held: dict[tuple[int, int, int, int, DeviceUnits], Amounts] = {}
        self._kinds: dict[int, int] = {}
        """By slot: the number of the class of nodes on which pods count the same amounts (`device_units.kind`)."""
        self._numbers: dict[object, int] = {}
        self._devices: dict[int, list[tuple[str, Device]]] = {}
        """By slot: the GPUs that the node offers by claim, each with its driver."""
        self._capacity: dict[str, int] = {}
        self._of_slot: dict[int, Amounts] = {}
        self._of_class: dict[object, Amounts] = {}
        """The capacity of nodes without devices by claim, by all that it depends on. Thousands of nodes share one."""
        self._seen = -1
        self._devices_seen = -1
        self.demand = Demand(cluster, self._kinds)
        self.counted_for: dict[str, str] = {}
        """By claim: the uid of the pod for which the claim counts. `ClaimUsers` keeps it."""
        self.moved: list[int] = []
        """Slots where pods may count other amounts than before. The caller that counts them again empties the list."""

    def held(self, placement: Placement) -> Amounts:
        """The amounts that a placed pod counts."""
        if self.behind:
            self.capacity()
        claimed = self._granted(placement, set()) if _claims(placement) else NOTHING
        return self._held_on(placement, self._kinds.get(placement.slot, 0), claimed)

    def held_by(self, placements: Sequence[Placement]) -> list[Amounts]:
        """The amounts that each of these placed pods counts."""
        if self.behind:
            self.capacity()
        found: list[Amounts] = []
        shape: Shape | None = None
        amounts: Amounts = ()
        last = 0
        seen: set[str] = set()
        for placement in placements:
            kind, claims = self._kinds.get(placement.slot, 0), _claims(placement)
            # The pods of a gang mostly have one shape, on nodes of one class.
            if placement.shape is not shape or kind != last or claims or placement.share_bits:
                amounts = self._held_on(placement, kind, self._granted(placement, seen) if claims else NOTHING)
                shape, last = None if claims or placement.share_bits else placement.shape, kind
            found.append(amounts)
        return found

    def _held_on(self, placement: Placement, kind: int, claimed: DeviceUnits) -> Amounts:
        """The amounts on a node of this class, with these units by claim."""
        known = self._held
        key = placement.shape.id, placement.share_milli, placement.share_bits.bit_count(), kind, claimed
        amounts = known.get(key)
        if amounts is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            record, cards = self._cluster.nodes.records[placement.slot], placement.share_bits.bit_count()
            amounts = known[key] = device_units.counted(placement.shape, record, cards, placement.share_milli, claimed)
        return amounts

    def _granted(self, placement: Placement, seen: set[str]) -> DeviceUnits:
        """The units that this pod counts for its claims. A claim that counts for no placed pod counts for the first pod
        that asks: its key is then in `seen`."""
        claims, pod, found = self._cluster.claims, placement.pod, NOTHING
        memory_mib = int(self._cluster.nodes.gpu_memory_mib[placement.slot])
        for key in dict.fromkeys([*claims.named(pod), *[grant.claim for grant in placement.grants]]):
            allocation, uid = claims.allocation(key), self.counted_for.get(key, "")
            if uid != pod.uid and (uid in self._cluster.placements or key in seen):
                continue
            seen.add(key)
            for grant in allocation.grants if allocation is not None else ():
                if grant.admin_access:
                    continue
                device = claims.offers.device((grant.driver, grant.pool), grant.device)
                drawn = None
                if device is not None and grant.share:
                    drawn = Use(shares=[grant.consumed]).drawn(grant.driver, device)
                found = found.and_(device_units.by_claim(grant.driver, device, drawn, memory_mib))
        return found

    @property
    def behind(self) -> bool:
        """Whether nodes, or the devices that they offer, have changed since the last call of `capacity`."""
        nodes = self._cluster.nodes
        return self._seen != nodes.records_journal.end or self._devices_seen != nodes.devices_journal.end

    def capacity(self) -> Mapping[str, int]:
        """The capacity of all nodes together. A node with a problem has none."""
        nodes, changed = self._cluster.nodes, self._changed()
        own = self._cluster.claims.answers.own(changed) if changed else {}
        for slot in changed:
            old, record = self._of_slot.pop(slot, ()), nodes.records[slot]
            devices = [each for each in own.get(slot, ()) if device_units.is_gpu(each[0])]
            before, kind = self._kinds.pop(slot, 0), 0
            if record is not None:
                kind = self._kinds[slot] = self._numbers.setdefault(device_units.kind(record), len(self._numbers) + 1)
            new: Amounts = ()
            if record is not None and nodes.usable[slot]:
                new = self._offered(record, kind, int(nodes.gpu_count(slot)), devices)
            if new:
                self._of_slot[slot] = new
            if kind != before or self._devices.get(slot, []) != devices:
                self.moved.append(slot)
            if devices:
                self._devices[slot] = devices
            else:
                self._devices.pop(slot, None)
            for sign, amounts in ((-1, old), (1, new)):
                for name, amount in amounts:
                    self._capacity[name] = self._capacity.get(name, 0) + sign * amount
            self.demand.put(slot)
        return self._capacity

    def _offered(self, record: Node, kind: int, gpus: int, devices: Sequence[tuple[str, Device]]) -> Amounts:
        """The capacity of a node of this class with so many whole GPUs and these devices by claim."""
        if devices:
            return _offered(record, gpus, devices)
        key = record.allocatable, gpus, kind, record.sharing
        found = self._of_class.get(key)
        if found is None:
            if len(self._of_class) >= _REMEMBERED:
                self._of_class.clear()
            found = self._of_class[key] = _offered(record, gpus, ())
        return found

    def _changed(self) -> list[int]:
        """The slots whose nodes or devices have changed since the last call."""
        nodes = self._cluster.nodes
        if not self.behind:
            return []
        records = nodes.records_journal.since(self._seen) if self._seen >= 0 else None
        devices = nodes.devices_journal.since(self._devices_seen) if self._seen >= 0 else None
        if self._devices_seen != nodes.devices_journal.end:
            self.demand.renew()
        self._seen, self._devices_seen = nodes.records_journal.end, nodes.devices_journal.end
        if records is None or devices is None:
            return list(range(nodes.used))
        return list(dict.fromkeys([*records.tolist(), *devices.tolist()]))


def _claims(placement: Placement) -> bool:
    """Whether the pod has, or may have, devices by claim."""
    return bool(placement.grants or placement.pod.device_claims or placement.pod.by_claim)


def _offered(record: Node, gpus: int, devices: Sequence[tuple[str, Device]]) -> Amounts:
    """The capacity of a node with so many whole GPUs and these devices by claim."""
    resources = dict(record.allocatable)
    if record.sliced:
        whole = device_units.slice_of(record).times(resources.get(GPU_RESOURCE, 0))
    else:
        shared = record.sharing.cards if record.sharing is not None else 0
        whole = DeviceUnits(WHOLE_GPU_MILLI, 0, record.gpu_memory_mib).times(gpus + shared)
    for name, count in record.allocatable:
        if name.startswith(RESOURCE_PREFIX):
            whole = whole.and_(device_units.instance(name, device_units.geometries(record)).times(count))
    return device_units.amounts(
        record, record.allocatable, whole.and_(device_units.cards(devices, record.gpu_memory_mib))
    )
