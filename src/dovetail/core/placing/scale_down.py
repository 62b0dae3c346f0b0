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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

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


class FreeingPod(Struct, frozen=True):
    """A pod with the largest domain that has no GPU pods once it and `others` more of its ReplicaSet have ended.
    `level` is the node label key of the domain, "" for a node."""

    uid: str
    gpus: int
    level: str
    domain: str
    others: int = 0


class Domains:
    """The domains of a cluster as they are now, with how many pods hold GPUs in each."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._levels = [level for level in cluster.fabric.levels if level in NVLINK_LEVELS]
        self._columns = [cluster.fabric.domains(level).tolist() for level in self._levels]
        self._gpus: dict[_Domain, int] = {}
        self._pods: Counter[_Domain] = Counter()
        self._sets: dict[str, list[Placement]] = {}
        for placement in cluster.placements.values():
            if _holds(placement):
                self._pods.update(self.of(placement.slot))
                pod = placement.pod
                if pod.owner and pod.managed and pod.node and not pod.deleting and pod.made_for.startswith(_KINDS):
                    self._sets.setdefault(pod.owner, []).append(placement)

    def replica_sets(self) -> Mapping[str, list[Placement]]:
        """The bound GPU pods of each ReplicaSet, by its owner key ("namespace/uid")."""
        return self._sets

    def of(self, slot: int) -> list[_Domain]:
        """The node in the slot, and the domains around it."""
        around = [(i, column[slot]) for i, column in enumerate(self._columns, 1) if column[slot] != ABSENT]
        return [(0, slot), *around]

    def pods(self, domain: _Domain) -> int:
        """How many pods hold GPUs in it."""
        return self._pods[domain]

    def gpus(self, domain: _Domain) -> int:
        """How many GPUs its usable nodes offer."""
        if domain not in self._gpus:
            level, number = domain
            slots = [number] if not level else self._cluster.fabric.slots(self._levels[level - 1], number).tolist()
            self._gpus[domain] = sum(map(self._offered, slots))
        return self._gpus[domain]

    def _offered(self, slot: int) -> int:
        nodes = self._cluster.nodes
        record = nodes.records[slot]
        if record is None or record.unschedulable or not nodes.usable[slot] or slot in nodes.in_maintenance:
            return 0
        cards = record.sharing.cards if record.sharing is not None else 0
        return nodes.gpu_count(slot) + cards + len(record.mig)

    def named(self, domain: _Domain) -> tuple[str, str]:
        """The node label key of its level, "" for a node, and its name."""
        level, number = domain
        if not level:
            return "", self._cluster.nodes.names[number]
        return self._levels[level - 1], self._cluster.fabric.name(self._levels[level - 1], number)


def first_to_end(
    domains: Domains, own: Iterable[Placement], costs: Mapping[str, int], most: int = MOST_FIRST
) -> tuple[FreeingPod, ...]:
    """The pods of one ReplicaSet that should end first, in order, at most so many. `own` are all of its bound GPU pods;
    `costs` are in force: those with the lowest end first as it is."""
    pods: dict[int, list[Placement]] = {}
    left: Counter[_Domain] = Counter()
    for placement in own:
        pods.setdefault(placement.slot, []).append(placement)
        left.update(domains.of(placement.slot))
    free = {one for one, count in left.items() if count == domains.pods(one) and domains.gpus(one)}
    slots_in: dict[_Domain, list[int]] = {}
    for slot, there in pods.items():
        there.sort(key=lambda one: (costs.get(one.uid, 0), -one.pod.created_ms, one.uid), reverse=True)
        for one in domains.of(slot):
            slots_in.setdefault(one, []).append(slot)

    def ranked(slot: int) -> tuple[int, int, int, int, str, int] | None:
        """The place of the next pod on the slot; None where it frees nothing."""
        around = [one for one in domains.of(slot) if one in free]
        if not around or not pods[slot]:
            return None
        alone = max((domains.gpus(one) for one in around if left[one] == 1), default=0)
        each = max(domains.gpus(one) * _SCALE // left[one] for one in around)
        pod = pods[slot][-1]
        return -alone, -each, costs.get(pod.uid, 0), -pod.pod.created_ms, pod.uid, slot

    waiting = [rank for slot in pods if (rank := ranked(slot)) is not None]
    heapq.heapify(waiting)
    found: list[FreeingPod] = []
    while waiting and len(found) < most:
        rank = heapq.heappop(waiting)
        slot = rank[-1]
        if rank != ranked(slot):
            # A pod near it was chosen meanwhile; its new place is in the heap, too.
            continue
        found.append(_freeing(domains, pods[slot].pop().uid, [one for one in domains.of(slot) if one in free], left))
        left.subtract(domains.of(slot))
        for near in dict.fromkeys(_near(domains.of(slot), slots_in)):
            if (again := ranked(near)) is not None:
                heapq.heappush(waiting, again)
    return tuple(found)


_SCALE = 1_000_000


def _near(around: Iterable[_Domain], slots_in: Mapping[_Domain, list[int]]) -> Iterator[int]:
    for one in around:
        yield from slots_in[one]


def _freeing(domains: Domains, uid: str, around: list[_Domain], left: Counter[_Domain]) -> FreeingPod:
    """The pod with the largest domain that it frees alone, else with that for which the fewest others have to end."""
    best = min(around, key=lambda one: (left[one], -domains.gpus(one)))
    level, name = domains.named(best)
    return FreeingPod(uid, domains.gpus(best), level, name, left[best] - 1)


def _holds(placement: Placement) -> bool:
    """Whether the pod holds GPUs, or parts of some."""
    return placement.has_gpus or bool(placement.slices or placement.shape.slices or placement.grants)
