# SPDX-License-Identifier: Apache-2.0
"""What would hold the work of a job: fewer GPUs, a MIG instance, a smaller GPU, a part of one, or another machine.

Rules
- What a job needs is the p95 of real use of its busiest GPU (p99 of a service) and its largest memory, never a mean.
- A MIG instance of k of the n compute slices of a card holds real use below k/n. Memory bandwidth is divided with it.
- Another model holds the work if real use, times the worse of the ratios of tensor rate and of bandwidth, stays within
  the load that is planned for a GPU.
- Work that is spread over several GPUs is put together by adding up: the memory of replicated data counts once too
  often, which errs on the safe side.
- Another instance type has the same GPUs, as many of them in a machine as work together, in a number that the pods
  fill, and for each pod the CPUs and the memory that it requests, or uses where that is more, less what the system
  keeps. A pod that requests none, and of which no use was measured, needs as much as its part of the machine that it
  has.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.gpus import GpuProduct, named
from dovetail.advice.sizing.market import InstanceOffer
from dovetail.advice.sizing.seen import JobSeen
from dovetail.advice.sizing.thresholds import (
    CHEAPER,
    GPU_LOAD,
    HOST_LOAD,
    MEMORY_LOAD,
    MIG_SLICES,
    MOST_SHARES,
    SAME_MEMORY,
    SHARED_MEMORY_LOAD,
)
from dovetail.advice.speeds import SPEEDS
from dovetail.core.devices.mig import products as mig_products
from dovetail.core.devices.mig.geometry import MigProfile


class MigFit(Struct, frozen=True):
    """A MIG profile, and what an instance of it counts of the card, in thousandths."""

    profile: MigProfile
    milli: int
    compute_milli: int


def mig_slice(seen: JobSeen) -> MigFit | None:
    """The smallest MIG profile that holds what a pod does on its GPU."""
    geometry = mig_products.of_product(seen.gpu.name) if seen.gpu is not None else None
    if seen.gpu is None or geometry is None:
        return None
    card = max(geometry.profiles, key=lambda one: one.memory_slices)
    for profile in seen.gpu.profiles():
        compute = profile.compute_slices * 1000 // geometry.compute_slices
        enough = seen.needed < compute and seen.total.memory_peak_mib * 1000 <= profile.memory_mib * MEMORY_LOAD
        if profile.compute_slices <= MIG_SLICES and profile.compute_slices < geometry.compute_slices and enough:
            memory = profile.memory_slices * 1000 // card.memory_slices
            return MigFit(profile, max(compute, memory), compute)
    return None


def fewer(seen: JobSeen, gpus: int) -> int | None:
    """The smallest divisor of this number of GPUs on which the work fits; None if none does."""
    if seen.gpu is None:
        return None
    for fewest in range(1, gpus):
        if gpus % fewest == 0:
            load = seen.needed * gpus
            memory = seen.total.memory_peak_mib * gpus
            if load <= GPU_LOAD * fewest and memory * 1000 <= seen.gpu.usable_mib * fewest * MEMORY_LOAD:
                return fewest
    return None


def smaller(seen: JobSeen) -> GpuProduct | None:
    """The slowest model of the cluster that holds the work; None if none but its own does."""
    if seen.gpu is None or seen.gpu.model not in SPEEDS:
        return None
    own = SPEEDS[seen.gpu.model]
    found = []
    for model in sorted(seen.models):
        other = named(model)
        if other is None or other.model not in SPEEDS or (seen.devices > 1 and not _linked(seen, other)):
            continue
        speed = SPEEDS[other.model]
        if speed.tflops >= own.tflops or speed.gb_s > own.gb_s:
            continue
        fits = seen.total.memory_peak_mib * 1000 <= other.usable_mib * MEMORY_LOAD
        holds = all(
            seen.needed * mine <= GPU_LOAD * theirs
            for mine, theirs in ((own.tflops, speed.tflops), (own.gb_s, speed.gb_s))
        )
        if fits and holds:
            found.append((speed.tflops, other.usable_mib, other))
    return min(found, key=lambda one: one[:2])[2] if found else None


def _linked(seen: JobSeen, other: GpuProduct) -> bool:
    """Whether NVLinks that the job has are not lost."""
    gpus = seen.use.most_per_pod
    return seen.replicated or gpus == 1 or other.linked(gpus) or (seen.gpu is not None and not seen.gpu.linked(gpus))


def more_bandwidth(seen: JobSeen) -> GpuProduct | None:
    """The model of the cluster with the least bandwidth above the own one, and with as much memory; None if none."""
    if seen.gpu is None or seen.gpu.model not in SPEEDS:
        return None
    own = SPEEDS[seen.gpu.model]
    others = (other for model in sorted(seen.models) if (other := named(model)) is not None)
    better = [
        other
        for other in others
        if other.model in SPEEDS
        and SPEEDS[other.model].gb_s > own.gb_s
        and other.usable_mib * 1000 >= seen.gpu.usable_mib * SAME_MEMORY
    ]
    return min(better, key=lambda other: SPEEDS[other.model].gb_s) if better else None


def shares(seen: JobSeen) -> int:
    """How many such pods one GPU holds; 0 if that is not known."""
    peak_mib = seen.total.memory_peak_mib
    if seen.gpu is None or not peak_mib or not seen.needed:
        return 0
    by_memory = seen.gpu.usable_mib * SHARED_MEMORY_LOAD // (peak_mib * 1000)
    return min(by_memory, GPU_LOAD // seen.needed, MOST_SHARES)


class Machines(Struct, frozen=True):
    """The instance type that a job has, at the price of its place, and those that would hold it, the cheapest first."""

    own: InstanceOffer
    others: tuple[InstanceOffer, ...]

    @property
    def cheaper(self) -> InstanceOffer | None:
        """The cheapest that would hold it, if that is worth a move."""
        best = self.others[0] if self.others else None
        return best if best is not None and self.own.price.above(best.price, CHEAPER) else None

    def with_cpus(self, per_gpu_milli: int) -> InstanceOffer | None:
        """The cheapest with so many CPUs for each GPU; None where the own one has them."""
        if _part(self.own.cpu_milli, self.own) >= per_gpu_milli:
            return None
        return next((one for one in self.others if _part(one.cpu_milli, one) >= per_gpu_milli), None)


def machines(seen: JobSeen) -> Machines | None:
    """None where its instance type, or the price of it, is not known."""
    place = seen.place
    if place is None or place.spot or not seen.whole:
        return None
    offers = seen.market.offers(place)
    own = next((one for one in offers if one.name == place.instance_type), None)
    if own is None:
        return None
    gpus, (cpu_milli, memory_mib) = seen.use.most_per_pod, seen.host_needs
    together = gpus if seen.replicated else min(own.gpus, seen.devices)

    def holds(one: InstanceOffer) -> bool:
        amounts = (
            (cpu_milli, own.cpu_milli, one.cpu_milli),
            (memory_mib, own.memory_mib, one.memory_mib),
        )
        return (
            one.gpus >= together
            and one.gpus % gpus == 0
            and all(
                needed <= gpus * _part(amount, one) if needed else mine * one.gpus <= amount * own.gpus
                for needed, mine, amount in amounts
            )
        )

    others = (one for one in offers if one is not own and one.price.currency == own.price.currency and holds(one))
    return Machines(own, tuple(sorted(others, key=lambda one: (one.price.micro, one.name))))


def _part(amount: int, of: InstanceOffer) -> int:
    """What pods can request of an amount of a machine for each of its GPUs."""
    return amount * HOST_LOAD // (1000 * of.gpus)
