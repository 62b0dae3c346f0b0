# SPDX-License-Identifier: Apache-2.0
"""The MIG geometry of a GPU: its profiles, and where an instance of each can start.

Rules: instances lie on an axis of memory slices, each at one of the starts of its profile. Instances of one card can
coexist if their ranges do not overlap, if their compute slices and engines do not add up to more than the card has, and
if no profile has more instances than its most. The digit in a profile's name is its number of compute slices, not of
memory slices. A set of instances is an integer with a bit per profile and start, in the order of `instances`.

Sources: NVIDIA's MIG user guide (supported profiles), `nvidia-smi mig -lgip` and `-lgipp`. NVIDIA's DRA driver adds up
engines for partitionable devices. On the known products this gives the same as two other rules: the most of the
profiles with media extensions, and that two different ones of these exclude each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from dovetail.core.devices.contradiction import Contradiction

Asked = tuple[tuple[str, int], ...]
"""Profiles by name, alias or resource, with their numbers, which are at least 1."""
RESOURCE_PREFIX = "nvidia.com/mig-"
_MOST_INSTANCES = 62
"""The most pairs of profile and start: they are the bits of a set."""


class GeometryError(Contradiction):
    """A geometry that contradicts itself, or a profile that a geometry does not have."""


class Engines(NamedTuple):
    copy: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0


NO_ENGINES = Engines()


class InstancePlace(NamedTuple):
    """`profile` is an index in `Geometry.profiles`, `start` a memory slice."""

    profile: int
    start: int


class MigProfile(Struct, frozen=True):
    """`name` is nvidia-smi's; `aliases` are the names of other drivers. `most` is the most instances of a card, `gi_id`
    NVML's id of the profile, `memory_mib` the memory that a process sees. `sm_count` 0: not known."""

    name: str
    gi_id: int
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    most: int
    memory_mib: int
    sm_count: int = 0
    engines: Engines = NO_ENGINES
    aliases: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        return resource_of(self.name)


def resource_of(name: str) -> str:
    """The extended resource of a profile: `+` becomes `.` (NVIDIA's device plugin)."""
    return RESOURCE_PREFIX + name.replace("+", ".")


class Geometry(Struct, frozen=True, cache_hash=True, dict=True):
    """`products` are nvidia-smi's names of the cards. `engines` are those of a whole card. `mode_change_resets`:
    turning MIG mode on or off resets the card. `assumed`: the starts are those of a similar card, and not confirmed.

    Raises GeometryError where the parts contradict each other."""

    key: str
    products: tuple[str, ...]
    memory_slices: int
    compute_slices: int
    engines: Engines
    profiles: tuple[MigProfile, ...]
    mode_change_resets: bool = False
    assumed: bool = False

    def __post_init__(self) -> None:
        names: set[str] = set()
        for i, profile in enumerate(self.profiles):
            self._check(f"profiles[{i}]", profile)
            for name in (profile.name, *profile.aliases):
                if name in names:
                    raise GeometryError(f"profiles[{i}].name", f"{name} is listed twice")
                names.add(name)
        if len(self.instances) > _MOST_INSTANCES:
            raise GeometryError("profiles", f"{len(self.instances)} profiles and starts: {_MOST_INSTANCES} at most")

    @cached_property
    def instances(self) -> tuple[InstancePlace, ...]:
        return tuple(InstancePlace(i, start) for i, profile in enumerate(self.profiles) for start in profile.starts)

    @cached_property
    def _bits(self) -> Mapping[InstancePlace, int]:
        return {instance: 1 << number for number, instance in enumerate(self.instances)}

    @cached_property
    def _indices(self) -> Mapping[str, int]:
        """The indices of profiles by name, alias and resource."""
        named = [(name, i) for i, profile in enumerate(self.profiles) for name in (profile.name, *profile.aliases)]
        return dict(named) | {resource_of(name): i for name, i in named}

    def _check(self, path: str, profile: MigProfile) -> None:
        if not 1 <= profile.compute_slices <= self.compute_slices:
            raise GeometryError(f"{path}.compute_slices", f"{profile.compute_slices} of {self.compute_slices}")
        if not 1 <= profile.memory_slices <= self.memory_slices:
            raise GeometryError(f"{path}.memory_slices", f"{profile.memory_slices} of {self.memory_slices}")
        if profile.most < 1:
            raise GeometryError(f"{path}.most", f"{profile.most} is less than 1")
        last = self.memory_slices - profile.memory_slices
        if not profile.starts or list(profile.starts) != sorted({*profile.starts}):
            raise GeometryError(f"{path}.starts", "must be a list in ascending order, without duplicates")
        if profile.starts[0] < 0 or profile.starts[-1] > last:
            rule = f"{profile.memory_slices} of {self.memory_slices} memory slices start from 0 to {last}"
            raise GeometryError(f"{path}.starts", rule)
        if any(own > whole for own, whole in zip(profile.engines, self.engines, strict=True)):
            raise GeometryError(f"{path}.engines", "more than the card has")

    def find(self, name: str) -> int | None:
        """The index of the profile of that name, alias or resource; None where there is none."""
        return self._indices.get(name)

    def index(self, name: str) -> int:
        """As `find`; raises GeometryError where there is none."""
        found = self._indices.get(name)
        if found is None:
            names = ", ".join(profile.name for profile in self.profiles)
            raise GeometryError("profile", f"{self.key} has no {name}; it has {names}")
        return found

    def bit(self, profile: int, start: int) -> int:
        """The bit of an instance. Raises GeometryError where the profile cannot start there."""
        found = self._bits.get(InstancePlace(profile, start))
        if found is None:
            own = self.profiles[profile]
            raise GeometryError("start", f"{own.name} of {self.key} starts at one of {own.starts}, not at {start}")
        return found

    def bits(self, instances: Iterable[tuple[str, int]]) -> int:
        """The set of instances with these profile names and starts, valid together or not. Raises GeometryError."""
        return sum({self.bit(self.index(name), start) for name, start in instances})

    def members(self, bits: int) -> tuple[InstancePlace, ...]:
        """The instances of a set, in the order of their starts."""
        found = [self.instances[bit.bit_length() - 1] for bit in bits_of(bits)]
        return tuple(sorted(found, key=lambda instance: (instance.start, instance.profile)))


def bits_of(state: int) -> Iterator[int]:
    """The bits of a set of instances, in ascending order."""
    while state:
        yield state & -state
        state &= state - 1


def merged(geometries: Iterable[Geometry], asked: Iterable[tuple[str, int]]) -> Asked:
    """The numbers by nvidia-smi's names of the profiles, sorted; names of one profile are added up, zeros left out. The
    first geometry with a profile of the name resolves it; an unknown name stays."""
    kinds = list(dict.fromkeys(geometries))
    counts: dict[str, int] = {}
    for name, count in asked:
        found = ((kind, index) for kind in kinds if (index := kind.find(name)) is not None)
        kind, index = next(found, (None, 0))
        own = name if kind is None else kind.profiles[index].name
        counts[own] = counts.get(own, 0) + count
    return tuple(sorted((name, count) for name, count in counts.items() if count > 0))
