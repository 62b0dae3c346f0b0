# SPDX-License-Identifier: Apache-2.0
"""The MIG geometry of each GPU, in the terms of `core.devices.mig`, from its driver.

Rules: the driver takes precedence over the table of products, which is used if the driver returns no placements (some
do not while MIG mode is off). A whole GPU has as many engines of a kind as the instances of any one profile take at
most.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from dovetail.agent.machine.host import Gpu
from dovetail.agent.machine.host import GpuProfile as DriverProfile
from dovetail.core.devices.mig import names
from dovetail.core.devices.mig.geometry import Engines, Geometry, MigProfile, resource_of
from dovetail.core.devices.mig.instances import equal_weights, starts_of, states
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.slices import taken

Placed = tuple[str, int]
"""A GPU instance: the name of its profile, and the memory slice where it starts."""


def geometry_of(gpu: Gpu) -> Geometry | None:
    """The geometry; None if the GPU has no MIG or its profiles are unknown. Raises GeometryError if the driver's
    profiles are impossible."""
    if gpu.profiles and all(profile.starts for profile in gpu.profiles):
        return _from_driver(gpu.product, gpu.profiles)
    return of_product(gpu.product) if gpu.mig_capable else None


@lru_cache(maxsize=16)
def _from_driver(product: str, profiles: tuple[DriverProfile, ...]) -> Geometry:
    own = tuple(
        MigProfile(
            one.name,
            one.id,
            one.compute,
            one.size,
            tuple(sorted(one.starts)),
            one.most,
            one.memory_mib,
            one.engines.multiprocessors,
            _engines(one),
        )
        for one in profiles
    )
    return Geometry(
        key=product,
        products=(product,),
        memory_slices=max(one.starts[-1] + one.memory_slices for one in own),
        compute_slices=max(one.compute_slices for one in own),
        engines=Engines(*(max(kind) for kind in zip(*(_of_most(one) for one in own), strict=True))),
        profiles=own,
    )


def _engines(profile: DriverProfile) -> Engines:
    own = profile.engines
    return Engines(own.copy_engines, own.decoders, own.encoders, own.jpeg_engines, own.ofa_engines)


def _of_most(profile: MigProfile) -> Engines:
    return Engines(*(count * profile.most for count in profile.engines))


def refusal(geometry: Geometry, counts: dict[str, int]) -> str:
    """Why a GPU cannot have these numbers of instances at once, whatever their places; "" if it can."""
    for name in counts:
        if geometry.find(name) is None:
            return no_profile(geometry, name)
    known = states(geometry)
    so_far, last = [0] * len(geometry.profiles), 0
    # Those with the fewest places first, so that the message names the profile that does not fit.
    for name in sorted(counts, key=lambda own: len(geometry.profiles[geometry.index(own)].starts)):
        index = geometry.index(name)
        for _ in range(counts[name]):
            so_far[index] += 1
            found = known.arrangements(0, tuple(so_far))
            if not found:
                held = _listed(geometry, last)
                beside = f" beside {held}" if held else ""
                return f"{geometry.profiles[index].name}{beside}: {known.refusal(last, index)}"
            last = max(found)
    return ""


def no_profile(geometry: Geometry, name: str) -> str:
    """The message for a profile that the GPU does not have, with the nearest valid one."""
    if "c." in name:
        return f"{name}: compute instances smaller than their GPU instance are not offered to pods"
    near = names.nearest(resource_of(name), [profile.resource for profile in geometry.profiles])
    return f"{geometry.key} has no profile {name}; nearest valid value: {geometry.profiles[geometry.index(near)].name}"


def _listed(geometry: Geometry, state: int) -> str:
    return listed((geometry.profiles[i].name, start) for i, start in geometry.members(state))


def listed(instances: Iterable[Placed]) -> str:
    return ", ".join(f"{name}@{start}" for name, start in instances)


def arranged(
    geometry: Geometry, counts: dict[str, int], there: Iterable[Placed], held: Iterable[Placed]
) -> tuple[Placed, ...] | None:
    """Places for these numbers of instances. They include all instances in use (`held`), then as much of those that are
    `there` as possible; of equal choices the one that leaves the GPU the most worth. None if an instance in use has no
    place."""
    wanted = [0] * len(geometry.profiles)
    for name, count in counts.items():
        wanted[geometry.index(name)] += count
    stays, must = geometry.bits(there), geometry.bits(held)
    worth = starts_of(geometry, equal_weights(geometry)).worth
    found = [bits for bits in states(geometry).arrangements(0, tuple(wanted)) if not must & ~bits]
    best = max(found, key=lambda bits: (taken(geometry, bits & stays).milli, worth(bits), bits), default=None)
    return None if best is None else tuple((geometry.profiles[i].name, start) for i, start in geometry.members(best))
