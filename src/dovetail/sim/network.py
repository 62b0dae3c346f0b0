# SPDX-License-Identifier: Apache-2.0
"""The network of a simulated cluster: how much longer a step of a job takes where it was placed.

Rules
- A step is computing, then an all-reduce. `communication_percent` of a job is the part of a step that the all-reduce
  takes where the job is placed best; its run time is for that place.
- Where the all-reduce takes longer, so does the step, and the job, as long as it stays there.
- The best place is that of the job alone on the empty cluster: as few nodes as hold it, in a domain of the narrowest
  level that has so many. The GPUs of a pod are the best of its node.
- Other jobs do not slow the network down, beyond what `percent` leaves of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from dovetail.core.cluster import Cluster
from dovetail.core.devices.choose import choices
from dovetail.core.model import WHOLE_GPU_MILLI, Node
from dovetail.core.placing.collective import of_gpus
from dovetail.core.placing.scores import Tightest
from dovetail.sim.workload import PERMILLE

_Place = tuple[tuple[int, int], ...]
"""Slots with their numbers of GPUs."""


class Network:
    """The network of these nodes. `levels` are the label keys of the fabric, the widest first; `percent` as in
    `core.placing.collective`."""

    def __init__(self, nodes: Iterable[Node], levels: tuple[str, ...], percent: Mapping[str, int]) -> None:
        self._cluster = Cluster(Tightest(), levels)
        for node in nodes:
            self._cluster.put_node(node)
        self._percent = percent
        self._best_ns: dict[tuple[int, int], int | None] = {}

    def pace(self, held: Mapping[str, int], pods: int, communication_percent: int) -> int:
        """How long a step takes, in thousandths of one in the best place, for a job that holds so many milli-GPU of
        each node with its equal pods. It is PERMILLE where the all-reduce is not known."""
        if not communication_percent:
            return PERMILLE
        slots = self._cluster.nodes.slots
        place = tuple([(slots[name], milli // WHOLE_GPU_MILLI) for name, milli in held.items()])
        took_ns, best_ns = self._ns(place), self._best(sum(count for _, count in place), pods)
        if took_ns is None or best_ns is None:
            return PERMILLE
        slower = max(PERMILLE, took_ns * PERMILLE // best_ns)
        return PERMILLE + communication_percent * (slower - PERMILLE) // 100

    def _ns(self, place: _Place) -> int | None:
        bits = {slot: self._bits(slot, count) for slot, count in place if count}
        found = of_gpus(self._cluster, bits, self._percent)
        return found.ns if found is not None else None

    def _bits(self, slot: int, count: int) -> int:
        layout = self._cluster.nodes.layout(slot)
        return (1 << count) - 1 if layout is None else choices(layout).choose((1 << layout.gpus) - 1, count)

    def _best(self, gpus: int, pods: int) -> int | None:
        """The all-reduce of so many GPUs in equal pods in the best place of the empty cluster."""
        key = gpus, pods
        if key not in self._best_ns:
            self._best_ns[key] = self._ns(self._best_place(gpus, max(1, gpus // pods)))
        return self._best_ns[key]

    def _best_place(self, gpus: int, each: int) -> _Place:
        for domains in self._domains:
            places = [place for domain in domains if (place := _place(gpus, each, domain))]
            if places:
                return min(places, key=len)
        return ()

    @cached_property
    def _domains(self) -> list[list[_Place]]:
        """The nodes with their GPUs in every domain, of the narrowest level first and then all nodes: the nodes with
        the most GPUs come first, each beside the last."""
        nodes, fabric = self._cluster.nodes, self._cluster.fabric
        order = fabric.order()
        whole = sorted(range(nodes.used), key=lambda slot: (-nodes.gpu_count(slot), order[slot]))
        place = [(slot, nodes.gpu_count(slot)) for slot in whole]
        found: list[list[_Place]] = []
        for key in reversed(fabric.levels):
            domains, inside = fabric.domains(key), dict[int, list[tuple[int, int]]]()
            for slot, count in place:
                if domains[slot] >= 0:
                    inside.setdefault(int(domains[slot]), []).append((slot, count))
            found.append([tuple(one) for one in inside.values()])
        return [*found, [tuple(place)]]


def _place(gpus: int, each: int, domain: _Place) -> _Place:
    """So many GPUs on the first nodes of a domain, in pods of `each`; empty where they do not fit."""
    if len(domain) * domain[0][1] < gpus:
        return ()
    place = []
    for slot, count in domain:
        took = min(gpus, count // each * each)
        if took:
            place.append((slot, took))
            gpus -= took
        if not gpus:
            return tuple(place)
    return ()
