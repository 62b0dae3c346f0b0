# SPDX-License-Identifier: Apache-2.0
"""A plan to repartition the MIG GPUs of a node, so that wanted instances exist. It only decides; it changes nothing.

Rules: an instance in use is never destroyed, and the MIG mode of a card in use is never changed. After the plan all
wanted instances are idle at the same time; idle ones that exist count, unless they are destroyed for others. The best
plan changes the fewest cards; then it turns MIG mode on for the fewest; then it destroys the least (share of the
scarcer slices); then it changes the cards that are most in use. It creates no more than is wanted. On a card, instances
get the starts at which, beside those in use, it is worth most (`worth`, with equal weights). Exact: all ways that can
matter are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.devices.mig.geometry import Asked, Geometry, GeometryError, bits_of, merged
from dovetail.core.devices.mig.instances import Counts, counts_of, equal_weights, starts_of, states, within
from dovetail.core.devices.mig.slices import slices, taken


class PlannedDivision(Struct, frozen=True):
    """A card as it is: its `instances`, of which some are `used`. `busy`: it is not in MIG mode (`mig`), and is in use
    as a whole. Raises GeometryError for a card that contradicts itself."""

    gpu: int
    geometry: Geometry
    mig: bool
    instances: int = 0
    used: int = 0
    busy: bool = False

    def __post_init__(self) -> None:
        fault = states(self.geometry).fault(self.instances)
        if self.used & ~self.instances:
            fault = "instances are in use that do not exist"
        if self.busy if self.mig else self.instances:
            fault = "a card has instances only in MIG mode, and is in use as a whole only without it"
        if fault:
            raise GeometryError(f"GPU{self.gpu}", fault)


class InstanceChange(Struct, frozen=True):
    """The changes to one card: instances by profile name and start. `turns_on`: MIG mode is turned on first; `resets`:
    that resets the card."""

    gpu: int
    destroy: tuple[tuple[str, int], ...]
    create: tuple[tuple[str, int], ...]
    turns_on: bool = False
    resets: bool = False

    def __str__(self) -> str:
        parts = ["MIG mode on" + " (resets the card)" * self.resets] if self.turns_on else []
        for what, instances in (("destroy", self.destroy), ("create", self.create)):
            if instances:
                parts.append(f"{what} {', '.join(f'{name}@{start}' for name, start in instances)}")
        return f"GPU {self.gpu}: {', '.join(parts)}"


class DivisionPlan(Struct, frozen=True):
    """`changes` is empty where no change is needed."""

    changes: tuple[InstanceChange, ...]


class NoDivision(Struct, frozen=True):
    reason: str


class _Cost(NamedTuple):
    """Costs in the order in which they count. `places` are the indices of the changed cards."""

    cards: int
    mode_changes: int
    destroyed_milli: int
    places: tuple[int, ...]


class _Way(NamedTuple):
    """A way to repartition a card: the wanted instances that are then idle on it, and what is destroyed for it."""

    gain: Counts
    destroyed_milli: int


_Chosen = list[tuple[int, _Way]]


def plan(cards: Sequence[PlannedDivision], wanted: Mapping[str, int]) -> DivisionPlan | NoDivision:
    """The best plan for so many instances of each profile (by name, alias or resource)."""
    asked = merged([card.geometry for card in cards], wanted.items())
    for name, _ in asked:
        if all(card.geometry.find(name) is None for card in cards):
            having = sorted({card.geometry.key for card in cards})
            return NoDivision(f"no card of the node has the profile {name}: {', '.join(having) or 'it has no cards'}")
    # The cards most in use come first, so that whole cards stay whole.
    order = sorted(cards, key=lambda card: (-taken(card.geometry, card.used).milli, card.gpu))
    chosen = _cheapest(order, asked)
    if chosen is not None:
        trimmed = _trimmed(order, chosen, asked)
        changes = [_change(order[place], way, asked) for place, way in trimmed]
        return DivisionPlan(tuple(sorted(changes, key=lambda change: change.gpu)))
    if _cheapest([replace(card, used=0, busy=False) for card in order], asked) is None:
        return NoDivision("the cards of the node cannot hold so many at once, even if all were idle")
    in_use = ", ".join(f"GPU{card.gpu}" for card in sorted(cards, key=lambda card: card.gpu) if card.used or card.busy)
    return NoDivision(f"instances in use are never destroyed, and too little is idle beside them: {in_use}")


def _cheapest(cards: Sequence[PlannedDivision], asked: Asked) -> _Chosen | None:
    """The cards to change, and how: card by card, the cheapest way to each number of instances still lacking."""
    counts = tuple(count for _, count in asked)
    idle = [_counted(card.geometry, card.instances & ~card.used, asked) for card in cards]
    ways = [() if card.busy else _ways(card.geometry, card.instances, card.used, asked) for card in cards]
    best: dict[Counts, tuple[_Cost, _Chosen]] = {counts: (_Cost(0, 0, 0, ()), [])}
    coming = _coming(idle, ways, len(asked))
    for place, card in enumerate(cards):
        most = coming[place + 1]
        reached: dict[Counts, tuple[_Cost, _Chosen]] = {}
        for lacking, (cost, so_far) in best.items():
            left = _less(lacking, idle[place])
            if within(left, most) and (left not in reached or cost < reached[left][0]):
                reached[left] = (cost, so_far)
            for way in ways[place]:
                left = _less(lacking, way.gain)
                if not within(left, most):
                    continue
                more = _Cost(
                    cost.cards + 1,
                    cost.mode_changes + (not card.mig),
                    cost.destroyed_milli + way.destroyed_milli,
                    (*cost.places, place),
                )
                if left not in reached or more < reached[left][0]:
                    reached[left] = (more, [*so_far, (place, way)])
        best = reached
    found = best.get((0,) * len(asked))
    return found[1] if found is not None else None


def _coming(idle: list[Counts], ways: list[tuple[_Way, ...]], kinds: int) -> list[Counts]:
    """By index: the most instances of each profile that the cards from there on can have."""
    coming = [(0,) * kinds]
    for here, own in zip(reversed(idle), reversed(ways), strict=True):
        most = [max(each) for each in zip(here, *(way.gain for way in own), strict=True)]
        coming.append(tuple(a + b for a, b in zip(coming[-1], most, strict=True)))
    return coming[::-1]


def _less(counts: Counts, gain: Counts) -> Counts:
    return tuple([count - got if count > got else 0 for count, got in zip(counts, gain, strict=True)])


def _counted(geometry: Geometry, bits: int, asked: Asked) -> Counts:
    own = states(geometry).of_profile
    indices = [geometry.find(name) for name, _ in asked]
    return tuple([0 if i is None else (bits & own[i]).bit_count() for i in indices])


def _trimmed(cards: Sequence[PlannedDivision], chosen: _Chosen, asked: Asked) -> _Chosen:
    """The same choice without instances beyond the wanted ones."""
    touched = {place: way.gain for place, way in chosen}
    after = [
        touched.get(place, _counted(card.geometry, card.instances & ~card.used, asked))
        for place, card in enumerate(cards)
    ]
    beyond = [sum(own) - count for own, (_, count) in zip(zip(*after, strict=True), asked, strict=True)]
    trimmed = []
    for place, way in reversed(chosen):
        less = [max(min(got, more), 0) for got, more in zip(way.gain, beyond, strict=True)]
        beyond = [more - off for more, off in zip(beyond, less, strict=True)]
        gain = tuple(got - off for got, off in zip(way.gain, less, strict=True))
        trimmed.append((place, _Way(gain, way.destroyed_milli)))
    return trimmed


@lru_cache(maxsize=4096)
def _ways(geometry: Geometry, instances: int, used: int, asked: Asked) -> tuple[_Way, ...]:
    """The ways to repartition a card, without those that another way equals in gain and in what it destroys."""
    most = tuple(count for _, count in asked)
    least: dict[Counts, int] = {}
    for kept, milli in _kept(geometry, instances & ~used):
        counts = _counted(geometry, kept, asked)
        for more in _additions(geometry, used | kept, asked):
            gain = tuple([min(sum(both), count) for *both, count in zip(counts, more, most, strict=True)])
            least[gain] = min(milli, least.get(gain, milli))
    return tuple(
        _Way(gain, milli)
        for gain, milli in least.items()
        if not any(milli >= other and gain != more and within(gain, more) for more, other in least.items())
    )


@lru_cache(maxsize=4096)
def _additions(geometry: Geometry, state: int, asked: Asked) -> tuple[Counts, ...]:
    """The numbers of the wanted profiles that can be added together, at least one and no more than are wanted."""
    known, most = states(geometry), tuple(count for _, count in asked)
    of = sum(known.of_profile[i] for i in {geometry.find(name) for name, _ in asked} if i is not None)
    found, todo = {0}, [0]
    while todo:
        more = todo.pop()
        for bit in bits_of(known.allowed(state | more) & of):
            if more | bit not in found and within(_counted(geometry, more | bit, asked), most):
                found.add(more | bit)
                todo.append(more | bit)
    return tuple(sorted({_counted(geometry, more, asked) for more in found - {0}}))


@lru_cache(maxsize=4096)
def _kept(geometry: Geometry, idle: int) -> tuple[tuple[int, int], ...]:
    """All sets of idle instances that can be kept, each with the share of the card that is destroyed then."""
    found, kept = [], idle
    while True:
        destroyed = [geometry.profiles[i] for i, _ in geometry.members(idle & ~kept)]
        found.append((kept, slices(geometry, destroyed).milli))
        if not kept:
            return tuple(found)
        kept = (kept - 1) & idle


def _change(card: PlannedDivision, way: _Way, asked: Asked) -> InstanceChange:
    """The change that leads to this way with the fewest new instances, at their best starts."""
    geometry, profiles = card.geometry, card.geometry.profiles
    known, starts = states(geometry), starts_of(geometry, equal_weights(geometry))
    idle = card.instances & ~card.used
    found = []
    for kept, milli in _kept(geometry, idle):
        if milli != way.destroyed_milli:
            continue
        new = _less(way.gain, _counted(geometry, kept, asked))
        counts = counts_of(geometry, {name: n for (name, _), n in zip(asked, new, strict=True) if n})
        for created in known.arrangements(card.used | kept, counts):
            found.append((-sum(new), starts.worth(card.used | created), kept, created))
    _, _, kept, created = max(found)

    def named(bits: int) -> tuple[tuple[str, int], ...]:
        return tuple((profiles[i].name, start) for i, start in geometry.members(bits))

    turns_on = not card.mig
    return InstanceChange(
        card.gpu, named(idle & ~kept), named(created), turns_on, turns_on and geometry.mode_change_resets
    )
