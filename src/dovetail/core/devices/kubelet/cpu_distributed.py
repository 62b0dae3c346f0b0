# SPDX-License-Identifier: Apache-2.0
"""CPUs as the kubelet takes them with distribute-cpus-across-numa: evenly from the fewest NUMA nodes that suffice.

Follows takeByTopologyNUMADistributed of pkg/kubelet/cm/cpumanager/cpu_assignment.go of Kubernetes v1.37.1 (KEP-2902),
also where it is clearly a mistake, because the kubelet does what it does: see `_combinations` and `_never_ends`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from math import isqrt

from dovetail.core.devices.kubelet.cpu_packed import CpuAssignmentError, Taking, take_packed
from dovetail.core.devices.kubelet.cpu_topology import CpuTopology, union
from dovetail.core.devices.kubelet.inventory import NEWEST_MINOR


def take_distributed(
    topology: CpuTopology,
    available: int,
    count: int,
    group: int,
    spread: bool = False,
    by_socket: bool = False,
    minor: int = NEWEST_MINOR,
) -> int:
    """CPUs from the fewest NUMA nodes that can share them evenly, `group` CPUs at a time; packed where none can
    (KEP-2902, takeByTopologyNUMADistributed). `by_socket` prefers nodes of one socket, as upstream does since v1.37.
    Raises CpuAssignmentError."""
    if count % group:
        return take_packed(topology, available, count, spread)
    taking = Taking(topology, available, count)
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


_Combination = tuple[list[int], list[int]]
"""NUMA nodes that get an even share, and those of them that get the rest."""


def _most_even(
    taking: Taking, numas: list[int], nodes: int, count: int, group: int, by_socket: bool
) -> _Combination | None:
    """The combination of `nodes` nodes that leaves the free CPUs of all nodes most even; the first of equals."""
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
        in_one_socket = by_socket and sum(1 for unit in taking.topology.sockets if unit & union(combination)) <= 1
        better = balance is not None and (best_balance is None or balance < best_balance)
        if in_one_socket is not best_in_one_socket:
            better = in_one_socket
        if better:
            best, best_balance, best_in_one_socket = (combination, rest), balance, in_one_socket
    return best


def _best_rest(
    left: dict[int, int], combination: Sequence[int], remainder: int, group: int
) -> tuple[int | None, list[int]]:
    """The balance, and the nodes that best take the `remainder` CPUs of an uneven split. More nodes are tried first;
    the first of equals wins. (None, []) where it fits nowhere."""
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
    taking: Taking, combination: list[int], rest: list[int], count: int, group: int, spread: bool, minor: int
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


def _packed_or_none(taking: Taking, numa: int, count: int, spread: bool) -> int:
    try:
        return take_packed(taking.topology, taking.free & numa, count, spread)
    except CpuAssignmentError:
        return 0


def _never_ends(remainder: int) -> CpuAssignmentError:
    """The error where upstream never ends: it loops until the remainder is allocated, even if no node has a group."""
    return CpuAssignmentError(
        f"the kubelet would never answer: it looks without end for a NUMA node for the last {remainder} CPUs"
    )


def _combinations(numas: Sequence[int], size: int) -> Iterator[list[int]]:
    """All combinations in the order of `numas`. A list that was yielded can change at the next step.

    Upstream builds a combination by appending to a Go slice and keeps the best one without copying it. A slice of
    length 1, 2, 3, 5, 9 .. 2^i + 1 is a new array; further elements are written into that array, which other
    combinations with the same beginning share. So from combinations of 4 NUMA nodes on, the combination that is used
    may differ from the best one."""
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

    Upstream computes it in floats, adding up in the random order of a Go map. The rounded values are n-ths of integers
    and roots of such; they are halves or so far from one (7e-9 at least for 64 nodes of 256 CPUs) that floats round
    the same way. An exact half that floats might miss needs 12 or more NUMA nodes with free CPUs."""
    n = len(values)
    mean = (2000 * sum(values) + n) // (2 * n)
    squares = sum((1000 * value - mean) ** 2 for value in values)
    return (isqrt(4 * squares // n) + 1) // 2
