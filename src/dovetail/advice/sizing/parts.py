# SPDX-License-Identifier: Apache-2.0
"""Smaller parts for jobs that hold parts of GPUs: another MIG profile, a smaller share.

Rules
- What a pod holds is known by what it counts of the card: an instance is of the profile that counts as much, and of two
  that do, of the one with more compute slices. Real use is of the part, so it is that much of the card.
- A smaller profile holds it if real use, times the worse of the ratios of compute and of memory slices, stays within
  the load that is planned for a GPU, and the memory peak within what is planned of its memory.
- A share has to hold its memory peak, and the time on the card that its pods use. Less than half of what is held is
  advised alone: a share is a promise for busy times, too.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.sizing.seen import JobSeen
from dovetail.advice.sizing.thresholds import FULL_PART, GPU_LOAD, MEMORY_LOAD, SHARE_STEP
from dovetail.core.devices.mig import products as mig_products
from dovetail.core.devices.mig.geometry import MigProfile


class HeldProfile(Struct, frozen=True):
    """A MIG profile, and what an instance of it counts of the card, in thousandths."""

    profile: MigProfile
    milli: int


def held_profile(seen: JobSeen) -> HeldProfile | None:
    """The profile of the instances that its pods hold, one each; None where that is not known."""
    milli = _held_milli(seen, "instance")
    found = [one for one in _profiles(seen) if one.milli == milli]
    return max(found, key=lambda one: one.profile.compute_slices, default=None)


def smaller_profile(seen: JobSeen) -> HeldProfile | None:
    """The smallest MIG profile that holds what a pod does on its instance; None if none is smaller."""
    own = held_profile(seen)
    if own is None:
        return None
    for one in _profiles(seen):
        slices = (
            (own.profile.compute_slices, one.profile.compute_slices),
            (own.profile.memory_slices, one.profile.memory_slices),
        )
        holds = all(seen.needed * mine <= GPU_LOAD * theirs for mine, theirs in slices)
        fits = seen.total.memory_peak_mib * 1000 <= one.profile.memory_mib * MEMORY_LOAD
        if holds and fits and one.milli < own.milli:
            return one
    return None


def _profiles(seen: JobSeen) -> list[HeldProfile]:
    """Those of its GPUs, the smallest first."""
    geometry = mig_products.of_product(seen.gpu.name) if seen.gpu is not None else None
    if seen.gpu is None or geometry is None:
        return []
    memory_slices = max(one.memory_slices for one in geometry.profiles)
    return [
        HeldProfile(
            one,
            max(one.compute_slices * 1000 // geometry.compute_slices, one.memory_slices * 1000 // memory_slices),
        )
        for one in seen.gpu.profiles()
    ]


class SmallerShare(Struct, frozen=True):
    """What a pod holds of its GPU, and what is enough, in thousandths; the memory that it takes then."""

    held_milli: int
    milli: int
    memory_mib: int


def smaller_share(seen: JobSeen) -> SmallerShare | None:
    """The share that holds what a pod does, if that is at most half of what it holds."""
    held = held_share(seen)
    if not held or seen.gpu is None:
        return None
    memory_mib = -(-seen.total.memory_peak_mib * 1000 // MEMORY_LOAD)
    by_memory = -(-memory_mib * 1000 // seen.gpu.usable_mib)
    by_time = -(-seen.needed * held // GPU_LOAD)
    milli = -(-max(by_memory, by_time) // SHARE_STEP) * SHARE_STEP
    return SmallerShare(held, milli, memory_mib) if milli * 1000 <= held * FULL_PART else None


def held_share(seen: JobSeen) -> int:
    """What each of its pods holds of one shared GPU, in thousandths; 0 where that, or how it is used, is not known."""
    known = seen.gpu is not None and seen.total.memory_peak_mib and seen.needed
    return _held_milli(seen, "share") if known else 0


def _held_milli(seen: JobSeen, kind: str) -> int:
    """What each pod holds, if that is one part of this kind, and equal; else 0."""
    parts = {(one.kind, one.milli) for one in seen.use.devices}
    alone = seen.replicated and seen.use.most_per_pod == 1 and len(parts) == 1
    found, milli = next(iter(parts)) if alone else ("", 0)
    return milli if found == kind else 0
