# SPDX-License-Identifier: Apache-2.0
"""The prices of idle places: what a place on a node is worth beyond its expected use.

Rules
- A place is room for one pod of a class. Places for pods that may not go where most pods may can have a price. Each
  place of a node adds what the pod requests, times the square of the part (at most 1) that is wanted of all such places
  in the cluster: by the pods of the class that come before the cluster is full, and by those that come while an eighth
  of the present pods end; later pods find other places.
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
Prices are in 1/SCALE of a thousandth of a GPU; divisions round down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from dovetail.core.cluster.columns import Mask
from dovetail.core.placing.expected_use import SCALE, Ints
from dovetail.core.placing.layout import MOST_BUSY, PART_BITS

_SEVERAL_GPUS_PERCENT = 50
REPRICE_PERMILLE = 60
"""Of what a pod of the class requests."""
_CHANCE_BITS = 30
_LOOK_AHEAD = 8
"""Places are kept for the pods that come while one in so many of the present pods ends."""


class PodClass(Struct, frozen=True):
    """Pods that request the same. `milli` is what each takes of each of its GPUs, `count` how many of them came,
    `selection` the number of the selection of their nodes, `allowed` the mask of the nodes with GPUs that it admits."""

    cpu_milli: int
    gpus: int
    milli: int
    count: int
    selection: int
    allowed: Mask


class PlacePrices:
    """The classes with prices, and the prices of their places. `prices` and `coming` are by class; `prices` also by
    kind of node, `coming` by the number of busy GPUs of the place: the chance that it is whole in time."""

    def __init__(
        self, classes: Sequence[PodClass], may: Sequence[Sequence[int]], ended: int, present: int, cpu_milli: Ints,
        rooms: Ints,
    ) -> None:  # fmt: skip
        """may: by kind of node and selection, whether the selection admits the nodes. ended, present: how many pods
        with GPUs ended so far, and how many are placed. cpu_milli, rooms: what is idle on the nodes with GPUs."""
        self._classes = _priced(classes)
        self._ended, self._present = ended, present
        self._requested = max(sum(one.count * one.gpus * one.milli for one in classes), 1)
        self._may = np.zeros((len(self._classes), len(may) + 1), dtype=np.int64)
        for i, one in enumerate(self._classes):
            self._may[i, : len(may)] = [admitted[one.selection] for admitted in may]
        sizes = sorted({one.milli for one in self._classes})
        self.sizes = np.array(sizes, dtype=np.int64)
        self.size_of = np.array([sizes.index(one.milli) for one in self._classes], dtype=np.intp)
        self.cpu_milli = np.array([one.cpu_milli for one in self._classes], dtype=np.int64)[:, None]
        self.gpus = np.array([one.gpus for one in self._classes], dtype=np.int64)[:, None]
        self._full_prices = np.array([one.gpus * one.milli * SCALE for one in self._classes], dtype=np.int64)
        self._demand = [_demand(one, self._classes) for one in self._classes]
        self._price_of = np.zeros(len(self._classes), dtype=np.int64)
        allowed = np.array([one.allowed for one in self._classes], dtype=np.bool_).reshape(-1, len(rooms))
        places = np.where(allowed, self._places(self._idle(rooms), np.maximum(cpu_milli, 0)), 0).sum(axis=1)
        self.reprice(places.tolist(), int(rooms.sum()), at_once=True)
        self.coming = _chances(self._classes, ended, present)

    @property
    def count(self) -> int:
        """The number of classes with prices."""
        return len(self._classes)

    @property
    def moving(self) -> bool:
        """Whether there are prices that follow the idle amounts."""
        return any(one.gpus > 1 for one in self._classes)

    def places(self, kinds: Ints, cpu_milli: Ints, rooms: Ints) -> Ints:
        """The number of pods of each class that nodes of these kinds could take, by class and node."""
        return self._places(self._idle(rooms), np.maximum(cpu_milli, 0)) * self._may[:, kinds]

    def worth(self, kinds: Ints, gpus: Ints, cpu_milli: Ints, rooms: Ints) -> Ints:
        """What the places of nodes are worth, by node; the arguments are those of `Worth.of`, no core below 0."""
        idle, prices = self._idle(rooms), self.prices[:, kinds]
        worth: Ints = (self._places(idle, cpu_milli) * prices).sum(axis=0)
        worth += (self._coming(idle, gpus) * prices >> PART_BITS).sum(axis=0)
        return worth

    def reprice(self, places: Sequence[int], idle_milli: int, *, at_once: bool = False) -> bool:
        """Compute the prices from the number of places of each class and the idle thousandths of GPUs. Returns
        False, with the prices as they were, where none changed enough; `at_once` accepts any change."""
        price_of = self._price_of.copy()
        for i, one in enumerate(self._classes):
            if one.gpus > 1 or at_once:
                price_of[i] = int(self._full_prices[i]) * self._wanted(i, max(places[i], 1), idle_milli) >> _CHANCE_BITS
        if not at_once and (abs(price_of - self._price_of) * 1000 < self._full_prices * REPRICE_PERMILLE).all():
            return False
        self._price_of = price_of
        added = np.array(_marginal(self._classes, price_of.tolist()), dtype=np.int64)
        self.prices = added[:, None] * self._may
        return True

    def _wanted(self, i: int, places: int, idle_milli: int) -> int:
        """The chance that the last of these places is wanted, in 1/2^_CHANCE_BITS."""
        one, demand = self._classes[i], self._demand[i]
        wanted = (demand * idle_milli << PART_BITS) // self._requested
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
        """The number of parts of GPUs that each class could take of the idle room, by class and node."""
        counts = np.empty((len(self.sizes), len(rooms)), dtype=np.int64)
        for i, milli in enumerate(self.sizes.tolist()):
            counts[i] = (rooms // milli).sum(axis=1)
        return counts[self.size_of]

    def _places(self, idle: Ints, cpu_milli: Ints) -> Ints:
        """The number of pods of each class that nodes could take, by class and node."""
        places: Ints = idle // self.gpus
        by_cores = cpu_milli // np.maximum(self.cpu_milli, 1)
        return np.minimum(places, by_cores, out=places, where=self.cpu_milli > 0)

    def _coming(self, idle: Ints, gpus: Ints) -> Ints:
        """The chance that a place that is partly busy becomes whole in time, by class and node."""
        begun = idle % self.gpus
        busy = np.where(idle - begun + self.gpus <= gpus, self.gpus - begun, 0)
        return np.take_along_axis(self.coming, np.minimum(busy, MOST_BUSY), axis=1)


def _demand(one: PodClass, priced: Sequence[PodClass]) -> int:
    """The number of counted pods that want the places of a class: its own, and those of as many GPUs and more cores."""
    if one.gpus <= 1:
        return one.count
    return sum(other.count for other in priced if _rival(one, other) and other.cpu_milli >= one.cpu_milli)


def _marginal(priced: Sequence[PodClass], price_of: Sequence[int]) -> list[int]:
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


def _rival(one: PodClass, other: PodClass) -> bool:
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


def _chances(priced: Sequence[PodClass], ended: int, present: int) -> Ints:
    """The chances by class and number of busy GPUs, in 1/1024. Single GPUs have none, nor have 0 busy GPUs."""
    chances = np.zeros((len(priced), MOST_BUSY + 1), dtype=np.int64)
    for of_class, one in zip(chances, priced, strict=True):
        chance, most = 1 << PART_BITS, min(one.gpus, MOST_BUSY) if one.gpus > 1 else 0
        for busy in range(1, most + 1):
            chance = chance * busy * ended // max(busy * ended + one.count * present, 1)
            of_class[busy] = chance
    return chances


def _priced(classes: Sequence[PodClass]) -> list[PodClass]:
    """The classes of several GPUs, and those that may not go where most pods may."""
    usual = _usual(classes)
    return [one for one in classes if one.gpus > 1 or (one.gpus and usual is not None and (usual & ~one.allowed).any())]


def _usual(classes: Sequence[PodClass]) -> Mask | None:
    """The nodes where most pods may go."""
    counts: dict[int, int] = {}
    for one in classes:
        counts[one.selection] = counts.get(one.selection, 0) + one.count
    if not counts:
        return None
    most = max(counts, key=counts.__getitem__)
    return next(one.allowed for one in classes if one.selection == most)
