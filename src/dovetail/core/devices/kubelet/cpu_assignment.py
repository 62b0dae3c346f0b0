# SPDX-License-Identifier: Apache-2.0
"""Which CPUs the kubelet's static CPU Manager takes out of a set, exact to the CPU id.

Follows pkg/kubelet/cm/cpumanager/cpu_assignment.go and topology/topology.go of Kubernetes v1.37.1. A set of CPUs is an
int, bit c standing for CPU c. The choice depends on nothing but the arguments.

Sockets, NUMA nodes, L3 ("uncore") caches and cores are units: sets of CPUs, in tables sorted by the unit's id. Units
are always tried fewest free CPUs first, then lowest id. NUMA nodes are the outer units and sockets the inner ones where
there are at least as many sockets as NUMA nodes, else the other way round; cores are tried one inner unit after the
other.

Upstream is followed where it is plainly not meant, because the kubelet does what it does. A core or socket is free if
as many CPUs of it are free as a core or socket has on average, and is then taken as a whole: with unequal cores some of
these CPUs may be in use. `_combinations` and `_never_ends` have two more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import combinations
from math import isqrt

from dovetail.core.devices.kubelet.inventory import NEWEST_MINOR, Cpu

Units = tuple[int, ...]


class CpuAssignmentError(Exception):
    """The CPUs cannot be taken. The text is the kubelet's."""


class CpuTopology:
    """The CPUs of a machine as tables of bit sets; `numas` goes by NUMA id. Never changes; nodes of one kind share it.

    Where all cores are alike (CPU `c` and, `sibling` further, its second thread, by ascending ids, none in two inner
    units), `lows` has the first CPU of each, so that one step looks at all of them; else it is 0.

    Raises ValueError where no CPU is given or one twice."""

    __slots__ = (
        "all",
        "core_sizes",
        "cores",
        "cores_least",
        "cores_of_inner",
        "cores_of_uncore",
        "cpus_per_core",
        "cpus_per_uncore",
        "inner_average",
        "inner_of_outer",
        "inners_least",
        "lows",
        "numa_is_outer",
        "numas",
        "outer_average",
        "outers",
        "outers_least",
        "sibling",
        "sockets",
        "uncores_of_numa",
    )

    def __init__(self, cpus: Sequence[Cpu]) -> None:
        self.all = _union(1 << cpu.id for cpu in cpus)
        if not cpus or self.all.bit_count() != len(cpus):
            raise ValueError("a machine has at least one CPU, and each of them once")
        self.numas = _units((cpu.numa, cpu.id) for cpu in cpus)
        numas = tuple(self.numas.values())
        self.sockets = sockets = tuple(_units((cpu.socket, cpu.id) for cpu in cpus).values())
        self.cores = cores = tuple(_units((cpu.core, cpu.id) for cpu in cpus).values())
        uncores = tuple(_units((cpu.uncore, cpu.id) for cpu in cpus).values())
        self.core_sizes = range(1, max(map(int.bit_count, cores)) + 1)
        self.cpus_per_core = len(cpus) // len(cores)
        self.cpus_per_uncore = len(cpus) // len(uncores)
        cpus_per_socket = len(cpus) // len(sockets)
        self.numa_is_outer = len(sockets) >= len(numas)
        self.outers, inners = (numas, sockets) if self.numa_is_outer else (sockets, numas)
        self.outer_average, self.inner_average = (0, cpus_per_socket) if self.numa_is_outer else (cpus_per_socket, 0)
        self.outers_least, self.inners_least, self.cores_least = map(_smallest, (self.outers, inners, cores))
        self.inner_of_outer = _within(self.outers, inners)
        self.cores_of_inner = _within(inners, cores)
        self.lows, self.sibling = _alike(cores, inners)
        self.uncores_of_numa = _within(numas, uncores)
        self.cores_of_uncore = _within(uncores, cores)

    def cores_at(self, lows: int) -> Iterator[int]:
        """The cores of which these are the first CPUs, where all are alike."""
        while lows:
            low = lows & -lows
            lows ^= low
            yield low | low << self.sibling


def take(
    topology: CpuTopology,
    available: int,
    count: int,
    *,
    across_numa: bool = False,
    across_cores: bool = False,
    full_cores: bool = False,
    by_socket: bool = False,
    by_uncore: bool = False,
    minor: int = NEWEST_MINOR,
) -> int:
    """`count` CPUs out of `available`, as a kubelet v1.`minor` takes them under its options (takeByTopology).

    The options are distribute-cpus-across-numa, distribute-cpus-across-cores, full-pcpus-only, align-by-socket and
    prefer-align-cpus-by-uncorecache. Raises CpuAssignmentError."""
    if across_numa:
        group = topology.cpus_per_core if full_cores else 1
        return take_distributed(topology, available, count, group, across_cores, by_socket, minor)
    return take_packed(topology, available, count, across_cores, by_uncore, minor)


