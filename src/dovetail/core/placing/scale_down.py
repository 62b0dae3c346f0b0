# SPDX-License-Identifier: Apache-2.0
"""Which pods of a ReplicaSet should end first when it is scaled down: those that leave a whole domain without GPU pods.

Rules
- Domains are nodes, and the domains in which NVLink joins nodes, as far as they are levels of the fabric. A domain can
  be freed by a ReplicaSet if its own pods are all that hold GPUs there.
- First comes the pod that alone frees the most GPUs of one domain; then, of pods that free equally many, the one with
  the most GPUs of a domain for each pod of the set that has to end for it. The next pod is chosen as if those before it
  had ended.
- Of pods that are equal in this, one that is first already stays first, so that an order is kept as long as it is as
  good as any; then the newest comes first, as with the ReplicaSet controller.
- Pods that free no domain, however many of the set end, are left to the controller's own order.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from msgspec import Struct

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.placement import Placement
from dovetail.core.fabric import NVLINK_LEVELS

MOST_FIRST = 16
"""The pods of one ReplicaSet that are put in order: the next ones follow when these have ended."""
_KINDS = ("Deployment/", "ReplicaSet/")
_Domain = tuple[int, int]
"""The number of its level, 0 for nodes, and of the domain in it."""
_Rank = tuple[int, int, int, int, str, int]
Slots = Mapping[int, list[Placement]]
"""Pods by the slots of their nodes."""


class FreeingPod(Struct, frozen=True):
    """A pod with the largest domain that has no GPU pods once it and `others` more of its ReplicaSet have ended.
    `level` is the node label key of the domain, "" for a node."""

    uid: str
    gpus: int
    level: str
    domain: str
    others: int = 0


class Domains:
    """The domains of a cluster as they are when this is made, with how many pods hold GPUs in each: the cluster may
    change while it is in use. Pods that are ending hold none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        fabric = cluster.fabric
        self._levels = [level for level in fabric.levels if level in NVLINK_LEVELS]
        self._columns: list[list[int]] = [fabric.domains(level).tolist() for level in self._levels]
        self._names = [
            list(cluster.nodes.names),
            *([fabric.name(level, i) for i in range(fabric.count(level))] for level in self._levels),
        ]
        self._slots: dict[int, dict[int, list[int]]] = {}
        """By the number of a level the slots of its domains."""
        self._gpus: dict[_Domain, int] = {}
        self._sets: dict[str, dict[int, list[Placement]]] = {}
        on_slots = [0] * cluster.nodes.size
        for placement in cluster.placements.values():
            if placement.pod.deleting or not _holds(placement):
                continue
            on_slots[placement.slot] += 1
            pod = placement.pod
            if pod.owner and pod.managed and pod.node and pod.made_for.startswith(_KINDS):
                self._sets.setdefault(pod.owner, {}).setdefault(placement.slot, []).append(placement)
        self._pods = [dict(enumerate(on_slots)), *(_summed(column, on_slots) for column in self._columns)]

    def replica_sets(self) -> Mapping[str, Slots]:
        """The bound GPU pods of each ReplicaSet, by its owner key ("namespace/uid")."""
        return self._sets

    def of(self, slot: int) -> list[_Domain]:
        """The node in the slot, and the domains around it."""
        around = [(i, column[slot]) for i, column in enumerate(self._columns, 1) if column[slot] != ABSENT]
        return [(0, slot), *around]

    def left(self, own: Slots) -> dict[_Domain, int]:
        """How many of these pods are in each domain that no other pods hold GPUs in, and that has any."""
        counts = {slot: len(there) for slot, there in own.items()}
        found = {(0, slot): count for slot, count in counts.items() if count == self._pods[0][slot]}
        for i, column in enumerate(self._columns, 1):
            inside: dict[int, int] = {}
            for slot, count in counts.items():
                inside[column[slot]] = inside.get(column[slot], 0) + count
            pods = self._pods[i]
            found |= {(i, one): count for one, count in inside.items() if one != ABSENT and count == pods[one]}
        return {one: count for one, count in found.items() if self.gpus(one)}

    def gpus(self, domain: _Domain) -> int:
        """How many GPUs its usable nodes offer."""
        if domain not in self._gpus:
            level, number = domain
            self._gpus[domain] = sum(map(self._offered, self._inside(level, number)))
        return self._gpus[domain]

    def _inside(self, level: int, number: int) -> list[int]:
        if not level:
            return [number]
        if level not in self._slots:
            found = self._slots[level] = {}
            for slot, one in enumerate(self._columns[level - 1]):
                if one != ABSENT:
                    found.setdefault(one, []).append(slot)
        return self._slots[level][number]

    def _offered(self, slot: int) -> int:
        nodes = self._cluster.nodes
        record = nodes.records[slot] if slot < nodes.used else None
        if record is None or record.unschedulable or not nodes.usable[slot] or slot in nodes.in_maintenance:
            return 0
        cards = record.sharing.cards if record.sharing is not None else 0
        return nodes.gpu_count(slot) + cards + len(record.mig)

    def named(self, domain: _Domain) -> tuple[str, str]:
        """The node label key of its level, "" for a node, and its name."""
        level, number = domain
        return self._levels[level - 1] if level else "", self._names[level][number]


