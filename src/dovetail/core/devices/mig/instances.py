# SPDX-License-Identifier: Apache-2.0
"""The instances that fit on a card beside those that it has, and the best start of the next one.

Rules: a state is a set of instances as in `geometry`. All states of a card are computed once (on the known products
some dozens to a few thousand). States that allow the same further instances form a class, and answers are kept by
class.

Of the possible starts of an instance the best is the one after which the card is worth most (`worth`), and of equals
the highest, since profiles with few starts start low. Cards of different geometries are compared by what they lose.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import le, sub
from typing import NamedTuple

from dovetail.core.devices.mig.geometry import Geometry, GeometryError, bits_of
from dovetail.core.devices.mig.slices import slices

Counts = tuple[int, ...]
"""A number for each profile of a geometry."""
NOWHERE = -1
_MOST_STATES = 20_000


class Best(NamedTuple):
    """`start` is NOWHERE where the profile does not fit. `loss` is how much less the card is worth then (`worth`)."""

    start: int
    loss: int


class States:
    """The valid states of one geometry. `classes` has the class of each valid state. `following[class]` are the
    instances that can be added, as bits, each with the class afterwards. A class has a higher number than those that
    follow it. Raises GeometryError for a geometry of more than 20,000 states."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.of_profile = [
            sum(geometry.bit(i, start) for start in profile.starts) for i, profile in enumerate(geometry.profiles)
        ]
        """By profile: the bits of all its instances."""
        spans = [(start, start + geometry.profiles[i].memory_slices) for i, start in geometry.instances]
        self._overlapping = [
            sum(1 << j for j, (low, high) in enumerate(spans) if low < end and start < high) for start, end in spans
        ]
        self._whole = geometry.compute_slices, *geometry.engines
        own = [(profile.compute_slices, *profile.engines) for profile in geometry.profiles]
        self._needs = [own[i] for i, _ in geometry.instances]
        self.classes: dict[int, int] = {}
        self.following: list[tuple[tuple[int, int], ...]] = []
        self._numbers: dict[tuple[tuple[int, int], ...], int] = {}
        self._classify(0)
        del self._numbers
        self.rooms: list[Counts] = []
        for number in range(len(self.following)):
            self.rooms.append(tuple(self._room(number, own) for own in self.of_profile))
        self._arrangements: dict[tuple[int, Counts], frozenset[int]] = {}

    def _classify(self, state: int) -> int:
        """The class of a state. The recursion is as deep as a card can have instances."""
        number = self.classes.get(state)
        if number is None:
            if len(self.classes) >= _MOST_STATES:
                raise GeometryError("profiles", f"{self.geometry.key}: more than {_MOST_STATES} ways to divide a card")
            key = tuple((bit, self._classify(state | bit)) for bit in bits_of(self._allowed(state)))
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self.following)
                self.following.append(key)
            self.classes[state] = number
        return number

    def _allowed(self, state: int) -> int:
        apart = (1 << len(self.geometry.instances)) - 1
        for bit in bits_of(state):
            apart &= ~self._overlapping[bit.bit_length() - 1]
        left = self._left(state)
        for i, own in enumerate(self.of_profile):
            if apart & own and self._shortage(state, left, i):
                apart &= ~own
        return apart

    def _left(self, state: int) -> tuple[int, ...]:
        """The compute slices and the engines of each kind that no instance has."""
        left = self._whole
        for bit in bits_of(state):
            left = tuple(map(sub, left, self._needs[bit.bit_length() - 1]))
        return left

    def _shortage(self, state: int, left: tuple[int, ...], profile: int) -> str:
        """What the card lacks for one more instance of a profile, at any start; "" where it lacks nothing. `left` is
        that of the state."""
        wanted = self.geometry.profiles[profile]
        if wanted.compute_slices > left[0]:
            return f"it needs {wanted.compute_slices} compute slices and {left[0]} are left"
        if (state & self.of_profile[profile]).bit_count() >= wanted.most:
            return f"a card can have {wanted.most} of it at most"
        for i, needed in enumerate(wanted.engines):
            if needed > left[i + 1]:
                kind = wanted.engines._fields[i]
                return f"it needs {needed} of the engines ({kind}) and {left[i + 1]} are left"
        return ""

    def _room(self, number: int, own: int) -> int:
        """All instances of a profile have one length: taking the lowest that fits again and again yields the most."""
        count = 0
        while (after := next((after for bit, after in self.following[number] if bit & own), None)) is not None:
            number = after
            count += 1
        return count

    def allowed(self, state: int) -> int:
        """All instances that can be added to the state, as bits."""
        return sum(bit for bit, _ in self.following[self.classes[state]])

    def starts(self, state: int, profile: int) -> tuple[int, ...]:
        """The starts at which an instance of the profile can be added."""
        return tuple(start for _, start in self.geometry.members(self.allowed(state) & self.of_profile[profile]))

    def room(self, state: int, profile: int) -> int:
        """How many instances of this profile alone still fit."""
        return self.rooms[self.classes[state]][profile]

    def refusal(self, state: int, profile: int) -> str:
        """The rule that excludes another instance of the profile; "" where one fits."""
        if self.room(state, profile):
            return ""
        wanted = self.geometry.profiles[profile]
        at = " or ".join(map(str, wanted.starts))
        return self._shortage(state, self._left(state), profile) or (
            f"it needs {wanted.memory_slices} memory slices in a row from slice {at} on, and each such row is in use"
        )

    def fault(self, state: int) -> str:
        """The instance that cannot coexist with the others, and the reason; "" for a valid state."""
        legal = 0
        for profile, start in self.geometry.members(state):
            bit = self.geometry.bit(profile, start)
            if legal | bit not in self.classes:
                reason = self._shortage(legal, self._left(legal), profile) or "it overlaps another one"
                return f"{self.geometry.profiles[profile].name} at {start}: {reason}"
            legal |= bit
        return ""

    def fits(self, state: int, counts: Counts) -> bool:
        """Whether so many instances of each profile fit at the same time."""
        return bool(self.arrangements(state, counts))

    def arrangements(self, state: int, counts: Counts) -> frozenset[int]:
        """Every set of so many instances of each profile that can be added."""
        key = (self.classes[state], counts)
        found = self._arrangements.get(key)
        if found is None:
            found = self._arrangements[key] = self._arrange(state, counts)
        return found

    def _arrange(self, state: int, counts: Counts) -> frozenset[int]:
        if any(count > room for count, room in zip(counts, self.rooms[self.classes[state]], strict=True)):
            return frozenset()
        added = {0}
        for profile in sorted(range(len(counts)), key=lambda i: len(self.geometry.profiles[i].starts)):
            own = self.of_profile[profile]
            for _ in range(counts[profile]):
                added = {more | bit for more in added for bit in bits_of(self.allowed(state | more) & own)}
        return frozenset(added)


