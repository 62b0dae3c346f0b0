# SPDX-License-Identifier: Apache-2.0
"""Which CPUs are taken, to the id. Expected sets are what Kubernetes v1.37 takes: those of its own unit tests
(cpu_assignment_test.go) where they have the case, else answers of its code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.devices.kubelet.cpu_assignment import take
from dovetail.core.devices.kubelet.cpu_distributed import take_distributed
from dovetail.core.devices.kubelet.cpu_packed import CpuAssignmentError, take_packed
from dovetail.core.devices.kubelet.cpu_topology import CpuTopology
from dovetail.core.devices.kubelet.inventory import Cpu
from tests.core.devices.kubelet.cpu_machines import (
    EIGHT_NUMA_HT,
    FIVE_SMALL_NUMA,
    FOUR_CACHES,
    FOUR_CACHES_TWO_NUMA,
    FOUR_CACHES_TWO_SOCKETS,
    FOUR_NUMA_HT,
    FOUR_SOCKETS_TWO_NUMA_HT,
    ONE_CACHE_TWO_SOCKETS_HT,
    ONE_SOCKET_HT,
    TWO_CACHES_HT,
    TWO_SOCKETS,
    TWO_SOCKETS_HT,
    cpu_set,
    machine,
)

Machine = tuple[Cpu, ...]
ACROSS_NUMA, ACROSS_CORES, FULL_CORES = "distribute-cpus-across-numa", "distribute-cpus-across-cores", "full-pcpus-only"
OPTIONS = st.frozensets(
    st.sampled_from((ACROSS_NUMA, ACROSS_CORES, FULL_CORES, "align-by-socket", "prefer-align-cpus-by-uncorecache"))
)

COMMON = [
    # machine, available, count, taken
    (ONE_SOCKET_HT, "0-7", 0, ""),
    (ONE_SOCKET_HT, "0-7", 1, "0"),
    (ONE_SOCKET_HT, "0-7", 2, "0,4"),
    (ONE_SOCKET_HT, "0-7", 8, "0-7"),
    (ONE_SOCKET_HT, "1,3,5,6,7", 1, "6"),  # the sibling of a CPU in use first
    (ONE_SOCKET_HT, "0-3,6", 2, "2,6"),  # the only whole core
    (TWO_SOCKETS_HT, "0-11", 6, "0,2,4,6,8,10"),
    (FOUR_NUMA_HT, "0-79", 40, "0-19,40-59"),
    (FOUR_NUMA_HT, "0-79", 20, "0-9,40-49"),
    (FOUR_NUMA_HT, "10-39,50-79", 20, "10-19,50-59"),
    (FOUR_NUMA_HT, "0-79", 60, "0-29,40-69"),
    (FOUR_NUMA_HT, "1-39,41-79", 60, "10-39,50-79"),
]

PACKED = [
    (TWO_SOCKETS_HT, "1-5,7-11", 1, "2"),
    (TWO_SOCKETS_HT, "0-11", 8, "0-2,4,6-8,10"),
    (FOUR_NUMA_HT, "0-79", 64, "0-31,40-71"),
    # two sockets in a NUMA node: a whole node, then one socket of the other; the fuller node comes before its sockets
    (FOUR_SOCKETS_TWO_NUMA_HT, "0-79", 60, "0-29,40-69"),
    (FOUR_SOCKETS_TWO_NUMA_HT, "0-3,10-24,30-34,40-43,50-64,70-74", 4, "20,21,60,61"),
]

BY_UNCORE = [
    (FOUR_CACHES, "1-15", 10, "1,2,4-11"),  # two whole caches, the rest from one
    (ONE_CACHE_TWO_SOCKETS_HT, "1-5,7-11", 1, "1"),  # the lowest core of the cache, not the fuller node
    (FOUR_CACHES_TWO_SOCKETS, "0-15", 4, "0-3"),
    (FOUR_CACHES_TWO_SOCKETS, "2-15", 6, "2-7"),
    (FOUR_CACHES_TWO_SOCKETS, "8-15", 4, "8-11"),
    (FOUR_CACHES_TWO_NUMA, "3-8,12", 2, "4,5"),
    (TWO_CACHES_HT, "2-7,10-15", 6, "4-6,12-14"),
    (TWO_CACHES_HT, "1-7,9-15", 10, "1,4-7,9,12-15"),
]

SPREAD = [
    (ONE_SOCKET_HT, "0-7", 3, "0-2"),
    (TWO_SOCKETS_HT, "0-11", 2, "0,2"),
    (TWO_SOCKETS_HT, "0-11", 3, "0,2,4"),
    (TWO_SOCKETS_HT, "0-11", 6, "0,2,4,6,8,10"),
    (TWO_SOCKETS_HT, "0-11", 8, "0-4,6,8,10"),
    (TWO_SOCKETS, "0-7", 2, "0,1"),
    (FOUR_NUMA_HT, "0-79", 8, "0-7"),
]

DISTRIBUTED = [
    # machine, available, count, group, taken
    (TWO_SOCKETS_HT, "0-11", 8, 1, "0-3,6-9"),
    (TWO_SOCKETS_HT, "1-5,7-11", 1, 1, "1"),
    (TWO_SOCKETS_HT, "1-5,7-11", 1, 2, "2"),  # one CPU is no group of two: packed
    (FOUR_NUMA_HT, "0-79", 64, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
    (FOUR_NUMA_HT, "0-79", 48, 1, "0-7,10-17,20-27,40-47,50-57,60-67"),
    (FOUR_NUMA_HT, "1-29,32-39,41-69,72-79", 48, 1, "1-8,10-17,20-27,41-48,50-57,60-67"),
    (FOUR_NUMA_HT, "2-29,31-39,42-69,71-79", 48, 1, "10-17,20-27,31-38,50-57,60-67,71-78"),
    (
        FOUR_NUMA_HT,
        "0-2,10-12,20-22,30-32,40,41,50,51,60,61,70,71",
        16,
        1,
        "0,1,10,11,20,21,30,31,40,41,50,51,60,61,70,71",
    ),
    (FOUR_NUMA_HT, "0-79", 26, 1, "0-6,10-16,40-45,50-55"),
    (FOUR_NUMA_HT, "0-79", 26, 2, "0-6,10-15,40-46,50-55"),
    (FOUR_NUMA_HT, "0-79", 62, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
    (FOUR_NUMA_HT, "0-79", 62, 2, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
    (FOUR_NUMA_HT, "0-8,10-18,20-39,40-48,50-58,60-79", 62, 1, "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77"),
    (FOUR_NUMA_HT, "0-8,10-18,20-39,40-48,50-58,60-79", 62, 2, "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77"),
    (
        FOUR_NUMA_HT,
        "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76",
        34,
        1,
        "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74",
    ),
    (
        EIGHT_NUMA_HT,
        "0,128,30,31,158,159,43-47,171-175,62,63,190,191,75-79,203-207,94,96,222,223,101-111,229-239,126,127,254,255",
        28,
        1,
        "43-47,75-79,96,101-105,171-174,203-206,229-232",
    ),
]


@pytest.mark.parametrize(("cpus", "available", "count", "taken"), COMMON + PACKED)
def test_packed(cpus: Machine, available: str, count: int, taken: str) -> None:
    assert take_packed(CpuTopology(cpus), cpu_set(available), count) == cpu_set(taken)


@pytest.mark.parametrize(("cpus", "available", "count", "taken"), BY_UNCORE)
def test_packed_into_few_l3_caches(cpus: Machine, available: str, count: int, taken: str) -> None:
    assert take_packed(CpuTopology(cpus), cpu_set(available), count, by_uncore=True) == cpu_set(taken)


def test_before_v1_34_only_whole_cores_were_taken_from_an_l3_cache() -> None:
    """Three CPUs: the fuller cache has room for them, and from v1.34 gives a core and a half."""
    topology, free = CpuTopology(TWO_CACHES_HT), cpu_set("3-7,11-15")
    assert take_packed(topology, free, 3, by_uncore=True) == cpu_set("4,5,12")
    assert take_packed(topology, free, 3, by_uncore=True, minor=33) == cpu_set("3,4,11")


@pytest.mark.parametrize(("cpus", "available", "count", "taken"), SPREAD)
def test_spread_over_cores(cpus: Machine, available: str, count: int, taken: str) -> None:
    assert take_packed(CpuTopology(cpus), cpu_set(available), count, spread=True) == cpu_set(taken)


@pytest.mark.parametrize(
    ("cpus", "available", "count", "group", "taken"), DISTRIBUTED + [(a, b, c, 1, d) for a, b, c, d in COMMON]
)
def test_distributed_across_numa(cpus: Machine, available: str, count: int, group: int, taken: str) -> None:
    assert take_distributed(CpuTopology(cpus), cpu_set(available), count, group) == cpu_set(taken)


def test_nodes_of_one_socket_come_before_a_better_balance() -> None:
    """Nodes 0 and 2 have 20 CPUs free, 1 and 3 have 8; 0 and 1 are socket 0. Before v1.37 sockets did not count."""
    topology, free = CpuTopology(FOUR_NUMA_HT), cpu_set("0-13,20-33,40-53,60-73")
    across = cpu_set("0-5,20-25,40-45,60-65")
    assert take_distributed(topology, free, 24, 1) == across
    assert take_distributed(topology, free, 24, 1, by_socket=True) == cpu_set("0-7,10-13,40-47,50-53")
    assert take_distributed(topology, free, 24, 1, by_socket=True, minor=36) == across


def test_the_best_four_numa_nodes_are_overwritten_by_the_next_four() -> None:
    """Nodes 0, 1, 2, 3 leave one CPU on node 4; equally good is 0, 1, 2, 4, which shares its array and comes later."""
    assert take_distributed(CpuTopology(FIVE_SMALL_NUMA), cpu_set("0,2,5,6,9"), 4, 1) == cpu_set("0,2,5,9")


@pytest.mark.parametrize(
    ("numas", "free"),
    [
        (4, "0-5,7-12,14,15,17,18,20-22"),  # it loops over a split that it would not have used
        (5, "1-5,9,11,12,14,15,19-25,27-29"),
    ],
)
def test_single_threads_left_over_can_make_the_kubelet_loop_without_end(numas: int, free: str) -> None:
    topology = CpuTopology(machine(3 * numas, 2, numa=lambda core: core // 3))
    with pytest.raises(CpuAssignmentError, match="never answer"):
        take_distributed(topology, cpu_set(free), 14, 2)


def test_on_unequal_cores_a_core_counts_as_free_by_the_average_size() -> None:
    """Two cores of two threads and four of one have 8 // 6 = 1 CPU on average: a core of which one thread is free is
    "free", and is taken with both."""
    cpus = tuple(Cpu(i, core, 0, 0, 0) for i, core in enumerate((0, 0, 2, 2, 4, 5, 6, 7)))
    assert take_packed(CpuTopology(cpus), cpu_set("1-7"), 2) == cpu_set("0,1")


@pytest.mark.parametrize("across_numa", [False, True])
def test_more_than_there_is(across_numa: bool) -> None:
    with pytest.raises(CpuAssignmentError, match=r"^not enough cpus .*: requested=5, available=4$"):
        take(CpuTopology(ONE_SOCKET_HT), cpu_set("0,2,4,6"), 5, frozenset([ACROSS_NUMA] if across_numa else []))


def test_options_decide_which_way_is_taken() -> None:
    topology = CpuTopology(FOUR_NUMA_HT)
    everything = topology.all
    assert take(topology, everything, 26, frozenset([ACROSS_NUMA])) == cpu_set("0-6,10-16,40-45,50-55")
    assert take(topology, everything, 26, frozenset([ACROSS_NUMA, FULL_CORES])) == cpu_set("0-6,10-15,40-46,50-55")
    assert take(topology, everything, 8, frozenset([ACROSS_CORES])) == cpu_set("0-7")
    assert take(topology, everything, 8, frozenset([FULL_CORES])) == cpu_set("0-3,40-43")


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    numas = draw(st.integers(1, 6))
    sockets = draw(st.sampled_from([n for n in (1, 2, 3, 6) if numas % n == 0 or n % numas == 0]))
    per_numa = draw(st.integers(1, 3)) * max(sockets // numas, 1)
    threads = draw(st.integers(1, 2))
    cores = numas * per_numa
    return machine(
        cores,
        threads,
        numa=lambda core: core // per_numa,
        socket=lambda core: core * sockets // cores,
        uncore=lambda core: core // 2 if per_numa % 2 == 0 else core // per_numa,
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[CpuTopology, int, int, frozenset[str]]:
    cpus = draw(machines())
    topology = CpuTopology(cpus)
    available = draw(st.integers(0, topology.all)) & topology.all
    count = draw(st.integers(0, available.bit_count()))
    return topology, available, count, draw(OPTIONS)


@given(requests())
def test_takes_as_many_as_asked_and_only_what_is_available(
    request: tuple[CpuTopology, int, int, frozenset[str]],
) -> None:
    topology, available, count, options = request
    try:
        taken = take(topology, available, count, options)
    except CpuAssignmentError as error:
        assert ACROSS_NUMA in options and "never answer" in str(error), "only the endless loop may refuse"
        return
    assert taken & ~available == 0
    assert taken.bit_count() == count


@given(machines(), st.data())
def test_all_cores_at_a_time_are_what_one_after_the_other_is(cpus: Machine, data: st.DataObject) -> None:
    topology, one_by_one = CpuTopology(cpus), CpuTopology(cpus)
    one_by_one.lows = 0
    assert topology.lows
    available = data.draw(st.integers(0, topology.all))
    count = data.draw(st.integers(0, topology.all.bit_count()))
    options = data.draw(OPTIONS)
    minor = data.draw(st.integers(27, 37))

    def taken(of: CpuTopology) -> int | str:
        try:
            return take(of, available, count, options, minor)
        except CpuAssignmentError as error:
            return str(error)

    assert taken(topology) == taken(one_by_one)


def test_irregular_cores_are_examined_one_by_one() -> None:
    unlike = [Cpu(0, 0, 0, 0, 0), Cpu(2, 0, 0, 0, 0), Cpu(1, 1, 0, 0, 0)]
    out_of_order = [Cpu(0, 1, 0, 0, 0), Cpu(1, 0, 0, 0, 0)]
    astride = [Cpu(0, 0, 0, 0, 0), Cpu(2, 0, 0, 1, 0), Cpu(1, 1, 0, 1, 0), Cpu(3, 1, 0, 0, 0)]
    assert [CpuTopology(cpus).lows for cpus in (unlike, out_of_order, astride)] == [0, 0, 0]


@given(machines(), st.data())
def test_packed_never_splits_more_cores_than_it_must(cpus: Machine, data: st.DataObject) -> None:
    """From whole free cores only, at most one core is broken, and only for a rest smaller than a core."""
    topology = CpuTopology(cpus)
    free = [core for core in topology.cores if data.draw(st.booleans())]
    available = sum(free)
    count = data.draw(st.integers(0, available.bit_count()))
    taken = take_packed(topology, available, count)
    broken = [core for core in free if core & taken and core & ~taken]
    assert len(broken) == (1 if count % topology.cpus_per_core else 0)


@given(machines(), st.data())
def test_distributed_uses_one_numa_node_if_one_is_enough(cpus: Machine, data: st.DataObject) -> None:
    topology = CpuTopology(cpus)
    available = data.draw(st.integers(0, topology.all)) & topology.all
    most = max((numa & available).bit_count() for numa in topology.numas.values())
    count = data.draw(st.integers(0, most))
    taken = take_distributed(topology, available, count, 1)
    assert sum(1 for numa in topology.numas.values() if numa & taken) <= 1


def test_a_machine_lists_each_cpu_once() -> None:
    with pytest.raises(ValueError, match="each of them once"):
        CpuTopology([])
    with pytest.raises(ValueError, match="each of them once"):
        CpuTopology([Cpu(0, 0, 0, 0, 0), Cpu(0, 0, 0, 0, 0)])
