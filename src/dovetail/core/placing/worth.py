# SPDX-License-Identifier: Apache-2.0
"""The worth of a node's idle room: the GPU that pods like those so far are expected to use of it.

Rules
- A GPU of which r is left, on a node with c cores left, is filled in a model: pods come one after another, each class
  as often as among the pods so far, and each takes its part if it fits, until no more come. The expected use
      f(r, c) = sum w (g + f(r - g, c - k)) / (stop + sum w)
  sums over the classes that request one GPU, or a share g of one, and k cores, and fit; and over those that request
  cores alone. h(r, c) is the same for cores. `w` is how often a class comes to such a GPU: the fewer GPUs have room for
  it, the more often to each. Pods without a GPU count a tenth, since most of them fit elsewhere. `stop` is such that
  ten times as many pods come as would fill the cluster.
- The GPUs of a node are filled one after another, the emptiest first, each with the cores that the earlier ones left.
- Places for pods that may not go where most pods may can have a price on top. Each place of a node adds what the pod
  requests, times the square of the part (at most 1) that is wanted of all such places in the cluster: by the pods of
  the class that come before the cluster is full, and by those that come while an eighth of the present pods end; later
  pods find other places.
- Places for pods of several GPUs have a price too. Where k places are left, a pod that breaks one up takes it from the
  k-th pod that comes before the place is whole again. The price is what the pod requests times the chance of that
  (Littlewood's rule: the protection levels of revenue management, 1972). With exponential run times that is
  (n p / (n p + e))^k: n pods of the class came and e pods with GPUs ended in the same time, and p are present. The
  price is at least half the square of the part that is wanted before the cluster is full: the model of single GPUs
  counts these GPUs as well, and a pod that breaks a place up still uses them. Pods that request as many GPUs but more
  cores compete for the same places, so they count in n; a place is worth no less for having cores for them.
- k changes with every pod, so these prices are computed again when one of them has changed by `REPRICE_PERMILLE`.
- A place for several GPUs of which b are still busy adds its price times the chance that it is whole before the next
  pod of the class comes: the product over i = 1 .. b of i e / (i e + n p). Each of the p pods is assumed to end as soon
  as any other, and to hold one GPU. Each node has at most one such place, and none where no pods end.
Amounts of a GPU are in hundredths, cores in halves, worth in 1/256 of a thousandth of a GPU; all divisions round down.
Nodes that the same classes may go to are of one kind, and share a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import Index, Mask
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.model import CPU, GPU, WHOLE_GPU_MILLI, Request
from dovetail.core.placing import filters, kernel
from dovetail.core.placing.layout import (
    CELLS,
    CORES,
    FURTHER_CORES,
    FURTHER_USE,
    LEVELS,
    MOST_BUSY,
    MOST_CLASSES,
    PART_BITS,
    STEP_MILLI,
    UNIT_MILLI,
    UNITS,
    USE,
    LearnedArrays,
)

Ints = NDArray[np.int64]
SCALE = 256
MOST_KINDS = 16
"""The most kinds of nodes that get tables: those with the most GPUs. All other nodes count as the first kind."""
_PER_PLACE = 20
_TIMES_FULL = 10
_CPU_ONLY_PERCENT = 10
_SEVERAL_GPUS_PERCENT = 50
REPRICE_PERMILLE = 60
"""Of what a pod of the class requests."""
_CHANCE_BITS = 30
_LOOK_AHEAD = 8
"""Places are kept for the pods that come while one in so many of the present pods ends."""


class Arriving(Struct, frozen=True):
    """A class in a table: what a pod takes of a GPU and of the cores, and its rate of arrival."""

    milli: int
    cpu_milli: int
    rate: int


class _Class(Struct, frozen=True):
    """A class of pods. `allowed` is the mask of the nodes with GPUs that its pods may go to."""

    cpu_milli: int
    gpus: int
    milli: int
    count: int
    selection: int
    allowed: Mask


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
        idle, gpus = int(rooms.sum()), gpu_counts(nodes, slots)
        self._kinds = _ranked_kinds(allowed, gpus)
        self.kinds = min(len(self._kinds), MOST_KINDS)
        seen = max(sum(one.count for one in classes), 1)
        asked = max(sum(one.count * one.gpus * one.milli for one in classes), 1)
        stop = max((asked << _PER_PLACE) // (_TIMES_FULL * WHOLE_GPU_MILLI * seen), 1)
        single = [one for one in classes if one.gpus <= 1]
        rates = [_rate(one, rooms, cpu_milli, gpus, seen) for one in single]
        table = np.zeros((self.kinds + 1, LEVELS, UNITS + 1, CELLS), dtype=np.int64)
        members = [np.frombuffer(key, dtype=np.uint8) for key in list(self._kinds)[: self.kinds]]
        of_kind = [np.unpackbits(bits)[: len(self._selections)].tolist() for bits in members]
        for kind, may in enumerate(of_kind):
            arriving = [
                Arriving(one.milli * one.gpus, one.cpu_milli, rate)
                for one, rate in zip(single, rates, strict=True)
                if may[one.selection]
            ]
            use, cores = expected_use(arriving, stop)
            for at, further_at, amounts in ((USE, FURTHER_USE, use), (CORES, FURTHER_CORES, cores)):
                table[kind, :, :-1, at] = amounts
                table[kind, :, :-2, further_at] = amounts[:, 1:] - amounts[:, :-1]
        self._table = table.reshape(-1, CELLS)
        self._priced = _priced(classes)
        self._may = np.zeros((len(self._priced), self.kinds + 1), dtype=np.int64)
        for i, one in enumerate(self._priced):
            self._may[i, : self.kinds] = [may[one.selection] for may in of_kind]
        self._ended = cluster.mix.ended
        self._present = sum(1 for one in cluster.placements.values() if one.has_gpus)
        self._asked = asked
        sizes = sorted({one.milli for one in self._priced})
        self._sizes = np.array(sizes, dtype=np.int64)
        self._size_of = np.array([sizes.index(one.milli) for one in self._priced], dtype=np.intp)
        self._cpu_milli = np.array([one.cpu_milli for one in self._priced], dtype=np.int64)[:, None]
        self._gpus = np.array([one.gpus for one in self._priced], dtype=np.int64)[:, None]
        self._full_prices = np.array([one.gpus * one.milli * SCALE for one in self._priced], dtype=np.int64)
        self._demand = [_demand(one, self._priced) for one in self._priced]
        self._price_of = np.zeros(len(self._priced), dtype=np.int64)
        allowed_here = np.array([one.allowed for one in self._priced], dtype=np.bool_).reshape(-1, len(slots))
        places = np.where(allowed_here, self._places(self._idle(rooms), np.maximum(cpu_milli, 0)), 0).sum(axis=1)
        self.reprice(places.tolist(), idle, at_once=True)
        self._chances = _chances(self._priced, self._ended, self._present)

    def learned(self, kinds: Ints, gpus: Ints) -> LearnedArrays:
        """All that `of` reads, for the kernel: the kind and number of GPUs of each slot, the table, and the prices with
        their keys."""
        return LearnedArrays(
            kinds=kinds, node_gpus=gpus, table=self._table, prices=self._prices, sizes=self._sizes,
            size_of=self._size_of, class_cpu=self._cpu_milli, class_gpus=self._gpus, chances=self._chances,
        )  # fmt: skip

    def _class(self, nodes: Nodes, slots: Ints, allowed: Mask, request: Request, count: int) -> _Class | None:
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
        return _Class(amounts.get(CPU, 0), gpus, milli, count, selection, may)

    def _allowed(self, nodes: Nodes, index: Index) -> Mask:
        """By selection and node: whether the selection lets a pod go to the node."""
        found = [filters.suitable(nodes, selection, index) for selection in self._selections]
        return np.array(found, dtype=np.bool_).reshape(len(self._selections), -1)

    @property
    def priced(self) -> int:
        """The number of classes with prices."""
        return len(self._priced)

    @property
    def moving(self) -> bool:
        """Whether there are prices that follow the idle amounts."""
        return any(one.gpus > 1 for one in self._priced)

    def places(self, kinds: Ints, cpu_milli: Ints, rooms: Ints) -> Ints:
        """The number of pods of each priced class that nodes of these kinds could take, by class and node."""
        return self._places(self._idle(rooms), np.maximum(cpu_milli, 0)) * self._may[:, kinds]

    def reprice(self, places: Sequence[int], idle_milli: int, *, at_once: bool = False) -> bool:
        """Compute the prices from the number of places of each priced class and the idle thousandths of GPUs. Returns
        False, with the prices as they were, where none changed enough; `at_once` accepts any change."""
        price_of = self._price_of.copy()
        for i, one in enumerate(self._priced):
            if one.gpus > 1 or at_once:
                price_of[i] = int(self._full_prices[i]) * self._wanted(i, max(places[i], 1), idle_milli) >> _CHANCE_BITS
        if not at_once and (abs(price_of - self._price_of) * 1000 < self._full_prices * REPRICE_PERMILLE).all():
            return False
        self._price_of = price_of
        added = np.array(_marginal(self._priced, price_of.tolist()), dtype=np.int64)
        self._prices = added[:, None] * self._may
        return True

    def _wanted(self, i: int, places: int, idle_milli: int) -> int:
        """The chance that the last of these places is wanted, in 1/2^_CHANCE_BITS."""
        one, demand = self._priced[i], self._demand[i]
        wanted = (demand * idle_milli << PART_BITS) // self._asked
        chance = 0
        if one.gpus > 1:
            arrivals, ends = demand * self._present, self._ended
            if ends:
                chance = _power((arrivals << _CHANCE_BITS) // max(arrivals + ends, 1), places)
        elif self._ended:
            wanted += (demand * self._present << PART_BITS) // (self._ended * _LOOK_AHEAD)
        part = min(wanted // places, 1 << PART_BITS)
        square = part * part << _CHANCE_BITS - 2 * PART_BITS
        return max(chance, square * _SEVERAL_GPUS_PERCENT // 100 if one.gpus > 1 else square)

    def _idle(self, rooms: Ints) -> Ints:
        """The number of parts of GPUs that each priced class could take of the idle room, by class and node."""
        counts = np.empty((len(self._sizes), len(rooms)), dtype=np.int64)
        for i, milli in enumerate(self._sizes.tolist()):
            counts[i] = (rooms // milli).sum(axis=1)
        return counts[self._size_of]

    def _places(self, idle: Ints, cpu_milli: Ints) -> Ints:
        """The number of pods of each priced class that nodes could take, by class and node."""
        places: Ints = idle // self._gpus
        by_cores = cpu_milli // np.maximum(self._cpu_milli, 1)
        return np.minimum(places, by_cores, out=places, where=self._cpu_milli > 0)

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

    def _coming(self, idle: Ints, gpus: Ints) -> Ints:
        """The chance that a place that is partly busy becomes whole in time, by priced class and node."""
        begun = idle % self._gpus
        busy = np.where(idle - begun + self._gpus <= gpus, self._gpus - begun, 0)
        return np.take_along_axis(self._chances, np.minimum(busy, MOST_BUSY), axis=1)

    def of(self, kinds: Ints, gpus: Ints, cpu_milli: Ints, rooms: Ints) -> Ints:
        """The worth of nodes by kind, number of GPUs, idle cores and idle GPUs: `rooms[node]` is what is left of each
        GPU, in thousandths, the emptiest GPU first."""
        total = np.zeros(len(kinds), dtype=np.int64)
        cores = np.maximum(cpu_milli, 0)
        if len(self._prices):
            idle, prices = self._idle(rooms), self._prices[:, kinds]
            total += (self._places(idle, cores) * prices).sum(axis=0)
            total += (self._coming(idle, gpus) * prices >> PART_BITS).sum(axis=0)
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


def _demand(one: _Class, priced: Sequence[_Class]) -> int:
    """The number of counted pods that want the places of a class: its own, and those of as many GPUs and more cores."""
    if one.gpus <= 1:
        return one.count
    return sum(other.count for other in priced if _rival(one, other) and other.cpu_milli >= one.cpu_milli)


def _marginal(priced: Sequence[_Class], price_of: Sequence[int]) -> list[int]:
    """What each class adds to the price of a place, such that a place has the highest price of the classes for which it
    has enough cores."""
    added = list(price_of)
    for i, one in enumerate(priced):
        if one.gpus > 1:
            less = [
                price_of[j]
                for j, other in enumerate(priced)
                if _rival(one, other) and (other.cpu_milli, j) < (one.cpu_milli, i)
            ]
            added[i] = max(price_of[i] - max(less, default=0), 0)
    return added


def _rival(one: _Class, other: _Class) -> bool:
    return (one.gpus, one.milli, one.selection) == (other.gpus, other.milli, other.selection)


def _power(chance: int, times: int) -> int:
    """The power of a chance in 1/2^_CHANCE_BITS, rounded down at each step."""
    power = 1 << _CHANCE_BITS
    while times:
        if times & 1:
            power = power * chance >> _CHANCE_BITS
        chance = chance * chance >> _CHANCE_BITS
        times >>= 1
    return power


def _chances(priced: Sequence[_Class], ended: int, present: int) -> Ints:
    """The chances by class and number of busy GPUs, in 1/1024. Single GPUs have none, nor have 0 busy GPUs."""
    chances = np.zeros((len(priced), MOST_BUSY + 1), dtype=np.int64)
    for of_class, one in zip(chances, priced, strict=True):
        chance, most = 1 << PART_BITS, min(one.gpus, MOST_BUSY) if one.gpus > 1 else 0
        for busy in range(1, most + 1):
            chance = chance * busy * ended // max(busy * ended + one.count * present, 1)
            of_class[busy] = chance
    return chances


def expected_use(arriving: Sequence[Arriving], stop: int) -> tuple[Ints, Ints]:
    """f (in 1/SCALE of a thousandth of a GPU) and h (in milli-CPU), by what is left of a GPU and of the cores."""
    steps: dict[tuple[int, int], list[int]] = {}
    for one in arriving:
        units = (one.cpu_milli + 4 * UNIT_MILLI // 5 - 1) // UNIT_MILLI
        if not one.milli:
            if not one.cpu_milli:
                continue
            units = max(units, 1)
        if units >= UNITS:
            continue
        sums = steps.setdefault((-(-one.milli // STEP_MILLI), units), [0, 0, 0])
        for i, weight in enumerate((1, one.milli * SCALE, one.cpu_milli)):
            sums[i] += one.rate * weight
    fitting = np.zeros((3, LEVELS, UNITS), dtype=np.int64)
    for (level, units), sums in steps.items():
        fitting[:, level, units] = sums
    fitting = fitting.cumsum(axis=1).cumsum(axis=2)
    fitting[0] += stop
    level_of = np.array([level for level, _ in steps], dtype=np.int64)
    units_of = np.array([units for _, units in steps], dtype=np.int64)
    rates = np.array([sums[0] for sums in steps.values()], dtype=np.int64)
    use, cores = (kernel.fill if kernel.BUILT else filled)(fitting, level_of, units_of, rates)
    return use, cores


def filled(fitting: Ints, level_of: Ints, units_of: Ints, rates: Ints) -> Ints:
    """f and h from the sums over the classes that fit by level and units (rate, GPU, cores), and from the steps of the
    classes. `kernel.fill` finds the same.

    Each value depends on those with less left of GPU or cores, so all values with the same sum of both are computed at
    once, one diagonal after another."""
    levels, units = np.divmod(np.arange(LEVELS * UNITS), UNITS)
    diagonals = np.zeros((LEVELS + UNITS - 1, 3, LEVELS), dtype=np.int64)
    diagonals[:, 0] = 2**62  # A place that does not exist has an expected use of 0.
    diagonals[levels + units, :, levels] = fitting[:, levels, units].T
    back = level_of + units_of
    before = int(back.max(initial=0))
    known = np.zeros((before + len(diagonals), 2, 2 * LEVELS - 1), dtype=np.int64)
    shifted = sliding_window_view(known, LEVELS, axis=2)
    for i, (weights, *sums) in enumerate(diagonals):
        further = rates @ shifted[before + i - back, :, LEVELS - 1 - level_of].reshape(-1, 2 * LEVELS)
        known[before + i, :, LEVELS:] = ((sums + further.reshape(2, LEVELS)) // weights)[:, 1:]
    found: Ints = known[before + levels + units, :, LEVELS - 1 + levels].T
    return found.reshape(2, LEVELS, UNITS)


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


def _rate(one: _Class, rooms: Ints, cpu_milli: Ints, gpus: Ints, seen: int) -> int:
    """How often a pod of the class, of one GPU or none, comes to a GPU with room for it."""
    here = one.allowed & (cpu_milli >= one.cpu_milli)
    places = int((rooms[here] >= one.milli).sum() if one.gpus else gpus[here].sum())
    rate = (one.count << _PER_PLACE) * int(gpus.sum()) // (seen * max(places, 1))
    return max(rate if one.gpus else rate * _CPU_ONLY_PERCENT // 100, 1)


def _priced(classes: Sequence[_Class]) -> list[_Class]:
    """The classes of several GPUs, and those that may not go where most pods may."""
    usual = _usual(classes)
    return [one for one in classes if one.gpus > 1 or (one.gpus and usual is not None and (usual & ~one.allowed).any())]


def _usual(classes: Sequence[_Class]) -> Mask | None:
    """The nodes where most pods may go."""
    counts: dict[int, int] = {}
    for one in classes:
        counts[one.selection] = counts.get(one.selection, 0) + one.count
    if not counts:
        return None
    most = max(counts, key=counts.__getitem__)
    return next(one.allowed for one in classes if one.selection == most)


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
