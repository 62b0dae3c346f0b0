# SPDX-License-Identifier: Apache-2.0
"""Guarantees by the clock: windows of the week in a time zone, over weeks of virtual time, with its changes of hour."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.policy import Policy
from dovetail.core.queues.types import GuaranteeCalendar, GuaranteeWindow, Queue, Usage
from dovetail.core.state import State
from dovetail.kube.translate.time_zones import offsets_of
from dovetail.views.forecast import forecast
from tests.core.preemption import lives
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, World

DAY_MS, WEEK_MS = 24 * HOUR_MS, 168 * HOUR_MS
EVERY_DAY, WORKDAYS = 127, 31
MONDAY_MS = round(datetime(2026, 10, 19, tzinfo=UTC).timestamp()) * 1000
"""The week before the clocks of Berlin go back."""
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kolkata")


def gpus(count: int) -> tuple[tuple[str, int], ...]:
    return (("gpu", 1000 * count),)


def window(start: str, end: str, count: int, days: int = EVERY_DAY) -> GuaranteeWindow:
    minutes = [int(one[:2]) * 60 + int(one[3:]) for one in (start, end)]
    return GuaranteeWindow(days, *minutes, gpus(count))


def calendar(*windows: GuaranteeWindow, otherwise: int = 0, zone: str = "UTC") -> GuaranteeCalendar:
    return GuaranteeCalendar(gpus(otherwise), windows, offsets_of(zone))


def by_clock(one: GuaranteeCalendar, at_ms: int, zone: str) -> tuple[tuple[str, int], ...]:
    """What the clock on the wall gives, minute by minute."""
    local = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))
    for found in one.windows:
        length = (found.end_min - found.start_min) % 1440 or 1440
        for back in (0, 1):
            started = local.replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=back)
            opened = started + timedelta(minutes=found.start_min)
            open_now = opened <= local.replace(tzinfo=None) < opened + timedelta(minutes=length)
            if found.days >> started.weekday() & 1 and open_now:
                return found.guarantee
    return one.otherwise


@pytest.mark.parametrize("zone", ZONES)
def test_each_time_has_the_guarantee_of_the_clock_also_where_clocks_change(zone: str) -> None:
    dice = Random(zone)
    for _ in range(60):
        windows = [
            GuaranteeWindow(dice.randrange(1, 128), dice.randrange(1440), dice.randrange(1, 1441), gpus(i + 1))
            for i in range(dice.randint(1, 3))
        ]
        one = calendar(*windows, zone=zone)
        turn_ms = dice.choice([at for at, _ in offsets_of(zone)][1:] or [MONDAY_MS])
        for _ in range(20):
            at_ms = turn_ms + dice.randrange(-2 * DAY_MS, 2 * DAY_MS)
            assert one.at(at_ms) == by_clock(one, at_ms, zone), (windows, at_ms)


@pytest.mark.parametrize("zone", ZONES)
def test_between_now_and_the_next_change_there_is_none(zone: str) -> None:
    dice = Random(zone)
    for _ in range(20):
        windows = [
            GuaranteeWindow(dice.randrange(1, 128), dice.randrange(1440), dice.randrange(1, 1441), gpus(i + 1))
            for i in range(dice.randint(1, 2))
        ]
        one = calendar(*windows, zone=zone)
        now_ms = MONDAY_MS + dice.randrange(2 * WEEK_MS)
        change = one.next_change(now_ms)
        until_ms = change[0] if change is not None else one.horizon_ms(now_ms)
        step_ms = 7 * MINUTE_MS
        assert {one.at(at_ms) for at_ms in range(now_ms, until_ms, step_ms)} == {one.at(now_ms)}
        if change is not None:
            assert one.at(until_ms - 1) == one.at(now_ms) != one.at(until_ms) == change[1]


def test_the_hour_that_comes_twice_is_open_twice_and_the_hour_that_is_skipped_never() -> None:
    night = calendar(window("02:00", "03:00", 8), zone="Europe/Berlin")
    autumn = round(datetime(2026, 10, 25, tzinfo=UTC).timestamp()) * 1000
    spring = round(datetime(2027, 3, 28, tzinfo=UTC).timestamp()) * 1000
    assert [night.at(autumn + hour * HOUR_MS) for hour in range(-1, 3)] == [gpus(0), gpus(8), gpus(8), gpus(0)]
    assert [night.at(spring + hour * HOUR_MS) for hour in range(3)] == [gpus(0)] * 3
    change = night.next_change(spring)
    assert change is not None and change[0] == spring + DAY_MS


def world(*queues: Queue, count: int = 8, now_ms: int = MONDAY_MS) -> World:
    found = World(lives.node("n", count), policy=Policy(fabric=()), period_ms=HOUR_MS)
    found.now_ms = now_ms
    found.state.advance(now_ms)
    found.apply_events(*map(ev.QueueChanged, queues))
    return found


def running(found: World, prefix: str) -> int:
    return sum(uid.startswith(prefix) for uid in found.state.cluster.placements)


def day_and_night() -> tuple[Queue, Queue]:
    """Serving has 6 of 8 GPUs from 8 to 20 on workdays, training has them otherwise; both in Berlin."""
    by_day = window("08:00", "20:00", 6, WORKDAYS)
    serving = calendar(by_day, otherwise=2, zone="Europe/Berlin")
    training = calendar(replace(by_day, guarantee=gpus(2)), otherwise=6, zone="Europe/Berlin")
    return (
        Queue("serving", calendar=serving, reclaim_min_runtime_ms=0),
        Queue("training", calendar=training, reclaim_min_runtime_ms=0),
    )


@pytest.mark.slow
def test_serving_has_its_gpus_by_day_and_training_by_night_for_two_weeks_with_a_change_of_clocks() -> None:
    """Time passes from change to change: a minute before each until five minutes after it."""
    found, zone = world(*day_and_night()), ZoneInfo("Europe/Berlin")
    found.submit(*(lives.pod(f"s{i}", queue="serving") for i in range(8)))
    found.submit(*(lives.pod(f"t{i}", queue="training") for i in range(8)))
    found.live(5 * MINUTE_MS)
    assert (running(found, "s"), running(found, "t")) == (2, 6)
    times = [datetime(2026, 10, 19, hour, tzinfo=zone) + timedelta(days=day) for day in range(14) for hour in (8, 20)]
    evicted = 0
    for local in times:
        change_ms, day = round(local.timestamp() * 1000), local.weekday() < 5 and local.hour == 8
        before = running(found, "s")
        found.now_ms = change_ms - MINUTE_MS
        found.live(MINUTE_MS - 1)
        assert running(found, "s") == before
        found.live(5 * MINUTE_MS)
        assert (running(found, "s"), running(found, "t")) == ((6, 2) if day else (2, 6)), local
        changed = 4 if local.weekday() < 5 else 0
        assert len(found.gave_way) - evicted == changed, local
        evicted += changed


def test_a_change_is_due_by_itself_and_survives_a_checkpoint_and_news_of_its_usage() -> None:
    serving, _ = day_and_night()
    found = world(serving)
    state = found.state
    at_eight = MONDAY_MS + 6 * HOUR_MS
    assert state.next_wake_ms() == at_eight
    assert dict(state.shares.tree.queues["serving"].guarantee) == {"gpu": 2000}
    again = restore(Policy(fabric=()), take(state))
    assert again.shares.tree.written["serving"] == state.shares.tree.written["serving"]
    assert again.next_wake_ms() == at_eight
    for one in (state, again):
        one.advance(at_eight)
        assert dict(one.shares.tree.queues["serving"].guarantee) == {"gpu": 6000}
    state.cluster.changes.take()
    found.apply_events(ev.QueueChanged(replace(serving, usage=Usage(at_eight))))
    assert not state.cluster.changes
    assert dict(state.shares.tree.queues["serving"].guarantee) == {"gpu": 6000}


def test_a_calendar_that_is_taken_away_leaves_the_guarantee_of_the_spec() -> None:
    serving, _ = day_and_night()
    found = world(serving)
    found.apply_events(ev.QueueChanged(replace(serving, calendar=None, guarantee=gpus(5))))
    assert found.state.shares.calendars.next_ms is None
    found.state.advance(MONDAY_MS + WEEK_MS)
    assert dict(found.state.shares.tree.queues["serving"].guarantee) == {"gpu": 5000}
    found.apply_events(ev.QueueChanged(serving), ev.QueueRemoved("serving"))
    assert found.state.shares.calendars.next_ms is None


def test_of_many_calendars_only_the_one_that_changes_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Counter[int]()
    next_change = GuaranteeCalendar.next_change

    def counted(one: GuaranteeCalendar, now_ms: int) -> object:
        looked[one.windows[0].start_min] += 1
        return next_change(one, now_ms)

    monkeypatch.setattr(GuaranteeCalendar, "next_change", counted)
    queues = [
        Queue(f"q{i}", calendar=GuaranteeCalendar(gpus(0), (GuaranteeWindow(EVERY_DAY, i, i + 1, gpus(1)),)))
        for i in range(50)
    ]
    found = world(*queues, Queue("plain"), now_ms=MONDAY_MS + HOUR_MS)
    found.apply_events(ev.QueueRemoved("plain"), ev.QueueChanged(replace(queues[0], weight=2)))
    assert looked == dict.fromkeys(range(50), 1)


def test_the_forecast_knows_that_a_job_starts_when_its_queue_is_guaranteed_more() -> None:
    found = world(*day_and_night(), now_ms=MONDAY_MS + 12 * HOUR_MS)
    found.submit(*(lives.pod(f"s{i}", queue="serving") for i in range(6)))
    found.submit(*(lives.pod(f"t{i}", queue="training") for i in range(2)))
    found.live(5 * MINUTE_MS)
    found.submit(lives.pod("big", 4, queue="training", work=lives.pod("x").work))
    found.live(5 * MINUTE_MS)
    ahead = forecast(take(found.state), Policy(fabric=()), found.now_ms)
    (start,) = [one for one in ahead.starts.values() if one.job.workload.endswith("big")]
    at_twenty = MONDAY_MS + 18 * HOUR_MS
    assert at_twenty <= start.expected.start_ms <= at_twenty + HOUR_MS


def test_the_forecast_ends_although_calendars_go_on_for_ever() -> None:
    found = world(*day_and_night())
    found.submit(lives.pod("never", 64, queue="training"))
    found.live(MINUTE_MS)
    ahead = forecast(take(found.state), Policy(fabric=()), found.now_ms)
    assert ahead.until_ms <= found.now_ms + 9 * DAY_MS


def test_a_queue_without_a_calendar_costs_no_wake() -> None:
    assert State(Policy(fabric=())).next_wake_ms() is None