class Starts:
    """The best start of each profile of a geometry for one set of weights."""

    def __init__(self, geometry: Geometry, weights: Counts) -> None:
        self._states = known = states(geometry)
        shares = [slices(geometry, [profile]).milli for profile in geometry.profiles]
        # Imported here: programs that only read and write records of cards do not need numpy.
        from dovetail.core.devices.mig.worth import worths

        self._worths = worths(known.classes, known.of_profile, shares, weights)

    def worth(self, state: int) -> int:
        """The worth of a card in this state; higher is better."""
        return self._worths[state]

    def best(self, state: int, profile: int) -> Best:
        allowed = self._states.allowed(state) & self._states.of_profile[profile]
        after, bit = max(((self._worths[state | bit], bit) for bit in bits_of(allowed)), default=(0, 0))
        if not bit:
            return Best(NOWHERE, 0)
        return Best(self._states.geometry.instances[bit.bit_length() - 1].start, self._worths[state] - after)

    def arranged(self, state: int, counts: Counts) -> int | None:
        """The set of so many instances of each profile after which the card is worth most. None: they do not fit."""
        found = self._states.arrangements(state, counts)
        return max(found, key=lambda added: (self._worths[state | added], added), default=None)


def best_start(geometry: Geometry, state: int, profile: int, weights: Counts | None = None) -> Best:
    """The best start for an instance of the profile; without weights all profiles weigh the same. Each set of weights
    has a table of its own: weights should be coarse, and above 0 for every profile that may be requested."""
    return starts_of(geometry, weights or equal_weights(geometry)).best(state, profile)


def within(counts: Counts, most: Counts) -> bool:
    """Whether no number exceeds its maximum."""
    return all(map(le, counts, most))


def equal_weights(geometry: Geometry) -> Counts:
    return (1,) * len(geometry.profiles)


def counts_of(geometry: Geometry, by_name: Mapping[str, int]) -> Counts:
    """The numbers by profile name, alias or resource, in the order of the profiles. Raises GeometryError for a profile
    that the geometry does not have."""
    counts = [0] * len(geometry.profiles)
    for name, count in by_name.items():
        counts[geometry.index(name)] += count
    return tuple(counts)


@lru_cache(maxsize=64)
def states(geometry: Geometry) -> States:
    """The states of a geometry; equal geometries share them."""
    return States(geometry)


@lru_cache(maxsize=256)
def starts_of(geometry: Geometry, weights: Counts) -> Starts:
    """The best starts; equal arguments share them. Raises ValueError unless there is one weight of at least 0 for each
    profile."""
    if len(weights) != len(geometry.profiles) or min(weights) < 0:
        raise ValueError(f"{weights}: one weight of at least 0 for each profile of {geometry.key}")
    return Starts(geometry, weights)
