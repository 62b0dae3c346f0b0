# SPDX-License-Identifier: Apache-2.0
"""The published orders on schedules that were worked out by hand, and what holds of any stream."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.sim.clock import Fate
from dovetail.sim.orders import ORDERS
from dovetail.sim.plain import BackfillRule, Plain, PlainOrder, _Head
from dovetail.sim.workload import Outage, SimJob, Workload
from tests.sim.streams import job, mean_wait_s, stream, times, workload

HOUR_S = 3600


def run(
    order: str | PlainOrder,
    jobs: list[SimJob],
    backfill: BackfillRule | None = None,
    gpus: tuple[int, ...] = (4,),
    **weights: int,
) -> Plain:
    simulation = Plain(workload(gpus, *jobs, **weights), ORDERS[order] if isinstance(order, str) else order, backfill)
    simulation.run()
    return simulation


THREE = [job("a", 0, 4, 10), job("b", 1, 4, 8), job("c", 2, 4, 3)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fifo", [(0, 10), (10, 18), (18, 21)]),
        ("sjf", [(0, 10), (13, 21), (10, 13)]),
        # b takes the place of a after one second, c that of b after another.
        ("srtf", [(0, 21), (1, 12), (2, 5)]),
    ],
)
def test_three_jobs_for_one_place(order: str, expected: list[tuple[int, int]]) -> None:
    done = run(order, THREE)
    assert times(done) == expected
    assert all(fate.ran_ms == fate.job.duration_ms for fate in done.result.fates)


@pytest.mark.parametrize(
    ("backfill", "seconds", "expected"),
    [
        (BackfillRule.STRICT, 5, [(0, 10), (10, 15), (15, 20)]),
        (BackfillRule.SKIP, 5, [(0, 10), (10, 15), (2, 7)]),
        (BackfillRule.EASY, 5, [(0, 10), (10, 15), (2, 7)]),
        (BackfillRule.SKIP, 20, [(0, 10), (22, 27), (2, 22)]),
        (BackfillRule.EASY, 20, [(0, 10), (10, 15), (15, 35)]),
    ],
)
def test_the_backfill_rule_decides_about_jobs_behind_the_head(
    backfill: BackfillRule, seconds: int, expected: list[tuple[int, int]]
) -> None:
    jobs = [job("a", 0, 3, 10), job("head", 1, 4, 5), job("c", 2, 1, seconds)]
    assert times(run("fifo", jobs, backfill)) == expected


def test_backfill_may_last_longer_beside_the_head() -> None:
    jobs = [job("a", 0, 3, 10), job("head", 1, 2, 5), job("c", 2, 1, 99)]
    assert times(run("fifo", jobs, BackfillRule.EASY)) == [(0, 10), (10, 15), (2, 101)]


def test_backfill_uses_the_run_time_limits_of_jobs() -> None:
    jobs = [job("a", 0, 3, 10), job("head", 1, 4, 5), job("c", 2, 1, 5, limit_s=9)]
    assert times(run("fifo", jobs, BackfillRule.EASY)) == [(0, 10), (10, 15), (15, 20)]


def test_backfill_and_preemption_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="this order preempts"):
        run("srtf", THREE, BackfillRule.EASY)


def test_las_preempts_after_sixteen_gpu_hours_for_jobs_with_less_service() -> None:
    jobs = [job("a", 0, 4, 10 * HOUR_S), job("b", HOUR_S, 4, 2 * HOUR_S)]
    assert times(run("las", jobs)) == [(0, 12 * HOUR_S), (4 * HOUR_S, 6 * HOUR_S)]


def test_las_preempts_no_job_for_an_equal_one() -> None:
    jobs = [job("a", 0, 4, 3 * HOUR_S), job("b", HOUR_S, 4, HOUR_S)]
    assert times(run("las", jobs)) == [(0, 3 * HOUR_S), (3 * HOUR_S, 4 * HOUR_S)]


def test_the_queue_that_holds_least_goes_first() -> None:
    jobs = [
        job("x1", 0, 2, 10, queue="x"),
        job("x2", 0, 2, 20, queue="x"),
        job("x3", 0, 2, 5, queue="x"),
        job("y1", 1, 2, 5, queue="y"),
    ]
    assert [start for start, _ in times(run("fifo", jobs))] == [0, 0, 10, 15]
    assert [start for start, _ in times(run("fair", jobs))] == [0, 0, 15, 10]


@pytest.mark.parametrize("order", ["fair-history", "credit"])
def test_only_an_order_with_memory_sees_what_was_used_before(order: str) -> None:
    jobs = [job("x1", 0, 4, 10, queue="x"), job("x2", 5, 4, 5, queue="x"), job("y1", 6, 4, 5, queue="y")]
    assert [start for start, _ in times(run("fair", jobs))] == [0, 10, 15]
    assert [start for start, _ in times(run(order, jobs))] == [0, 15, 10]


@pytest.mark.parametrize(("weight", "starts"), [(1, [0, 10, 20, 15]), (3, [0, 10, 15, 20])])
def test_usage_counts_by_weight(weight: int, starts: list[int]) -> None:
    jobs = [
        job("x1", 0, 4, 10, queue="x"),
        job("y1", 1, 4, 5, queue="y"),
        job("x2", 11, 4, 5, queue="x"),
        job("y2", 12, 4, 5, queue="y"),
    ]
    assert [start for start, _ in times(run("fair-history", jobs, x=weight, y=1))] == starts


def test_usage_fades() -> None:
    jobs = [
        job("x1", 0, 4, 100, queue="x"),
        job("y1", 1000, 4, 20, queue="y"),
        job("x2", 1001, 4, 5, queue="x"),
        job("y2", 1002, 4, 5, queue="y"),
    ]
    for half_life_s, starts in ((10_000, [1025, 1020]), (100, [1020, 1025])):
        simulation = Plain(workload((4,), *jobs), ORDERS["fair-history"], half_life_ms=1000 * half_life_s)
        simulation.run()
        assert [start for start, _ in times(simulation)][2:] == starts


def test_a_stopped_job_continues_from_its_last_checkpoint() -> None:
    jobs = [job("a", 0, 4, 10, checkpoint_s=4, startup_s=1), job("b", 5, 4, 2)]
    done = run(replace(ORDERS["srtf"], suspends=False), jobs)
    # Four of five seconds are saved; from 7 on one second to start, and six of work.
    assert times(done) == [(0, 14), (5, 7)]
    fate = done.result.fates[0]
    assert (fate.lost_ms, fate.waited_ms, fate.ran_ms, fate.runs, done.result.evicted) == (1000, 2000, 12_000, 2, 1)


def test_a_job_of_many_pods_takes_nodes_from_those_that_come_later() -> None:
    jobs = [job("a", 0, 2, 100), job("b", 0, 2, 50), job("gang", 1, 2, 5, pods=2)]
    assert times(run("srtf", jobs, gpus=(2, 2))) == [(0, 105), (0, 55), (1, 6)]


def test_pods_fill_the_fullest_node_that_has_room() -> None:
    jobs = [job("a", 0, 1, 9), job("b", 0, 1, 9), job("c", 0, 2, 9)]
    done = run("fifo", jobs, gpus=(2, 2))
    assert done.result.placed == {"a-0": "n0", "b-0": "n0", "c-0": "n1"}


def test_a_guess_is_off_as_often_and_as_much_as_helios_predictions() -> None:
    listed = workload((4,), *(job(f"j{i}", 0, 1, 1000) for i in range(4000)))
    simulation = Plain(listed, ORDERS["qssf"], seed=7)
    guesses = [ORDERS["qssf"].job(simulation, fate)[0] for fate in simulation.result.fates]
    errors = [abs(guess / 1_000_000 - 1) for guess in guesses]
    for most, part in ((0.1, 0.1), (0.5, 0.5), (1.0, 0.7), (10.0, 0.9), (100.0, 1.0)):
        assert sum(error <= most for error in errors) / len(errors) == pytest.approx(part, abs=0.03)
    again = Plain(listed, ORDERS["qssf"], seed=7)
    assert guesses == [ORDERS["qssf"].job(again, fate)[0] for fate in again.result.fates]


def test_on_one_gpu_better_informed_orders_wait_less() -> None:
    waits: dict[str, list[float]] = {order: [] for order in ("fifo", "sjf", "srtf")}
    for seed in range(25):
        jobs = stream(seed, (1,), 60, 1)
        for order, found in waits.items():
            simulation = Plain(jobs, ORDERS[order])
            simulation.run()
            found.append(mean_wait_s(simulation))
    # Shortest remaining time first is best on every stream, whatever comes.
    assert all(srtf <= min(others) for srtf, *others in zip(waits["srtf"], waits["sjf"], waits["fifo"], strict=True))
    assert sum(waits["sjf"]) < sum(waits["fifo"])


class Audited(Plain):
    """Counts GPUs anew after each decision, from the jobs' own nodes."""

    def decide(self) -> bool:
        acted = super().decide()
        up = {name: gpus * 1000 for name, gpus in self.gpus.items()}
        for outage in self.workload.outages:
            if outage.from_ms <= self.now_ms < outage.until_ms:
                up[outage.node] = 0
        for fate in self.result.fates:
            assert fate.running == bool(fate.nodes) == (fate.held_milli == fate.milli)
            for pod in fate.job.pods if fate.running else ():
                up[self.result.placed[pod.uid]] -= dict(pod.request.resources)["nvidia.com/gpu"] * 1000
        assert min(up.values()) >= 0
        assert sum(up.values()) + sum(fate.held_milli for fate in self.result.fates) == self.up_milli
        return acted


