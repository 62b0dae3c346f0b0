# SPDX-License-Identifier: Apache-2.0
"""What is due to queues, and how even their service was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.sim.clock import Moment, Result
from dovetail.sim.fairness import due, jain, jain_over_time
from dovetail.sim.orders import ORDERS
from dovetail.sim.plain import Plain
from dovetail.sim.report import SimulationRun, of_queue
from tests.sim.streams import job, workload


@pytest.mark.parametrize(
    ("capacity", "wanted", "weights", "parts"),
    [
        (100, [100, 100], [1, 1], [50, 50]),
        (90, [100, 100], [2, 1], [60, 30]),
        (100, [10, 100, 100], [1, 1, 1], [10, 45, 45]),
        (100, [10, 20], [1, 1], [10, 20]),
        (100, [0, 30, 100, 100], [5, 1, 1, 2], [0, 25, 25, 50]),
        (0, [3, 4], [1, 1], [0, 0]),
    ],
)
def test_what_is_due(capacity: int, wanted: list[int], weights: list[int], parts: list[int]) -> None:
    assert due(capacity, wanted, weights) == pytest.approx(parts)


@given(st.integers(0, 100), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=8))
def test_the_division_is_max_min(capacity: int, queues: list[tuple[int, int]]) -> None:
    wanted, weights = [want for want, _ in queues], [weight for _, weight in queues]
    parts = due(capacity, wanted, weights)
    assert sum(parts) == pytest.approx(min(capacity, sum(wanted)))
    lacking = [part / weight for part, want, weight in zip(parts, wanted, weights, strict=True) if part < want - 1e-6]
    # Each queue that lacks something has as much by weight as any other.
    for part, weight in zip(parts, weights, strict=True):
        assert all(part / weight <= other + 1e-6 for other in lacking)


@pytest.mark.parametrize(
    ("served", "index"), [([1, 1, 1], 1), ([1, 0, 0, 0], 0.25), ([2, 1], 0.9), ([], 1), ([0, 0], 1)]
)
def test_jains_index(served: list[float], index: float) -> None:
    assert jain(served) == pytest.approx(index)


def moment(at_s: int, held: tuple[int, int], wanted: tuple[int, int]) -> Moment:
    return Moment(1000 * at_s, 0, held, wanted, 4000)


def test_windows_average_their_moments_and_skip_those_without_contention() -> None:
    both = (4000, 4000)
    moments = [
        moment(0, (4000, 0), both),
        moment(5, (0, 4000), both),
        moment(10, (4000, 0), both),
        moment(25, (2000, 2000), (2000, 2000)),
        moment(40, (0, 0), (0, 0)),
    ]
    result = Result(4000, [], ["a", "b"], [1, 1], moments)
    # Ten seconds of taking turns are even; then five seconds more of one of the two are part of a window of its own.
    assert jain_over_time(result, 10_000) == [(0, 1.0), (10_000, 0.5), (20_000, pytest.approx(0.8))]


def test_an_order_that_sees_queues_serves_them_more_evenly() -> None:
    many = [job(f"x{i}", 0, 2, 3600, queue="x") for i in range(20)]
    few = [job(f"y{i}", 1, 2, 3600, queue="y") for i in range(20)]
    indices = {}
    for order in ("fifo", "fair"):
        simulation = Plain(workload((4,), *many, *few, x=1, y=1), ORDERS[order])
        report = of_queue(SimulationRun(simulation.workload, order, 1, simulation.run(), 0.0))
        indices[order] = report.jain_index or 0
        assert [queue.jobs for queue in report.queues] == [20, 20]
        assert sum(queue.gpu_hours for queue in report.queues) == pytest.approx(80)
    assert indices["fifo"] < 0.7 < 0.95 < indices["fair"]
