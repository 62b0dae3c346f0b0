# SPDX-License-Identifier: Apache-2.0
"""CPUs as the kubelet takes them by default: whole units first, so that the others stay whole.

Follows takeByTopologyNUMAPacked of pkg/kubelet/cm/cpumanager/cpu_assignment.go of Kubernetes v1.37.1. Units are tried
fewest free CPUs first, then lowest id; cores one inner unit after the other.

Upstream is followed even where it is clearly a mistake, because the kubelet does what it does. A core or socket counts
as free if it has as many free CPUs as a core or socket has on average, and is then taken as a whole: with unequal cores
some of these CPUs may be in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dovetail.core.devices.kubelet.cpu_topology import CpuTopology, Units, union
from dovetail.core.devices.kubelet.inventory import NEWEST_MINOR


class CpuAssignmentError(Exception):
    """The CPUs cannot be taken. The text is the kubelet's."""


def take_packed(
    topology: CpuTopology,
    available: int,
    count: int,
    spread: bool = False,
    by_uncore: bool = False,
    minor: int = NEWEST_MINOR,
) -> int:
    """CPUs of whole outer units first, then of inner ones, of L3 caches if requested, of cores unless `spread`, then
    single CPUs (takeByTopologyNUMAPacked). Raises CpuAssignmentError."""
    taking = Taking(topology, available, count)
    taking.take_free(taking.outers, topology.outer_average, topology.outers_least)
    taking.take_free(taking.inners, topology.inner_average, topology.inners_least)
    if by_uncore and taking.needed > 0:
        taking.take_uncores(minor)
    if not spread:
        taking.take_free_cores()
    if taking.needed > 0:
        taking.take_single_cpus(taking.sockets() if spread else taking.cores())
    if taking.needed > 0:
        raise CpuAssignmentError("failed to allocate cpus")
    return taking.taken


class Taking:
    """The free, taken and still needed CPUs of one allocation (upstream: cpuAccumulator)."""

    __slots__ = ("free", "needed", "taken", "topology")

    def __init__(self, topology: CpuTopology, available: int, count: int) -> None:
        self.topology = topology
        self.free = topology.all & available
        self.needed = count
        self.taken = 0
        if count > self.free.bit_count():
            raise CpuAssignmentError(
                f"not enough cpus available to satisfy request: requested={count}, available={available.bit_count()}"
            )

    def take(self, cpus: int) -> None:
        self.taken |= cpus
        self.free &= ~cpus
        self.needed -= cpus.bit_count()

    def ordered(self, units: Units, within: int) -> list[int]:
        free = self.free
        within &= free
        found = [unit for unit in units if unit & within]
        return found if len(found) == 1 else sorted(found, key=lambda unit: (unit & free).bit_count())

    def outers(self) -> list[int]:
        return self.ordered(self.topology.outers, self.free)

    def inners(self) -> list[int]:
        below = self.topology.inner_of_outer
        return [inner for outer in self.outers() for inner in self.ordered(below[outer], outer)]

    def cores(self) -> Iterator[int]:
        """The free cores at the time of the call, one by one: mostly one of the first few suffices."""
        below, free = self.topology.cores_of_inner, self.free
        for inner in self.inners():
            within = inner & free
            if lows := self.topology.lows & inner:
                second = free >> self.topology.sibling
                yield from self.topology.cores_at(lows & (free ^ second))
                yield from self.topology.cores_at(lows & free & second)
                continue
            for count in self.topology.core_sizes:
                for core in below[inner]:
                    if core & within and (core & free).bit_count() == count:
                        yield core

    def cores_by_id(self) -> Iterable[int]:
        """As `cores`, but within an inner unit by id: cores with as many free CPUs come in the same order."""
        below = self.topology.cores_of_inner
        return (core for inner in self.inners() for core in below[inner])

    def take_free_cores(self) -> None:
        topology, free = self.topology, self.free
        if not topology.lows:
            self.take_free(self.cores_by_id, topology.cpus_per_core, topology.cores_least)
            return
        if self.needed < topology.cpus_per_core:
            return
        for inner in self.inners():
            for core in topology.cores_at(topology.lows & inner & free & free >> topology.sibling):
                self.take(core)
                if self.needed < topology.cpus_per_core:
                    return

    def numas(self) -> list[int]:
        return self.outers() if self.topology.numa_is_outer else self.inners()

    def sockets(self) -> list[int]:
        return self.inners() if self.topology.numa_is_outer else self.outers()

    def uncores(self) -> list[int]:
        below = self.topology.uncores_of_numa
        return [uncore for numa in self.numas() for uncore in self.ordered(below[numa], numa)]

    def take_free(self, units: Callable[[], Iterable[int]], average: int, least: int) -> None:
        """Take units that are wholly free as long as a whole one is needed. `average`: the number of free CPUs at which
        a unit counts as wholly free, 0 for all of its own. `least`: the number of CPUs of the smallest unit."""
        if self.needed < least:
            return
        free = self.free
        for unit in units():
            left = unit & free
            if left and (size := unit.bit_count()) <= self.needed and left.bit_count() == (average or size):
                self.take(unit)
                if self.needed < least:
                    return

    def take_uncores(self, minor: int) -> None:
        for uncore in self.uncores():
            if self.needed >= self.topology.cpus_per_uncore:
                self.take_free(self.uncores, 0, 1)
            if self.needed > 0:
                self._take_part(uncore, minor)
            if self.needed <= 0:
                return

    def _take_part(self, uncore: int, minor: int) -> None:
        """Take all that is needed from the lowest cores of one L3 cache, or nothing (upstream: takePartialUncore).

        Before v1.34 a part of a core was never taken."""
        threads = self.topology.cpus_per_core
        cores = [core for core in self.topology.cores_of_uncore[uncore] if core & uncore & self.free]
        wanted = (self.needed + threads - 1) // threads if minor >= 34 else self.needed // threads
        cpus = union(cores[:wanted]) & self.free
        if minor >= 34 and self.needed % 2 and threads > 1 and cpus.bit_count() > self.needed:
            cpus ^= 1 << cpus.bit_length() - 1
        if cpus.bit_count() == self.needed:
            self.take(cpus)

    def take_single_cpus(self, units: Iterable[int]) -> None:
        free = self.free
        for unit in units:
            cpus = unit & free
            while cpus:
                cpu = cpus & -cpus
                cpus ^= cpu
                self.take(cpu)
                if self.needed <= 0:
                    return
