# SPDX-License-Identifier: Apache-2.0
"""Existing MIG instances: which free ones a pod gets, and where they are when only their numbers are known.

Rules: a pod's instances are on one node, and each is of exactly the requested profile; none is created for it. The
choice opens as few idle cards as possible, and of these the first ones. It takes from the cards that are most in use
first (share of the scarcer slices, then the order of the cards), and of one card the instances whose removal leaves it
worth most if the rest were repartitioned (`worth`, with equal weights). Exact for these rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations, product
from operator import sub
from typing import NamedTuple

from msgspec import Struct

from dovetail.core.devices.mig.geometry import Asked, Geometry, GeometryError, bits_of, merged
from dovetail.core.devices.mig.instances import Counts, counts_of, equal_weights, starts_of, states, within
from dovetail.core.devices.mig.slices import taken

_MOST_TRIES = 1_000


class Card(Struct, frozen=True):
    """A card in MIG mode: the index of the GPU on the node, and its instances. `assumed`: only the numbers of instances
    are known, not their starts. Raises GeometryError where the instances cannot coexist."""

    gpu: int
    geometry: Geometry
    instances: int
    assumed: bool = False

    def __post_init__(self) -> None:
        fault = states(self.geometry).fault(self.instances)
        if fault:
            raise GeometryError(f"GPU{self.gpu}", fault)


class Cards:
    """The cards of a node that are in MIG mode. `used` always has the instances in use of each card, in the order of
    `cards`; they must be instances of the card."""

    def __init__(self, cards: tuple[Card, ...]) -> None:
        self.cards = cards

    def free(self, used: tuple[int, ...]) -> dict[str, int]:
        """The number of free instances of each profile, by nvidia-smi's name."""
        counts: Counter[str] = Counter()
        for card, held in zip(self.cards, used, strict=True):
            profiles = card.geometry.profiles
            counts.update(profiles[i].name for i, _ in card.geometry.members(card.instances & ~held))
        return dict(sorted(counts.items()))

    def choose(self, used: tuple[int, ...], asked: Asked) -> tuple[int, ...] | None:
        """The instances to take of each card; None where too few are free."""
        return _chosen(self, used, asked)

    def pairs(self, chosen: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Instances as (index of the GPU, start)."""
        return tuple(
            (card.gpu, start)
            for card, own in zip(self.cards, chosen, strict=True)
            for _, start in card.geometry.members(own)
        )


class _View(NamedTuple):
    """A card as one request sees it: how much of it is in use, and for each requested profile the free instances and
    their number."""

    used_milli: int
    free: Counts
    have: Counts


@lru_cache(maxsize=65536)
def _view(geometry: Geometry, instances: int, used: int, asked: Asked) -> _View:
    own, indices = states(geometry).of_profile, [geometry.find(name) for name, _ in asked]
    free = tuple(0 if i is None else instances & ~used & own[i] for i in indices)
    return _View(taken(geometry, used).milli, free, tuple(bits.bit_count() for bits in free))


def _search(cards: tuple[Card, ...], used: tuple[int, ...], asked: Asked) -> tuple[int, ...] | None:
    views = [_view(card.geometry, card.instances, held, asked) for card, held in zip(cards, used, strict=True)]
    in_use = [i for _, i in sorted([(-view.used_milli, i) for i, view in enumerate(views) if used[i]])]
    wanted = [count for _, count in asked]
    lacking = [count - sum([views[i].have[kind] for i in in_use]) for kind, count in enumerate(wanted)]
    opened = _fewest({i: view.have for i, view in enumerate(views) if not used[i]}, lacking)
    if opened is None:
        return None
    chosen = [0] * len(cards)
    for i in (*in_use, *opened):
        counts = tuple(map(min, wanted, views[i].have))
        if any(counts):
            chosen[i] = _best_of(cards[i].geometry, used[i], views[i].free, counts)
            wanted = list(map(sub, wanted, counts))
            if not any(wanted):
                break
    return tuple(chosen)


@lru_cache(maxsize=65536)
def _best_of(geometry: Geometry, used: int, free: tuple[int, ...], counts: Counts) -> int:
    """The instances to take of the free ones of a card, so many of each profile."""
    starts = starts_of(geometry, equal_weights(geometry))
    ways = [
        [sum(some) for some in combinations(tuple(bits_of(own)), count)]
        for own, count in zip(free, counts, strict=True)
    ]
    return max(map(sum, product(*ways)), key=lambda own: (starts.worth(used | own), own))


def _fewest(idle: dict[int, Counts], lacking: list[int]) -> tuple[int, ...] | None:
    """The fewest idle cards that have what is lacking, of these the first; None where all together have too little."""
    if max(lacking, default=0) <= 0:
        return ()
    by_counts: dict[Counts, list[int]] = {}
    for i, have in idle.items():
        by_counts.setdefault(have, []).append(i)
    ways = [
        (sum(numbers), tuple(sorted(i for own, n in zip(by_counts.values(), numbers, strict=True) for i in own[:n])))
        for numbers in product(*(range(len(own) + 1) for own in by_counts.values()))
        if all(
            sum(n * own[kind] for own, n in zip(by_counts, numbers, strict=True)) >= count
            for kind, count in enumerate(lacking)
        )
    ]
    return min(ways, default=(0, None))[1]


@lru_cache(maxsize=65536)
def _chosen(cards: Cards, used: tuple[int, ...], asked: Asked) -> tuple[int, ...] | None:
    return _search(cards.cards, used, _merged(cards, asked))


@lru_cache(maxsize=4096)
def _merged(cards: Cards, asked: Asked) -> Asked:
    return merged([card.geometry for card in cards.cards], asked)


@lru_cache(maxsize=1024)
def cards_of(cards: tuple[Card, ...]) -> Cards:
    """The cards; equal cards share one object and what is derived from it."""
    return Cards(cards)


def layout_from_counts(geometry: Geometry, by_name: Mapping[str, int], cards: int) -> tuple[Card, ...] | None:
    """A likely placement of instances on so many cards when only their numbers are known: as evenly over the cards as
    possible, on each with the arrangement that leaves most. None where the cards cannot hold them. Raises GeometryError
    for a profile that the geometry does not have, and where too many ways would have to be tried."""
    counts = counts_of(geometry, by_name)
    spread = _Spread(geometry).over(counts, cards)
    if spread is None:
        return None
    starts = starts_of(geometry, equal_weights(geometry))
    arranged = [starts.arranged(0, mix) for mix in spread]
    return tuple(Card(i, geometry, bits, assumed=True) for i, bits in enumerate(arranged) if bits is not None)


class _Spread:
    """Distributes numbers of profiles over empty cards. Filling a card completely never makes the rest harder, so
    beside the even distribution only the mixes are tried to which nothing can be added."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._mixes = _mixes(geometry)
        self._hopeless: set[tuple[Counts, int]] = set()
        self._tries = 0

    def over(self, counts: Counts, cards: int) -> list[Counts] | None:
        if not any(counts):
            return [counts] * cards
        if (counts, cards) in self._hopeless or not self._may_fit(counts, cards):
            return None
        self._tries += 1
        if self._tries > _MOST_TRIES:
            raise GeometryError("counts", f"no way found to have them on cards of {self._geometry.key}")
        even = tuple(-(-count // cards) for count in counts)
        largest = max(i for i, count in enumerate(counts) if count)
        fitting = [mix for mix in self._mixes if mix[largest] and within(mix, counts)]
        fullest = [mix for mix in fitting if not any(other != mix and within(mix, other) for other in fitting)]
        for mix in ([even] if even in self._mixes else []) + sorted(fullest, key=lambda mix: mix[::-1], reverse=True):
            left = tuple(count - own for count, own in zip(counts, mix, strict=True))
            rest = self.over(left, cards - 1)
            if rest is not None:
                return [mix, *rest]
        self._hopeless.add((counts, cards))
        return None

    def _may_fit(self, counts: Counts, cards: int) -> bool:
        profiles = self._geometry.profiles
        compute = sum(own.compute_slices * count for own, count in zip(profiles, counts, strict=True))
        memory = sum(own.memory_slices * count for own, count in zip(profiles, counts, strict=True))
        return compute <= cards * self._geometry.compute_slices and memory <= cards * self._geometry.memory_slices


@lru_cache(maxsize=64)
def _mixes(geometry: Geometry) -> frozenset[Counts]:
    """The numbers of each profile that a card can have."""
    known = states(geometry)
    return frozenset(tuple((state & own).bit_count() for own in known.of_profile) for state in known.classes)