def finished(jobs: Workload, order: PlainOrder, backfill: BackfillRule | None) -> Audited:
    simulation = Audited(jobs, order, backfill, half_life_ms=60_000)
    simulation.run()
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("backfill", list(BackfillRule))
@pytest.mark.parametrize("suspends", [True, False])
@pytest.mark.parametrize("order", list(ORDERS))
def test_no_gpu_is_allocated_twice_and_all_work_is_done_once(
    order: str, suspends: bool, backfill: BackfillRule, seed: int
) -> None:
    chosen = replace(ORDERS[order], suspends=suspends)
    if chosen.preempts and backfill is BackfillRule.EASY:
        return
    jobs = stream(seed, (4, 4, 2), 40, 2, queues=3, costs=True)
    jobs = replace(
        jobs, outages=(Outage("n0", 20_000, 33_000), Outage("n1", 30_000, 31_000), Outage("n0", 60_000, 61_000))
    )
    done = finished(jobs, chosen, backfill)
    for fate in done.result.fates:
        assert fate.ended_ms is not None
        assert fate.saved_ms == fate.job.duration_ms
        assert fate.ran_ms == fate.job.duration_ms + fate.lost_ms
        assert fate.ended_ms - fate.job.at_ms == fate.waited_ms + fate.ran_ms
    again = finished(jobs, chosen, backfill)
    assert (times(again), again.result.moments) == (times(done), done.result.moments)


class Promising(Plain):
    def __init__(self, jobs: Workload) -> None:
        super().__init__(jobs, ORDERS["fifo"], BackfillRule.EASY)
        self.promised_ms: dict[int, int] = {}

    def _reserve(self, fate: Fate, room: list[int]) -> _Head:
        head = super()._reserve(fate, room)
        self.promised_ms.setdefault(fate.number, head.shadow_ms)
        return head


@pytest.mark.parametrize("seed", range(20))
def test_backfill_delays_no_job_beyond_its_first_promise(seed: int) -> None:
    simulation = Promising(stream(seed, (4, 4), 80, 4))
    simulation.run()
    assert simulation.promised_ms
    for number, promised_ms in simulation.promised_ms.items():
        assert (simulation.result.fates[number].started_ms or 0) <= promised_ms
