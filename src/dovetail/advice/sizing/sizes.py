# SPDX-License-Identifier: Apache-2.0
"""Sizes: what holds the same work and is smaller."""

from __future__ import annotations

from dovetail.advice.sizing import fit, parts
from dovetail.advice.sizing import thresholds as limits
from dovetail.advice.sizing.rule import SizeChange, SizeProposal
from dovetail.advice.sizing.seen import JobSeen, gib, percent

_PRODUCT = "nvidia.com/gpu.product"


def mig(seen: JobSeen) -> SizeProposal | None:
    if not seen.whole or not seen.replicated or seen.use.most_per_pod > 1:
        return None
    found = fit.mig_slice(seen)
    if found is None:
        return None
    profile = found.profile
    return SizeProposal(
        f"{seen.needed_text}, below the {percent(found.compute_milli)} of the SMs of "
        f"a {profile.name}, and its memory peak of {gib(seen.total.memory_peak_mib)} fits the "
        f"{gib(profile.memory_mib)} of the instance",
        f"request {profile.resource} in place of the GPU: an instance has memory, processors and faults of its own",
        saves_milli=1000 - found.milli,
        change=SizeChange("mig", resource=profile.resource),
    )


def fewer(seen: JobSeen) -> SizeProposal | None:
    gpus = seen.use.most_per_pod if seen.replicated else seen.devices
    if not seen.whole or gpus < 2:
        return None
    fewest = fit.fewer(seen, gpus)
    if fewest is None:
        return None
    inside = seen.use.most_per_pod == gpus
    return SizeProposal(
        f"{seen.needed_text} on its busiest GPU and no GPU had more than "
        f"{gib(seen.total.memory_peak_mib)} in use: {gpus} GPUs do the work of {fewest}",
        f"{fewest} in place of {gpus} GPUs, with a batch for each that is larger by as much",
        saves_milli=(gpus - fewest) * 1000 // gpus,
        change=SizeChange("gpus", fewest) if inside else None,
    )


def smaller(seen: JobSeen) -> SizeProposal | None:
    if not seen.whole:
        return None
    found = fit.smaller(seen)
    if found is None:
        return None
    return SizeProposal(
        f"{seen.needed_text} and its memory peak is {gib(seen.total.memory_peak_mib)}: "
        f"{found.model} of this cluster holds both",
        f"run it on {found.model} ({gib(found.usable_mib)}): select nodes by {_PRODUCT}={found.name}",
        now=seen.market.model(seen.gpu.model) if seen.gpu is not None else None,
        then=seen.market.model(found.model),
        gain="the time of the larger GPUs for others",
        change=SizeChange("select", key=_PRODUCT, value=found.name),
    )


def share(seen: JobSeen) -> SizeProposal | None:
    alone = seen.whole and seen.replicated and seen.use.most_per_pod == 1 and seen.workload != "training"
    most = fit.shares(seen) if alone else 0
    if most < 2:
        return None
    memory_mib = -(-seen.total.memory_peak_mib * 1000 // limits.MEMORY_LOAD)
    return SizeProposal(
        f"{seen.needed_text} and its memory peak is {gib(seen.total.memory_peak_mib)}: {most} such pods fit on one GPU",
        f"share the GPU by time-slicing with up to {most - 1} others like it: request nvidia.com/gpu.shared",
        saves_milli=(most - 1) * 1000 // most,
        change=SizeChange("share", memory_mib, "nvidia.com/gpu.shared"),
    )


def smaller_instance(seen: JobSeen) -> SizeProposal | None:
    own, found = parts.held_profile(seen), parts.smaller_profile(seen)
    if own is None or found is None:
        return None
    profile = found.profile
    return SizeProposal(
        f"{seen.needed_text} of its {own.profile.name}, and its memory peak of {gib(seen.total.memory_peak_mib)} fits "
        f"the {gib(profile.memory_mib)} of a {profile.name}",
        f"request {profile.resource} in place of {own.profile.resource}",
        saves_milli=(own.milli - found.milli) * 1000 // own.milli,
        change=SizeChange("instance", resource=profile.resource),
    )


def smaller_share(seen: JobSeen) -> SizeProposal | None:
    found = parts.smaller_share(seen)
    if found is None:
        return None
    fraction = f"{found.milli / 1000:g}"
    return SizeProposal(
        f"{seen.needed_text} of the {percent(found.held_milli)} of a GPU that a pod holds, and its memory peak is "
        f"{gib(seen.total.memory_peak_mib)}",
        f"{percent(found.milli)} of a GPU are enough: dovetail.dev/gpu-fraction: {fraction!r}, or "
        f"dovetail.dev/gpu-memory: {found.memory_mib}Mi; where a GPU is divided into equal replicas, into more of them",
        saves_milli=(found.held_milli - found.milli) * 1000 // found.held_milli,
        change=SizeChange("part", found.memory_mib, value=fraction),
    )
