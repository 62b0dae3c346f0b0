# SPDX-License-Identifier: Apache-2.0
"""What is measured while pods come and go, and on which part of the cluster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.churn import Watched, least_idle_milli, measured, thinned
from dovetail.core.model import CPU, GPU, Node, Request
from dovetail.core.policy import Policy
from dovetail.sim.engine import Simulation
from tests.sim.streams import job, workload


def test_allocation_and_waits_are_those_between_the_two_times() -> None:
    """Two GPUs. The first job has both for 100 s, the second waits 70 s and has one for 100 s, the third waits."""
    jobs = job("a", 0, 2, 100), job("b", 30, 1, 100), job("c", 60, 2, 100)
    simulation = Simulation(workload((2,), *jobs), Policy())
    result = simulation.run(until_ms=180_000)
    allocated, waits, several, waiting = measured(result, 20_000, 180_000)
    assert allocated == pytest.approx(100 * (80 * 2 + 80 * 1) / (160 * 2))
    assert waits == [70, 120]
    assert several == [120]
    assert waiting == 50


def test_what_came_before_is_not_measured() -> None:
    result = Simulation(workload((2,), job("a", 0, 1, 1000)), Policy()).run(until_ms=100_000)
    assert measured(result, 50_000, 100_000) == (50, [], [], 0)


def test_what_is_idle_is_in_parts_or_without_cores_or_neither() -> None:
    """Of three nodes of two GPUs one gives a part of a GPU, one nearly all of its cores with a GPU, and one both GPUs
    from the second minute on."""
    share = Request(((CPU, 1000),), gpu_milli=300)
    cores = Request(((CPU, 63_500), (GPU, 1)))
    jobs = []
    for name, request in (("a", share), ("b", cores)):
        [pod] = (one := job(name, 0, 1, None)).pods
        jobs.append(replace(one, pods=(replace(pod, request=request),)))
    simulation = Watched(workload((2, 2, 2), *jobs, job("c", 60, 2, 10)), Policy(), 30_000)
    simulation.run(until_ms=100_000)
    assert simulation.looks == 1
    assert simulation.idle_milli.tolist() == [700, 1000, 1000, 700]


def fewest_gpus(parts: list[int]) -> int:
    """By trying all ways: each part on each GPU with room, or on one more."""

    def place(left: list[int], rooms: list[int]) -> int:
        if not left:
            return len(rooms)
        part, rest = left[0], left[1:]
        tried = [
            place(rest, [*rooms[:i], room - part, *rooms[i + 1 :]]) for i, room in enumerate(rooms) if room >= part
        ]
        return min([*tried, place(rest, [*rooms, 1000 - part])])

    return place(parts, [])


@given(st.lists(st.sampled_from([100, 190, 250, 300, 460, 500, 510, 660, 810, 1000]), max_size=6))
def test_no_packing_of_parts_leaves_less_idle_than_the_bound(parts: list[int]) -> None:
    least = least_idle_milli(parts)
    assert 0 <= least <= 1000 * fewest_gpus(parts) - sum(parts)


@pytest.mark.parametrize(
    ("parts", "idle"),
    [([], 0), ([810, 190], 0), ([810, 810], 380), ([510, 510, 490], 490), ([500, 500, 500], 500), ([340] * 3, 980)],
)
def test_the_bound_counts_what_fits_nowhere(parts: list[int], idle: int) -> None:
    assert least_idle_milli(parts) == idle


def test_a_thinner_cluster_has_nodes_of_all_kinds_in_an_order_of_the_seed() -> None:
    nodes = [Node(f"n{i}", ((CPU, 1000), (GPU, 1 + i % 3))) for i in range(90)]
    thin = thinned(nodes, 10, 1)
    assert Counter(dict(node.allocatable)[GPU] for node in thin) == {1: 3, 2: 3, 3: 3}
    assert thin != thinned(nodes, 10, 2)
    assert {node.name for node in thin} == {node.name for node in thinned(nodes, 10, 2)}
    assert {node.name for node in thinned(nodes, 1, 1)} == {node.name for node in nodes}
