# SPDX-License-Identifier: Apache-2.0
"""Budgets of queues: no job starts in a queue that has used its GPU-hours, until the period is over."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import Work
from dovetail.core.policy import Policy
from dovetail.core.queues.budgets import civil, period, spending
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import DAY_MS, Budgeted, GpuBudget, MoneyBudget, Queue, Usage
from dovetail.core.reasons import Reason, When
from tests.breadth import seeds
from tests.core.preemption import lives
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, World

GPU_HOUR = 1000 * HOUR_MS
NOON_MS = 20_000 * DAY_MS + 12 * HOUR_MS
"""2024-10-04 12:00, a Friday."""
PERIODS: tuple[Budgeted, ...] = ("Day", "Week", "Month")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def limited(name: str, hours: int, of: Budgeted = "Day", *, hold: bool = True, **more: object) -> ev.Event:
    return ev.QueueChanged(Queue(name, budget=GpuBudget(hours * GPU_HOUR, of, hold), **more))


def world(*queues: ev.Event, gpus: int = 8, now_ms: int = NOON_MS, period_ms: int = MINUTE_MS) -> World:
    found = World(lives.node("n", gpus), policy=Policy(fabric=()), period_ms=period_ms)
    found.now_ms = now_ms
    found.state.advance(now_ms)
    found.apply_events(*queues)
    return found


def job(name: str, queue: str, gpus: int = 1) -> ev.Event:
    return ev.PodChanged(lives.pod(name, gpus, queue=queue))


@pytest.mark.parametrize(
    ("of", "now", "start", "end"),
    [
        ("Day", "2024-10-04T23:59:59.999", "2024-10-04", "2024-10-05"),
        ("Week", "2024-10-04T12:00", "2024-09-30", "2024-10-07"),
        ("Week", "2024-10-07T00:00", "2024-10-07", "2024-10-14"),
        ("Week", "2024-10-06T23:59", "2024-09-30", "2024-10-07"),
        ("Month", "2024-12-31T12:00", "2024-12-01", "2025-01-01"),
        ("Month", "2024-02-29T12:00", "2024-02-01", "2024-03-01"),
    ],
)
def test_periods_are_those_of_the_calendar(of: Budgeted, now: str, start: str, end: str) -> None:
    assert period(of, at(now)) == (at(start), at(end))


def test_days_have_the_dates_of_the_calendar() -> None:
    for day in (*range(-800_000, 2_500_000, 1013), *range(10_000, 12_000)):
        if 0 < day + 719_163 <= date.max.toordinal():
            known = date.fromordinal(day + 719_163)
            assert civil(day) == (known.year, known.month, known.day)


@pytest.mark.parametrize("of", PERIODS)
def test_periods_follow_each_other_without_a_gap(of: Budgeted) -> None:
    now = datetime(2023, 12, 1, tzinfo=UTC)
    _, end_ms = period(of, int(now.timestamp() * 1000))
    for _ in range(500):
        now += timedelta(hours=23)
        now_ms = int(now.timestamp() * 1000)
        start_ms, until_ms = period(of, now_ms)
        assert start_ms <= now_ms < until_ms
        assert start_ms == end_ms or until_ms == end_ms
        end_ms = until_ms


def test_a_queue_that_has_used_its_budget_starts_no_job_until_the_next_period() -> None:
    one = world(limited("x", 6), ev.QueueChanged(Queue("y")))
    one.apply_events(job("long", "x", 2))
    # Two GPUs use it in three hours.
    one.live(3 * HOUR_MS - MINUTE_MS)
    one.apply_events(job("before", "x", 1))
    one.live(MINUTE_MS)
    assert one.running.keys() == {"long", "before"}
    one.apply_events(job("after", "x"), job("other", "y"))
    one.live(MINUTE_MS)
    # What runs goes on.
    assert one.running.keys() == {"long", "before", "other"}
    refusal = one.refusals["after"]
    assert (refusal.reason, refusal.when) == (Reason.QUEUE_BUDGET, When.NOT_YET)
    assert refusal.detail == "'x', until 2024-10-05"
    one.live(at("2024-10-05") - one.now_ms - 1)
    assert "after" not in one.running
    one.live(1)
    assert "after" in one.running


def test_the_scheduler_wakes_when_a_budget_will_be_used_up_or_its_period_is_over() -> None:
    one = world(limited("x", 6))
    one.apply_events(job("long", "x", 2))
    one.live(MINUTE_MS)
    began_ms = one.state.workloads.pods["long"].bound_ms
    assert one.state.shares.budgets.next_ms == began_ms + 3 * HOUR_MS
    one.live(4 * HOUR_MS)
    assert one.state.shares.budgets.next_ms == at("2024-10-05")


def test_a_larger_budget_lets_jobs_start_at_once_and_without_hold_it_is_only_reported() -> None:
    one = world(limited("x", 0))
    one.apply_events(job("a", "x"))
    one.live(MINUTE_MS)
    assert not one.running
    one.apply_events(limited("x", 1))
    one.live(0)
    assert one.running.keys() == {"a"}
    one = world(limited("x", 1, hold=False))
    one.apply_events(job("a", "x", 4))
    one.live(HOUR_MS)
    one.apply_events(job("b", "x"))
    one.live(MINUTE_MS)
    assert one.running.keys() == {"a", "b"}
    (snapshot,) = [each for each in one.state.queue_snapshots(one.now_ms) if each.name == "x"]
    assert (
        snapshot.spending is not None and snapshot.spending.used == 4 * (HOUR_MS + MINUTE_MS) * 1000 + MINUTE_MS * 1000
    )
    assert snapshot.warning == ""


def test_the_budget_of_a_queue_stops_those_below_it() -> None:
    one = world(limited("top", 1), *(ev.QueueChanged(Queue(name, parent="top")) for name in "xy"))
    one.apply_events(job("a", "x", 4))
    one.live(15 * MINUTE_MS)
    one.apply_events(job("b", "y"))
    one.live(MINUTE_MS)
    assert one.refusals["b"].detail == "'top', until 2024-10-05"
    warnings = {each.name: each.warning for each in one.state.queue_snapshots(one.now_ms)}
    assert warnings["top"] == "stopped (its budget of the period is used): no job starts"
    assert "as is the queue top above it" in warnings["y"]


def test_a_gang_that_began_gets_its_other_pods() -> None:
    one = world(limited("x", 1), lives.gang("g", 1), gpus=1)
    one.apply_events(*(ev.PodChanged(lives.pod(f"g{i}", 1, gang="g", queue="x")) for i in range(2)))
    one.live(2 * HOUR_MS)
    assert len(one.running) == 1
    one.apply_events(ev.NodeChanged(lives.node("m", 1)))
    one.live(MINUTE_MS)
    assert one.running.keys() == {"g0", "g1"}


def test_a_budget_goes_on_with_the_usage_in_the_status_of_the_queue() -> None:
    today = NOON_MS // DAY_MS
    usage = Usage(NOON_MS, days=((today - 1, 100 * GPU_HOUR), (today, 3 * GPU_HOUR)))
    one = world(limited("x", 4, usage=usage, created_ms=1))
    one.apply_events(job("a", "x"))
    one.live(HOUR_MS)
    one.apply_events(job("b", "x"))
    one.live(MINUTE_MS)
    assert one.running.keys() == {"a"}
    assert spending(GpuBudget(1, "Week"), one.state.shares.accounts.of("x"), NOON_MS).used >= 103 * GPU_HOUR


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
def test_over_days_no_job_starts_beyond_a_budget_and_no_other_waits_for_it(seed: int) -> None:
    """Against the pods themselves: what each held, by the minute."""
    dice = Random(seed)
    of: Budgeted = dice.choice(PERIODS)
    budgets = {"top": 60, "x": dice.choice([20, 40]), "y": None}
    one = world(
        limited("top", 60, of), limited("x", budgets["x"] or 0, dice.choice(PERIODS[:2]), parent="top"),
        ev.QueueChanged(Queue("y", parent="top")), ev.QueueChanged(Queue("z")), gpus=64, period_ms=15 * MINUTE_MS,
    )  # fmt: skip
    kinds = {name: queue.budget for name, queue in one.state.shares.tree.written.items() if queue.budget is not None}
    used: Counter[tuple[str, int]] = Counter()
    started: set[str] = set()
    gpus: dict[str, int] = {}
    for number in range(4 * 24 * 4):
        if dice.random() < 0.3:
            of_queue = dice.choice("xyz")
            name = f"{of_queue}{number}"
            gpus[name] = dice.choice([1, 2, 4])
            pod = lives.pod(name, gpus[name], queue=of_queue, work=Work(preempts=False))
            one.apply_events(ev.PodChanged(replace(pod, created_ms=one.now_ms)))
        if one.running and dice.random() < 0.25:
            one.ends(dice.choice(sorted(one.running)))
        spent = {
            name: used[name, period(budget.period, one.now_ms)[0]] >= budget.amount for name, budget in kinds.items()
        }
        one.live(0)
        for name in one.running.keys() - started:
            assert not spent["top"] or name[0] == "z"
            assert not spent["x"] or name[0] != "x"
        started |= one.running.keys()
        waiting = {pod.name for pod in one.state.workloads.pods.values() if not pod.node}
        # The others wait for GPUs.
        held = {name for name in waiting if one.refusals[name].reason is Reason.QUEUE_BUDGET}
        assert held == {
            name for name in waiting if name[0] != "z" and (spent["top"] or (spent["x"] and name[0] == "x"))
        }
        for name in one.running:
            count = gpus[name]
            for queue in ("top", "x") if name[0] == "x" else ("top",) if name[0] == "y" else ():
                used[queue, period(kinds[queue].period, one.now_ms)[0]] += count * 1000 * 15 * MINUTE_MS
        one.live(15 * MINUTE_MS)


def spent(name: str, micro: int, until: str, *, hold: bool = True, budget: GpuBudget | None = None) -> ev.Event:
    """A queue of which so much of 100 is spent in the period until then."""
    return ev.QueueChanged(Queue(name, budget=budget, money=MoneyBudget(100, micro, at(until), hold)))


def test_a_queue_that_has_spent_its_money_starts_no_job_until_the_period_is_over() -> None:
    one = world(spent("x", 99, "2024-11-01"), ev.QueueChanged(Queue("below", parent="y")), spent("y", 0, "2024-11-01"))
    one.apply_events(job("before", "x"))
    one.live(MINUTE_MS)
    one.apply_events(spent("x", 100, "2024-10-05"), spent("y", 100, "2024-10-05"), job("after", "x"), job("b", "below"))
    one.live(MINUTE_MS)
    # What runs goes on, and the queues below it are stopped with it.
    assert one.running.keys() == {"before"}
    refusal = one.refusals["after"]
    assert (refusal.reason, refusal.when) == (Reason.QUEUE_BUDGET, When.NOT_YET)
    assert refusal.detail == "'x', until 2024-10-05" and one.refusals["b"].detail == "'y', until 2024-10-05"
    assert snapshot_of(one, "x").warning.startswith("stopped (its budget of the period is used)")
    one.live(at("2024-10-05") - one.now_ms - 1)
    assert one.running.keys() == {"before"}
    one.live(1)
    assert one.running.keys() == {"before", "after", "b"}


@pytest.mark.parametrize(
    "later",
    [
        spent("x", 99, "2024-11-01"),
        spent("x", 100, "2024-11-01", hold=False),
        spent("x", 100, "2024-10-04"),
        ev.QueueChanged(Queue("x", money=MoneyBudget(101, 100, at("2024-11-01"), hold=True))),
        ev.QueueChanged(Queue("x")),
    ],
)
def test_jobs_start_at_once_where_it_is_not_spent_any_more(later: ev.Event) -> None:
    """A charge is corrected, it is only reported, its period is over, it is raised, or it is taken away."""
    one = world(spent("x", 100, "2024-11-01"), job("a", "x"))
    one.live(MINUTE_MS)
    assert not one.running
    one.apply_events(later)
    one.live(0)
    assert one.running.keys() == {"a"}


@pytest.mark.parametrize(
    ("hours", "micro", "until", "end"),
    [
        (0, 0, "2024-11-01", "2024-10-07"),
        (0, 100, "2024-11-01", "2024-11-01"),
        (0, 100, "2024-10-05", "2024-10-07"),
        (1000, 100, "2024-11-01", "2024-11-01"),
        (1000, 0, "2024-11-01", ""),
    ],
)
def test_of_two_budgets_either_stops_the_queue_and_the_later_end_counts(
    hours: int, micro: int, until: str, end: str
) -> None:
    one = world(spent("x", micro, until, budget=GpuBudget(hours * GPU_HOUR, "Week", hold=True)), job("a", "x"))
    one.live(MINUTE_MS)
    assert (one.running.keys() == {"a"}) == (end == "")
    if end:
        assert one.refusals["a"].detail == f"'x', until {end}"
    # A step is due when either period is over.
    assert one.state.shares.budgets.next_ms == min(at("2024-10-07"), at(until) if micro else at("2024-10-07"))


def snapshot_of(one: World, name: str) -> QueueSnapshot:
    (found,) = [each for each in one.state.queue_snapshots(one.now_ms) if each.name == name]
    return found