def first_to_end(
    domains: Domains, own: Slots, costs: Mapping[str, int], most: int = MOST_FIRST
) -> tuple[FreeingPod, ...]:
    """The pods of one ReplicaSet that should end first, in order, at most so many. `own` are all of its bound GPU pods;
    `costs` are in force: those with the lowest end first as it is."""
    left = domains.left(own)
    slots_in: dict[_Domain, list[int]] = {}
    pods: dict[int, list[Placement]] = {}
    for slot, there in own.items() if left else ():
        if around := [one for one in domains.of(slot) if one in left]:
            pods[slot] = sorted(there, key=lambda one: _precedence(one, costs), reverse=True)
            for one in around:
                slots_in.setdefault(one, []).append(slot)

    def ranked(slot: int) -> _Rank | None:
        """The place of the next pod on the slot; None where none is left."""
        if not pods[slot]:
            return None
        around = [one for one in domains.of(slot) if one in left]
        alone = max((domains.gpus(one) for one in around if left[one] == 1), default=0)
        each = max(domains.gpus(one) * _SCALE // left[one] for one in around)
        return -alone, -each, *_precedence(pods[slot][-1], costs), slot

    waiting = [rank for slot in pods if (rank := ranked(slot)) is not None]
    heapq.heapify(waiting)
    found: list[FreeingPod] = []
    while waiting and len(found) < most:
        rank = heapq.heappop(waiting)
        slot = rank[-1]
        if rank != ranked(slot):
            # A pod near it was chosen meanwhile; its new place is in the heap, too.
            continue
        around = [one for one in domains.of(slot) if one in left]
        found.append(_freeing(domains, pods[slot].pop().uid, around, left))
        for one in around:
            left[one] -= 1
        for near in dict.fromkeys(near for one in around for near in slots_in[one]):
            if (again := ranked(near)) is not None:
                heapq.heappush(waiting, again)
    return tuple(found)


_SCALE = 1_000_000


def _precedence(placement: Placement, costs: Mapping[str, int]) -> tuple[int, int, str]:
    """Of equal pods the least comes first."""
    return costs.get(placement.uid, 0), -placement.pod.created_ms, placement.uid


def _summed(column: list[int], amounts: list[int]) -> dict[int, int]:
    """The amounts of the slots by domain."""
    found: dict[int, int] = {}
    for domain, amount in zip(column, amounts, strict=True):
        if amount:
            found[domain] = found.get(domain, 0) + amount
    return found


def _freeing(domains: Domains, uid: str, around: list[_Domain], left: Mapping[_Domain, int]) -> FreeingPod:
    """The pod with the largest domain that it frees alone, else with that for which the fewest others have to end."""
    best = min(around, key=lambda one: (left[one], -domains.gpus(one)))
    level, name = domains.named(best)
    return FreeingPod(uid, domains.gpus(best), level, name, left[best] - 1)


def _holds(placement: Placement) -> bool:
    """Whether the pod holds GPUs, or parts of some."""
    return placement.has_gpus or bool(placement.slices or placement.shape.slices or placement.grants)