def take_packed(
    topology: CpuTopology,
    available: int,
    count: int,
    spread: bool = False,
    by_uncore: bool = False,
    minor: int = NEWEST_MINOR,
) -> int:
    """Whole outer units first, then inner ones, L3 caches if asked for, cores unless `spread`, single CPUs
    (takeByTopologyNUMAPacked). Raises CpuAssignmentError."""
    taking = _Taking(topology, available, count)
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


def take_distributed(
    topology: CpuTopology,
    available: int,
    count: int,
    group: int,
    spread: bool = False,
    by_socket: bool = False,
    minor: int = NEWEST_MINOR,
) -> int:
    """As few NUMA nodes as can share the CPUs evenly, `group` CPUs at a time; packed where none can (KEP-2902,
    takeByTopologyNUMADistributed). `by_socket` puts nodes of one socket before others; before v1.37 it did not.
    Raises CpuAssignmentError."""
    if count % group:
        return take_packed(topology, available, count, spread)
    taking = _Taking(topology, available, count)
    if taking.needed <= 0:
        return taking.taken
    numas = taking.numas()
    groups = (count - 1) // group + 1
    groups_in_all = (topology.all.bit_count() - 1) // group + 1
    groups_per_numa = (groups_in_all - 1) // len(topology.numas) + 1
    for nodes in range((groups - 1) // groups_per_numa + 1, min(groups, len(numas)) + 1):
        found = _most_even(taking, numas, nodes, count, group, by_socket and minor >= 37)
        if found:
            return _take_shares(taking, *found, count, group, spread, minor)
    return take_packed(topology, available, count, spread)


class _Taking:
    """What is free, taken and still needed while CPUs are being taken (upstream: cpuAccumulator)."""

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
        """As they were free before the first of them is asked for: mostly one of the first few will do."""
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
        """As `cores`, but within an inner unit by id: of cores with as many free CPUs the order is the same."""
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
        """Takes the units that are wholly free while a whole one is needed. `average`: how many free CPUs make a unit
        count as wholly free, 0 for all of its own. `least`: how many CPUs the smallest unit has."""
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
        """Takes all that is needed from the lowest cores of one L3 cache, or nothing (upstream: takePartialUncore).

        Before v1.34 a part of a core was never taken."""
        threads = self.topology.cpus_per_core
        cores = [core for core in self.topology.cores_of_uncore[uncore] if core & uncore & self.free]
        wanted = (self.needed + threads - 1) // threads if minor >= 34 else self.needed // threads
        cpus = _union(cores[:wanted]) & self.free
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


_Combination = tuple[list[int], list[int]]
"""NUMA nodes that get an even share, and those of them that get the rest."""


def _most_even(
    taking: _Taking, numas: list[int], nodes: int, count: int, group: int, by_socket: bool
) -> _Combination | None:
    """The combination of `nodes` nodes that leaves the free CPUs of all nodes most even, the first of equals."""
    free = {numa: (numa & taking.free).bit_count() for numa in numas}
    best: _Combination | None = None
    best_balance: int | None = None
    best_in_one_socket = False
    for combination in _combinations(numas, nodes):
        if best_balance == 0 and (best_in_one_socket or not by_socket):
            break
        if sum(free[numa] // group for numa in combination) * group < count:
            continue
        share = count // nodes // group * group
        if by_socket:
            share = min(share, *(free[numa] // group * group for numa in combination))
        if any(free[numa] < share for numa in combination):
            continue
        left = free | {numa: free[numa] - share for numa in combination}
        balance, rest = _best_rest(left, combination, count - share * nodes, group)
        in_one_socket = by_socket and sum(1 for unit in taking.topology.sockets if unit & _union(combination)) <= 1
        better = balance is not None and (best_balance is None or balance < best_balance)
        if in_one_socket is not best_in_one_socket:
            better = in_one_socket
        if better:
            best, best_balance, best_in_one_socket = (combination, rest), balance, in_one_socket
    return best


def _best_rest(
    left: dict[int, int], combination: Sequence[int], remainder: int, group: int
) -> tuple[int | None, list[int]]:
    """(balance, nodes): which of the nodes best take the `remainder` CPUs of an uneven split. More nodes are tried
    first; the first of equals wins. (None, []) where it fits nowhere."""
    if remainder == 0:
        return _balance(left.values()), []
    roomy = [numa for numa in combination if left[numa] >= group]
    best: tuple[int | None, list[int]] = (None, [])
    for nodes in range(len(roomy), 0, -1):
        for subset in _combinations(roomy, nodes):
            if sum(left[numa] for numa in subset) < remainder:
                continue
            balance = _balance(_handed_out(left, subset, remainder, group).values())
            if best[0] is None or balance < best[0]:
                best = balance, subset
    return best


def _handed_out(left: dict[int, int], subset: Sequence[int], remainder: int, group: int) -> dict[int, int]:
    after = dict(left)
    while remainder > 0:
        before = remainder
        for numa in subset:
            if remainder > 0 and after[numa] >= group:
                after[numa] -= group
                remainder -= group
        if remainder == before:
            raise _never_ends(remainder)
    return after


def _take_shares(
    taking: _Taking, combination: list[int], rest: list[int], count: int, group: int, spread: bool, minor: int
) -> int:
    share = count // len(combination) // group * group
    if minor >= 37:
        share = min(share, *((numa & taking.free).bit_count() // group * group for numa in combination))
    for numa in combination:
        taking.take(_packed_or_none(taking, numa, share, spread))
    remainder = count - share * len(combination)
    while remainder > 0:
        before = remainder
        for numa in rest:
            if remainder > 0 and (numa & taking.free).bit_count() >= group:
                taking.take(_packed_or_none(taking, numa, group, spread))
                remainder -= group
        if remainder == before:
            raise _never_ends(remainder)
    if taking.needed:
        many = "not enough" if taking.needed > 0 else "too many"
        raise CpuAssignmentError(f"accounting error, {many} CPUs allocated, remaining: {taking.needed}")
    return taking.taken


def _packed_or_none(taking: _Taking, numa: int, count: int, spread: bool) -> int:
    try:
        return take_packed(taking.topology, taking.free & numa, count, spread)
    except CpuAssignmentError:
        return 0


def _never_ends(remainder: int) -> CpuAssignmentError:
    """Upstream loops until the remainder is handed out, also where no node has a whole group left for it."""
    return CpuAssignmentError(
        f"the kubelet would never answer: it looks without end for a NUMA node for the last {remainder} CPUs"
    )


def _combinations(numas: Sequence[int], size: int) -> Iterator[list[int]]:
    """All combinations in the order of `numas`. A list that was yielded can change when the next one is asked for.

    Upstream builds a combination by appending to a Go slice and keeps the best one without copying it. A slice of
    length 1, 2, 3, 5, 9 .. 2^i + 1 is a new array; further elements are written into that array, which other
    combinations with the same beginning share. So from combinations of 4 NUMA nodes on, what is used need not be what
    was best."""
    fixed = size if size < 2 else (1 << (size - 1).bit_length() - 1) + 1
    for first in combinations(range(len(numas)), fixed):
        array = [numas[i] for i in first]
        if fixed == size:
            yield array
            continue
        for rest in combinations(numas[first[-1] + 1 :], size - fixed):
            array[fixed:] = rest
            yield array


def _balance(values: Collection[int]) -> int:
    """The standard deviation in thousandths: with the mean rounded to thousandths, itself rounded to thousandths.

    Upstream computes it in floats, adding up in the random order of a Go map. What is rounded are n-ths of integers
    and roots of such; they are halves or lie so far from one (7e-9 at least for 64 nodes of 256 CPUs) that floats round
    the same way. An exact half that floats might miss needs 12 or more NUMA nodes with free CPUs."""
    n = len(values)
    mean = (2000 * sum(values) + n) // (2 * n)
    squares = sum((1000 * value - mean) ** 2 for value in values)
    return (isqrt(4 * squares // n) + 1) // 2


def _units(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Unit id to its CPUs, by ascending id."""
    units: dict[int, int] = {}
    for unit, cpu in pairs:
        units[unit] = units.get(unit, 0) | 1 << cpu
    return dict(sorted(units.items()))


def _alike(cores: Units, inners: Units) -> tuple[int, int]:
    """`CpuTopology.lows` and `sibling`."""
    lows = [core & -core for core in cores]
    sibling = cores[0].bit_length() - lows[0].bit_length()
    alike = all(core == low | low << sibling for core, low in zip(cores, lows, strict=True))
    apart = all(core & inner in (0, core) for core in cores for inner in inners)
    return (_union(lows), sibling) if alike and apart and lows == sorted(lows) else (0, 0)


def _smallest(units: Units) -> int:
    return min(unit.bit_count() for unit in units)


def _within(above: Units, below: Units) -> dict[int, Units]:
    return {outer: tuple(inner for inner in below if inner & outer) for outer in above}


def _union(units: Iterable[int]) -> int:
    cpus = 0
    for unit in units:
        cpus |= unit
    return cpus
