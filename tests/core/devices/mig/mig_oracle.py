# SPDX-License-Identifier: Apache-2.0
"""Rules of MIG, read as they are written and slowly: sets of instances are frozensets of (profile number, start)."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.products import of_product

Held = frozenset[tuple[int, int]]
FAMILIES = ("A30-24GB", "A100-40GB", "H100-80GB", "B200-180GB", "RTXPRO6000-96GB")
"""One product of each set of ids, starts and engines."""
EIGHT_WIDE = (
    "A100-40GB", "A100-80GB", "H100-80GB", "H100-94GB", "H100-96GB", "GH200-144GB", "H200-141GB", "B200-180GB",
    "GB200-186GB", "B300-269GB", "GB300-278GB",
)  # fmt: skip


def geometry(key: str) -> Geometry:
    found = of_product(key)
    assert found is not None
    return found


def legal(card: Geometry, held: Held) -> bool:
    """Whether instances can be on one card: each memory slice once, compute slices, most of a profile, engines."""
    profiles = [card.profiles[i] for i, _ in held]
    memory = Counter(at for i, start in held for at in range(start, start + card.profiles[i].memory_slices))
    if any(times > 1 for times in memory.values()):
        return False
    if sum(profile.compute_slices for profile in profiles) > card.compute_slices:
        return False
    if any(count > card.profiles[i].most for i, count in Counter(i for i, _ in held).items()):
        return False
    used = [sum(kind) for kind in zip(*(profile.engines for profile in profiles), strict=True)]
    return all(own <= whole for own, whole in zip(used, card.engines, strict=False))


@lru_cache(maxsize=8)
def all_legal(card: Geometry) -> frozenset[Held]:
    """Every legal set: what is legal stays so when an instance is taken away, so sets grow by one at a time."""
    everywhere = [(i, start) for i, profile in enumerate(card.profiles) for start in profile.starts]
    found, layer = {frozenset[tuple[int, int]]()}, {frozenset[tuple[int, int]]()}
    while layer:
        layer = {
            held | {one} for held in layer for one in everywhere if one not in held and legal(card, held | {one})
        } - found
        found |= layer
    return frozenset(found)


def bits(card: Geometry, held: Held) -> int:
    return sum(card.bit(i, start) for i, start in held)


def held(card: Geometry, state: int) -> Held:
    return frozenset((i, start) for i, start in card.members(state))
