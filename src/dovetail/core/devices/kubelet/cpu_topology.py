# SPDX-License-Identifier: Apache-2.0
"""The CPUs of a machine as sockets, NUMA nodes, L3 ("uncore") caches and cores, as the kubelet's CPU Manager sees them.

Follows pkg/kubelet/cm/cpumanager/topology/topology.go of Kubernetes v1.37.1. A set of CPUs is an int, with bit c for
CPU c. Units are sets of CPUs, in tables sorted by the unit's id. NUMA nodes are the outer units and sockets the inner
ones where there are at least as many sockets as NUMA nodes, else the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dovetail.core.devices.kubelet.inventory import Cpu

Units = tuple[int, ...]


class CpuTopology:
    """The CPUs of a machine as tables of bit sets; `numas` is by NUMA id. Immutable; nodes of one kind share it.

    Where all cores are regular (CPU `c` and, `sibling` further, its second thread, by ascending ids, none in two inner
    units), `lows` has the first CPU of each, so that one step covers all of them; else it is 0.

    Raises ValueError where there is no CPU, or one is listed twice."""

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
        self.all = union(1 << cpu.id for cpu in cpus)
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
        self.lows, self.sibling = _regular(cores, inners)
        self.uncores_of_numa = _within(numas, uncores)
        self.cores_of_uncore = _within(uncores, cores)

    def cores_at(self, lows: int) -> Iterator[int]:
        """The cores with these first CPUs, where all cores are regular."""
        while lows:
            low = lows & -lows
            lows ^= low
            yield low | low << self.sibling


def _units(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The CPUs of each unit, by ascending id."""
    units: dict[int, int] = {}
    for unit, cpu in pairs:
        units[unit] = units.get(unit, 0) | 1 << cpu
    return dict(sorted(units.items()))


def _regular(cores: Units, inners: Units) -> tuple[int, int]:
    """`CpuTopology.lows` and `sibling`; zeros where the cores are not regular."""
    lows = [core & -core for core in cores]
    sibling = cores[0].bit_length() - lows[0].bit_length()
    equal = all(core == low | low << sibling for core, low in zip(cores, lows, strict=True))
    apart = all(core & inner in (0, core) for core in cores for inner in inners)
    return (union(lows), sibling) if equal and apart and lows == sorted(lows) else (0, 0)


def _smallest(units: Units) -> int:
    return min(unit.bit_count() for unit in units)


def _within(above: Units, below: Units) -> dict[int, Units]:
    return {outer: tuple(inner for inner in below if inner & outer) for outer in above}


def union(units: Iterable[int]) -> int:
    cpus = 0
    for unit in units:
        cpus |= unit
    return cpus
