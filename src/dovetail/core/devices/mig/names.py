# SPDX-License-Identifier: Apache-2.0
"""The names of MIG resources, and the faults in them.

Rules: NVIDIA's device plugin offers instances as `nvidia.com/mig-<compute>g.<memory>gb`, with `.me`, `.gfx` or
`.me.all` for more engines and `-me` for none, and `.shared` at the end of a name that is for replicas alone. Compute
instances that are smaller than their GPU instance (`1c.3g.20gb`) are not offered. For a name that only looks like one
of these, the message proposes the nearest valid name: the profile of the nodes' GPUs that has as much compute and
memory as the name states, and the least beyond.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX, Geometry, resource_of
from dovetail.core.devices.mig.products import GEOMETRIES

SHARED = ".shared"
FORM = "nvidia.com/mig-<compute slices>g.<memory>gb"
_RIGHT = re.compile(r"nvidia\.com/mig-([1-9]\d?g\.[1-9]\d{0,3}gb)(\.me\.all|\.me|\.gfx|-me)?(\.shared)?")
_LIKE = re.compile(r"nvidia\.com/.*(mig[-_.]|\dg[^a-z0-9]*\d+g)", re.IGNORECASE)
_PARTS = re.compile(r"(\d{1,4})g[^a-z0-9]*(\d{1,6})g?[bi]*(.*)")


class Name(NamedTuple):
    """`profile` is the name in nvidia-smi's spelling."""

    profile: str
    shared: bool


class _Wanted(NamedTuple):
    compute: int
    memory_gb: int
    suffix: str


def read(resource: str) -> Name | None:
    """The parts of a resource name; None where it is not a valid name of a MIG resource."""
    found = _RIGHT.fullmatch(resource)
    if found is None:
        return None
    base, suffix, shared = found.groups(default="")
    return Name(base + (f"+{suffix[1:]}" if suffix.startswith(".") else suffix), bool(shared))


def is_like(resource: str) -> bool:
    """Whether a resource name is meant as a MIG resource, valid or not."""
    return _LIKE.match(resource) is not None


def fault(resource: str, geometries: Collection[Geometry] = GEOMETRIES, offered: Collection[str] = frozenset()) -> str:
    """The rule that a name breaks, with the nearest valid value; "" for a valid name.

    `geometries` are those of the GPUs of the nodes, `offered` the resources that nodes offer: an offered name is valid,
    whatever the table of products contains."""
    if resource in offered:
        return ""
    name, valid = read(resource), {*_resources(geometries), *(other for other in offered if read(other))}
    if name is None:
        rule = f"must be {FORM}"
    else:
        having = [geometry for geometry in geometries if geometry.find(name.profile) is not None]
        renamed = _other_name(name, having, offered)
        if having and not renamed:
            return ""
        if renamed:
            return f"is named differently by the nodes' drivers; nearest valid value: {renamed}"
        owners = [geometry.key for geometry in GEOMETRIES if geometry.find(name.profile) is not None]
        there = ", ".join(geometry.key for geometry in geometries) or "no GPU that supports MIG"
        rule = f"is a profile of {', '.join(owners)}; the nodes have {there}" if owners else "no such MIG profile"
    near = nearest(resource, valid)
    return f"{rule}; nearest valid value: {near}" if near else rule


def nearest(resource: str, valid: Collection[str]) -> str:
    """The valid resource that is nearest to the profile that a name states, or to its spelling where it states none; ""
    where none is valid."""
    bare = resource.removesuffix(SHARED)
    end = SHARED if bare != resource else ""
    wanted = _wanted(bare)
    if wanted is None:
        return next(iter(difflib.get_close_matches(resource, sorted(valid), n=1, cutoff=0)), "")
    rated = [(_distance(wanted, has), other) for other in valid if (has := _wanted(other.removesuffix(SHARED)))]
    found = min(rated, default=(None, ""))[1]
    return found + end if found and not found.endswith(SHARED) else found


def _resources(geometries: Collection[Geometry]) -> Iterator[str]:
    for geometry in geometries:
        for profile in geometry.profiles:
            yield profile.resource
            yield from map(resource_of, profile.aliases)


def _other_name(name: Name, having: list[Geometry], offered: Collection[str]) -> str:
    """The name under which nodes offer the profile, where the request uses another driver's name for it."""
    for geometry in having:
        profile = geometry.profiles[geometry.index(name.profile)]
        for other in (profile.name, *profile.aliases):
            resource = resource_of(other) + SHARED * name.shared
            if other != name.profile and resource in offered:
                return resource
    return ""


@lru_cache(maxsize=1024)
def _wanted(resource: str) -> _Wanted | None:
    found = _PARTS.search(resource.casefold().removeprefix(RESOURCE_PREFIX))
    if found is None:
        return None
    compute, memory_gb, rest = found.groups()
    return _Wanted(int(compute), int(memory_gb), _suffix(rest))


def _suffix(rest: str) -> str:
    if "all" in rest:
        return ".me.all"
    if "gfx" in rest:
        return ".gfx"
    if "me" in rest:
        return "-me" if rest.startswith("-") else ".me"
    return ""


def _distance(wanted: _Wanted, has: _Wanted) -> tuple[int, ...]:
    """Lacking engines are worst, then lacking compute, then lacking memory, then any excess."""
    compute, memory = has.compute - wanted.compute, has.memory_gb - wanted.memory_gb
    return (has.suffix != wanted.suffix, max(-compute, 0), max(-memory, 0), max(compute, 0), max(memory, 0))
