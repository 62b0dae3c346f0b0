# SPDX-License-Identifier: Apache-2.0
"""Nodes that fail, under both schedulers: what becomes of the jobs on them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from dovetail.core.policy import Policy
from dovetail.sim.clock import VirtualClock
from dovetail.sim.engine import Simulation
from dovetail.sim.failures import horizon_ms, outages
from dovetail.sim.orders import ORDERS
from dovetail.sim.plain import Plain
from dovetail.sim.report import SimulationRun, of_queue
from dovetail.sim.workload import Outage, SimJob, Workload
from tests.sim.streams import job, stream, times, workload

SCHEDULERS: dict[str, Callable[[Workload], VirtualClock]] = {
    "core": lambda trace: Simulation(trace, Policy()),
    "plain": lambda trace: Plain(trace, ORDERS["fifo"]),
}
DOWN = Outage("n0", 5000, 8000)


@pytest.fixture(params=SCHEDULERS)
def scheduler(request: pytest.FixtureRequest) -> Callable[[Workload], VirtualClock]:
    return SCHEDULERS[request.param]


def ran(
    scheduler: Callable[[Workload], VirtualClock], gpus: tuple[int, ...], *jobs: SimJob, down: tuple[Outage, ...]
) -> VirtualClock:
    simulation = scheduler(workload(gpus, *jobs, outages=down))
    simulation.run()
    return simulation


@pytest.mark.parametrize(("checkpoint_s", "end_s", "lost_ms"), [(0, 19, 5000), (4, 15, 1000), (5, 14, 0)])
def test_a_job_goes_on_from_its_last_checkpoint_when_the_node_is_back(
    scheduler: Callable[[Workload], VirtualClock], checkpoint_s: int, end_s: int, lost_ms: int
) -> None:
    done = ran(scheduler, (4,), job("a", 0, 4, 10, checkpoint_s=checkpoint_s, startup_s=1), down=(DOWN,))
    assert times(done) == [(0, end_s)]
    fate = done.result.fates[0]
    assert (fate.lost_ms, fate.waited_ms, done.result.failed, done.result.evicted) == (lost_ms, 3000, 1, 0)


def test_checkpoints_of_a_later_run_count_from_its_start(scheduler: Callable[[Workload], VirtualClock]) -> None:
    down = (DOWN, Outage("n0", 13_000, 14_000))
    done = ran(scheduler, (4,), job("a", 0, 4, 10, checkpoint_s=4, startup_s=1), down=down)
    # Four seconds saved; from 8 on one to start and four to work, of which a checkpoint at 12 saves three.
    assert times(done) == [(0, 14 + 1 + 3)]
    assert done.result.fates[0].lost_ms == 1000 + 1000


def test_a_gang_stops_as_one_and_starts_elsewhere(scheduler: Callable[[Workload], VirtualClock]) -> None:
    done = ran(scheduler, (2, 2, 2), job("g", 0, 2, 10, pods=2), down=(DOWN,))
    assert times(done) == [(0, 15)]
    assert {done.result.placed[f"g-{i}"] for i in (0, 1)} <= {"n1", "n2"}


def test_a_job_that_waits_for_the_node_starts_when_it_is_back(scheduler: Callable[[Workload], VirtualClock]) -> None:
    assert times(ran(scheduler, (4,), job("a", 6, 4, 2), down=(DOWN,))) == [(8, 10)]


def test_others_do_not_notice(scheduler: Callable[[Workload], VirtualClock]) -> None:
    done = ran(scheduler, (2, 2), job("a", 0, 2, 10), job("b", 0, 2, 10), down=(DOWN,))
    assert times(done) == [(0, 18), (0, 10)]


def test_a_job_that_ends_when_the_node_fails_has_ended(scheduler: Callable[[Workload], VirtualClock]) -> None:
    done = ran(scheduler, (4,), job("a", 0, 4, 5), down=(DOWN,))
    assert (times(done), done.result.failed) == ([(0, 5)], 0)


def test_what_is_down_is_no_idle_capacity(scheduler: Callable[[Workload], VirtualClock]) -> None:
    simulation = scheduler(workload((4,), job("a", 0, 4, 10), outages=(DOWN,)))
    report = of_queue(SimulationRun(simulation.workload, "p", 1, simulation.run(), 0.0))
    assert (report.allocated_gpu_percent, report.failures, report.lost_gpu_hours) == (100.0, 1, round(20 / 3600, 3))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.slow
def test_all_work_is_done_in_spite_of_failures(scheduler: Callable[[Workload], VirtualClock], seed: int) -> None:
    jobs = stream(seed, (4, 4), 25, 4, queues=2, costs=True)
    plan = outages(jobs, between_ms=60_000, repair_ms=5000, until_ms=horizon_ms(jobs), seed=seed)
    simulation = scheduler(replace(jobs, outages=plan))
    simulation.run()
    assert simulation.result.failed
    for fate in simulation.result.fates:
        assert fate.ended_ms is not None
        assert (fate.saved_ms, fate.ran_ms) == (fate.job.duration_ms, fate.saved_ms + fate.lost_ms)
        assert fate.ended_ms - fate.job.at_ms == fate.waited_ms + fate.ran_ms
    if isinstance(simulation, Simulation):
        assert simulation.state.cluster.check() == []
        assert not simulation.state.workloads.pods


def test_a_plan_is_drawn_from_its_seed() -> None:
    trace = workload((4, 4, 4), job("a", 0, 1, 1))
    plan = outages(trace, 100_000, 10_000, 50_000_000, seed=1)
    assert (
        plan
        == outages(trace, 100_000, 10_000, 50_000_000, seed=1)
        != outages(trace, 100_000, 10_000, 50_000_000, seed=2)
    )
    assert all(outage.from_ms < min(outage.until_ms, 50_000_000) for outage in plan)
    assert list(plan) == sorted(plan, key=lambda outage: outage.from_ms)
    for name in ("n0", "n1", "n2"):
        own = [outage for outage in plan if outage.node == name]
        assert all(one.until_ms < two.from_ms for one, two in pairwise(own))
        down_ms = sum(outage.until_ms - outage.from_ms for outage in own) / len(own)
        assert down_ms == pytest.approx(10_000, rel=0.15)
        assert len(own) == pytest.approx(50_000_000 / 110_000, rel=0.15)
