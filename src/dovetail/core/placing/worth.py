# SPDX-License-Identifier: Apache-2.0
"""The worth of a node's idle room: the GPU that pods like those so far are expected to use of it.

Rules
- The GPUs of a node are filled one after another, the emptiest first, each with the cores that the earlier ones left.
  What each is expected to be used is in `expected_use`. The fewer GPUs have room for a class, the more often it comes
  to each. Pods without a GPU count a tenth, since most of them fit elsewhere.
- Places for pods that may not go where most pods may, and for pods of several GPUs, have a price on top: see
  `place_prices`.
- Nodes that the same classes may go to are of one kind, and share a table.
Amounts of a GPU are in hundredths, cores in halves, worth in 1/256 of a thousandth of a GPU; all divisions round down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import Index, Mask
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.model import CPU, GPU, WHOLE_GPU_MILLI, Request
from dovetail.core.placing import filters
from dovetail.core.placing.expected_use import Arriving, Ints, expected_use
from dovetail.core.placing.layout import (
    CELLS,
    CORES,
    FURTHER_CORES,
    FURTHER_USE,
    LEVELS,
    MOST_CLASSES,
    STEP_MILLI,
    UNIT_MILLI,
    UNITS,
    USE,
    LearnedArrays,
)
from dovetail.core.placing.place_prices import PlacePrices, PodClass

MOST_KINDS = 16
"""The most kinds of nodes that get tables: those with the most GPUs. All other nodes count as the first kind."""
_PER_PLACE = 20
_TIMES_FULL = 10
_CPU_ONLY_PERCENT = 10


class Worth:
    """The worth of nodes by the mix of pods and the cluster at the time when it is made. `kinds` is the number of kinds
    of nodes. Nodes without divisible GPUs have one more kind, the last, which is worth nothing."""

    def __init__(self, cluster: Cluster) -> None:
        nodes = cluster.nodes
        ranked = sorted(cluster.mix.counts.items(), key=lambda one: -one[1])[:MOST_CLASSES]
        self._selections = list(dict.fromkeys(_selection(request) for request, _ in ranked))
        slots = np.flatnonzero(divisible(nodes, slice(0, nodes.size)))
        allowed = self._allowed(nodes, slots)
        rooms, cpu_milli = gpu_rooms(nodes, slots), nodes.free[nodes.resources[CPU], slots]
        classes = [
            one for request, count in ranked if (one := self._class(nodes, slots, allowed, request, count)) is not None
        ]
        gpus = gpu_counts(nodes, slots)
        self._kinds = _ranked_kinds(allowed, gpus)
        self.kinds = min(len(self._kinds), MOST_KINDS)
        members = [np.frombuffer(key, dtype=np.uint8) for key in list(self._kinds)[: self.kinds]]
        may = [np.unpackbits(bits)[: len(self._selections)].tolist() for bits in members]
        self._table = _table(classes, may, rooms, cpu_milli, gpus)
        present = sum(1 for one in cluster.placements.values() if one.has_gpus)
        self.prices = PlacePrices(classes, may, cluster.mix.ended, present, cpu_milli, rooms)

    def learned(self, kinds: Ints, gpus: Ints) -> LearnedArrays:
        """All that `of` reads, for the kernel: the kind and number of GPUs of each slot, the table, and the prices with
        their keys."""
        prices = self.prices
        return LearnedArrays(
            kinds=kinds, node_gpus=gpus, table=self._table, prices=prices.prices, sizes=prices.sizes,
            size_of=prices.size_of, class_cpu=prices.cpu_milli, class_gpus=prices.gpus, chances=prices.coming,
        )  # fmt: skip

    def _class(self, nodes: Nodes, slots: Ints, allowed: Mask, request: Request, count: int) -> PodClass | None:
        """A class of pods; None where the part of a GPU that it takes is unknown."""
        amounts, selection = dict(request.resources), self._selections.index(_selection(request))
        may = allowed[selection]
        gpus, milli = amounts.get(GPU, 0), WHOLE_GPU_MILLI
        if request.gpu_milli:
            gpus, milli = 1, request.gpu_milli
        elif request.gpu_memory_mib:
            memory_mib = nodes.gpu_memory_mib[slots][may]
            memory_mib = memory_mib[memory_mib >= request.gpu_memory_mib]
            if not len(memory_mib):
                return None
            gpus, milli = 1, -(-request.gpu_memory_mib * WHOLE_GPU_MILLI // int(memory_mib.min()))
        return PodClass(amounts.get(CPU, 0), gpus, milli, count, selection, may)

    def _allowed(self, nodes: Nodes, index: Index) -> Mask:
        """By selection and node: whether the selection lets a pod go to the node."""
        found = [filters.suitable(nodes, selection, index) for selection in self._selections]
        return np.array(found, dtype=np.bool_).reshape(len(self._selections), -1)

    def kinds_of(self, nodes: Nodes, index: Index) -> Ints | None:
        """The kind of each node; None where a node is of a kind that was not learned."""
        found = np.full(len(nodes.usable[index]), self.kinds, dtype=np.int64)
        here = np.flatnonzero(divisible(nodes, index))
        if len(here):
            slots = np.arange(nodes.size)[index][here]
            keys = _keys(self._allowed(nodes, slots))
            if not self._kinds.keys() >= set(keys):
                return None
            found[here] = [self._kinds[key] for key in keys]
        return found

    def of(self, kinds: Ints, gpus: Ints, cpu_milli: Ints, rooms: Ints) -> Ints:
        """The worth of nodes by kind, number of GPUs, idle cores and idle GPUs: `rooms[node]` is what is left of each
        GPU, in thousandths, the emptiest GPU first."""
        total = np.zeros(len(kinds), dtype=np.int64)
        cores = np.maximum(cpu_milli, 0)
        if self.prices.count:
            total += self.prices.worth(kinds, gpus, cores, rooms)
        levels = rooms.T // STEP_MILLI
        starts = (levels + kinds * LEVELS) * (UNITS + 1)
        for i in range(int(levels.any(axis=1).sum())):
            reached = np.minimum(cores, (UNITS - 1) * UNIT_MILLI)
            units = reached // UNIT_MILLI
            cells = self._table.take(starts[i] + units, axis=0).T
            rest = reached - units * UNIT_MILLI
            total += cells[USE] + cells[FURTHER_USE] * rest // UNIT_MILLI
            cores = np.maximum(cores - cells[CORES] - cells[FURTHER_CORES] * rest // UNIT_MILLI, 0)
        return total


def _table(classes: Sequence[PodClass], may: Sequence[Sequence[int]], rooms: Ints, cpu_milli: Ints, gpus: Ints) -> Ints:
    """The expected use of a GPU and of cores, and how much more one more unit of cores gives: by the kind of node, what
    is left of the GPU, and the units of cores."""
    seen = max(sum(one.count for one in classes), 1)
    requested = max(sum(one.count * one.gpus * one.milli for one in classes), 1)
    stop = max((requested << _PER_PLACE) // (_TIMES_FULL * WHOLE_GPU_MILLI * seen), 1)
    single = [one for one in classes if one.gpus <= 1]
    rates = [_rate(one, rooms, cpu_milli, gpus, seen) for one in single]
    table = np.zeros((len(may) + 1, LEVELS, UNITS + 1, CELLS), dtype=np.int64)
    for kind, admitted in enumerate(may):
        arriving = [
            Arriving(one.milli * one.gpus, one.cpu_milli, rate)
            for one, rate in zip(single, rates, strict=True)
            if admitted[one.selection]
        ]
        use, cores = expected_use(arriving, stop)
        for at, further_at, amounts in ((USE, FURTHER_USE, use), (CORES, FURTHER_CORES, cores)):
            table[kind, :, :-1, at] = amounts
            table[kind, :, :-2, further_at] = amounts[:, 1:] - amounts[:, :-1]
    return table.reshape(-1, CELLS)


def _rate(one: PodClass, rooms: Ints, cpu_milli: Ints, gpus: Ints, seen: int) -> int:
    """How often a pod of the class, of one GPU or none, comes to a GPU with room for it."""
    here = one.allowed & (cpu_milli >= one.cpu_milli)
    places = int((rooms[here] >= one.milli).sum() if one.gpus else gpus[here].sum())
    rate = (one.count << _PER_PLACE) * int(gpus.sum()) // (seen * max(places, 1))
    return max(rate if one.gpus else rate * _CPU_ONLY_PERCENT // 100, 1)


def _selection(request: Request) -> Request:
    """The part of a class that selects its nodes."""
    return Request(node_selector=request.node_selector, node_terms=request.node_terms, tolerations=request.tolerations)


def _keys(allowed: Mask) -> list[bytes]:
    return [bits.tobytes() for bits in np.packbits(allowed, axis=0).T]


def _ranked_kinds(allowed: Mask, gpus: Ints) -> dict[bytes, int]:
    """The kinds of nodes, by the selections that admit a pod: those with the most GPUs first. Kinds beyond MOST_KINDS
    count as the first."""
    sums: dict[bytes, int] = {}
    for key, count in zip(_keys(allowed), gpus.tolist(), strict=True):
        sums[key] = sums.get(key, 0) + count
    ranked = sorted(sums, key=lambda key: -sums[key])
    return {key: i if i < MOST_KINDS else 0 for i, key in enumerate(ranked)}


def divisible(nodes: Nodes, index: Index) -> Mask:
    """Nodes with GPUs that are allocated whole or in any part: neither shared in replicas nor in MIG instances."""
    plain = (nodes.sharing_ids[index] == 0) & ~nodes.sliced[index]
    return np.asarray(nodes.usable[index] & plain & (nodes.gpu_bits[index] != 0))


def gpu_counts(nodes: Nodes, index: Index) -> Ints:
    """The number of GPUs of each node."""
    return np.bitwise_count(nodes.gpu_bits[index]).astype(np.int64)


def gpu_units(nodes: Nodes, index: Index) -> Ints:
    """What is left of each GPU, by node and GPU, in the units of `Nodes.gpu_whole`."""
    parts = nodes.gpu_parts[:, index]
    whole = nodes.gpu_free_bits[index] >> np.arange(len(parts))[:, None] & 1
    left: Ints = (parts + whole * nodes.gpu_whole[index]).T
    return left


def gpu_rooms(nodes: Nodes, index: Index) -> Ints:
    """What is left of each GPU in thousandths, by node, the emptiest GPU first."""
    return emptiest_first(nodes.room_milli(index).T)


def emptiest_first(rooms: Ints) -> Ints:
    return -np.sort(-rooms, axis=1)
