# SPDX-License-Identifier: Apache-2.0
"""The ledger against the formula in decimals of 60 digits, and however often and late it is reported."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.queues.types import DAY_MS
from dovetail.core.queues.usage import DecayedUsage, accrued, decayed, steady

MODEST = settings(max_examples=150, deadline=None, derandomize=True)
HOUR_MS = 3_600_000
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2

half_lives = st.one_of(st.integers(1, 5000), st.integers(HOUR_MS, 365 * DAY_MS))
rates = st.integers(0, 10**9)
times = st.integers(0, 3 * DAY_MS)
Steps = list[tuple[int, int]]
steps = st.lists(st.tuples(st.integers(0, DAY_MS), st.integers(0, 800_000)), min_size=1, max_size=12)
"""How long, and the rate meanwhile."""


def exact(used: int, rate: int, elapsed_ms: int, half_life_ms: int) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        kept = Decimal(2) ** (-Decimal(elapsed_ms) / half_life_ms)
        return used * kept + rate * half_life_ms / Decimal(2).ln() * (1 - kept)


def driven(half_life_ms: int, reported: Steps) -> tuple[DecayedUsage, int]:
    ledger, now_ms = DecayedUsage(half_life_ms, as_of_ms=NOON_MS), NOON_MS
    for length_ms, rate in reported:
        ledger.change(rate - ledger.rate, now_ms)
        now_ms += length_ms
    return ledger, now_ms


@MODEST
@given(st.integers(-(10**20), 10**20), times, half_lives)
def test_what_is_left_of_the_past_is_the_nearest_integer(used: int, elapsed_ms: int, half_life_ms: int) -> None:
    assert abs(decayed(used, elapsed_ms, half_life_ms) - exact(used, 0, elapsed_ms, half_life_ms)) <= Decimal("0.51")


@MODEST
@given(rates, times, half_lives)
def test_what_a_rate_comes_to_is_off_by_one_at_most(rate: int, elapsed_ms: int, half_life_ms: int) -> None:
    assert abs(accrued(rate, elapsed_ms, half_life_ms) - exact(0, rate, elapsed_ms, half_life_ms)) <= 1


@pytest.mark.parametrize("half_life_ms", [1, 3, 1000, 7 * DAY_MS])
def test_a_half_life_leaves_half(half_life_ms: int) -> None:
    assert decayed(1 << 40, half_life_ms, half_life_ms) == 1 << 39
    assert decayed(1 << 40, 10 * half_life_ms, half_life_ms) == 1 << 30
    assert decayed(1 << 40, 10_000 * half_life_ms, half_life_ms) == 0
    assert accrued(1000, half_life_ms, half_life_ms) == steady(1000, half_life_ms) - decayed(
        steady(1000, half_life_ms), half_life_ms, half_life_ms
    )


def test_a_moment_is_charged_as_it_is_however_long_the_half_life() -> None:
    assert accrued(1, 1, 365 * DAY_MS) == 1
    assert accrued(8000, 1000, 7 * DAY_MS) == 8_000_000 - 5
    assert accrued(10**9, 1, 365 * DAY_MS) == 10**9


@MODEST
@given(half_lives, steps)
@pytest.mark.slow
def test_the_ledger_is_the_integral(half_life_ms: int, reported: Steps) -> None:
    ledger, now_ms = driven(half_life_ms, reported)
    want, elapsed_ms = Decimal(0), 0
    for length_ms, rate in reversed(reported):
        with localcontext() as context:
            context.prec = 60
            kept = Decimal(2) ** (-Decimal(elapsed_ms) / half_life_ms)
            want += kept * exact(0, rate, length_ms, half_life_ms)
        elapsed_ms += length_ms
    assert abs(ledger.at(now_ms) - want) <= len(reported)


@MODEST
@given(half_lives, steps, st.lists(times, max_size=8))
@pytest.mark.slow
def test_settling_on_the_way_changes_no_more_than_a_unit_each_time(
    half_life_ms: int, reported: Steps, stops: list[int]
) -> None:
    once, now_ms = driven(half_life_ms, reported)
    often, _ = driven(half_life_ms, reported)
    for stop_ms in sorted(stops):
        often.settle(now_ms + stop_ms)
    end_ms = now_ms + max(stops, default=0)
    once.settle(end_ms)
    often.settle(end_ms)
    assert abs(once.used - often.used) <= len(stops)
    assert (once.as_of_ms, once.rate, once.days) == (often.as_of_ms, often.rate, often.days)


@MODEST
@given(half_lives, steps, times)
@pytest.mark.slow
def test_settling_twice_is_settling_once_and_looking_changes_nothing(
    half_life_ms: int, reported: Steps, later_ms: int
) -> None:
    ledger, now_ms = driven(half_life_ms, reported)
    as_of_ms, seen = ledger.as_of_ms, ledger.at(now_ms + later_ms)
    assert ledger.as_of_ms == as_of_ms and ledger.at(now_ms + later_ms) == seen
    assert ledger.ahead(now_ms + later_ms - as_of_ms) == seen
    ledger.settle(now_ms + later_ms)
    assert ledger.used == seen
    days = dict(ledger.days)
    ledger.settle(now_ms + later_ms)
    assert (ledger.used, ledger.days) == (seen, days)


@MODEST
@given(half_lives, steps, times)
@pytest.mark.slow
def test_a_restart_from_what_was_written_down_goes_on_exactly(
    half_life_ms: int, reported: Steps, later_ms: int
) -> None:
    ledger, now_ms = driven(half_life_ms, reported)
    ledger.settle(now_ms)
    again = DecayedUsage(half_life_ms, ledger.used, ledger.as_of_ms, ledger.rate, tuple(ledger.days.items()))
    for one in (ledger, again):
        one.settle(now_ms + later_ms)
        one.change(500, now_ms + later_ms + 7)
    assert (ledger.used, ledger.as_of_ms, ledger.rate, ledger.days) == (
        again.used, again.as_of_ms, again.rate, again.days,
    )  # fmt: skip


@MODEST
@given(half_lives, st.integers(0, 10**18), st.integers(0, 10**18), rates, rates, times, times)
def test_more_use_or_a_higher_charge_is_more_usage(
    half_life_ms: int, used: int, more: int, rate: int, faster: int, elapsed_ms: int, longer_ms: int
) -> None:
    base = DecayedUsage(half_life_ms, used, rate=rate).at(elapsed_ms)
    assert DecayedUsage(half_life_ms, used + more, rate=rate).at(elapsed_ms) >= base
    assert DecayedUsage(half_life_ms, used, rate=rate + faster).at(elapsed_ms) >= base
    assert decayed(used, elapsed_ms + longer_ms, half_life_ms) <= decayed(used, elapsed_ms, half_life_ms)
    assert accrued(rate, elapsed_ms + longer_ms, half_life_ms) >= accrued(rate, elapsed_ms, half_life_ms)
    assert min(used, steady(rate, half_life_ms)) <= base <= max(used, steady(rate, half_life_ms))


@MODEST
@given(half_lives, rates, times, times, times)
def test_a_start_and_an_end_that_are_learned_late_count_as_if_reported_in_time(
    half_life_ms: int, rate: int, before_ms: int, length_ms: int, after_ms: int
) -> None:
    start_ms = NOON_MS + before_ms
    end_ms, now_ms = start_ms + length_ms, start_ms + length_ms + after_ms
    in_time = DecayedUsage(half_life_ms, as_of_ms=NOON_MS)
    in_time.change(rate, start_ms)
    in_time.change(-rate, end_ms)
    in_time.settle(now_ms)

    late = DecayedUsage(half_life_ms, as_of_ms=NOON_MS)
    late.charge(rate, start_ms, end_ms, now_ms)
    assert abs(late.used - in_time.used) <= 3
    assert late.days == in_time.days

    end_late = DecayedUsage(half_life_ms, as_of_ms=NOON_MS)
    end_late.change(rate, start_ms)
    end_late.change(-rate, now_ms)
    end_late.charge(-rate, end_ms, now_ms, now_ms)
    assert abs(end_late.used - in_time.used) <= 5
    assert end_late.days == in_time.days


def test_taking_back_more_than_there_is_leaves_nothing() -> None:
    ledger = DecayedUsage(HOUR_MS, used=5, as_of_ms=NOON_MS, days=[(20_000, 5)])
    ledger.charge(-1000, NOON_MS - HOUR_MS, NOON_MS, NOON_MS)
    assert (ledger.used, ledger.days) == (0, {})


def test_what_is_to_come_is_not_charged_yet() -> None:
    ledger = DecayedUsage(HOUR_MS, as_of_ms=NOON_MS)
    ledger.charge(1000, NOON_MS + 1, NOON_MS + HOUR_MS, NOON_MS)
    ledger.charge(1000, NOON_MS, NOON_MS - 1, NOON_MS)
    assert (ledger.used, ledger.days) == (0, {})


def test_a_clock_that_goes_back_changes_nothing() -> None:
    ledger = DecayedUsage(HOUR_MS, used=10**9, as_of_ms=NOON_MS, rate=1000, days=[(20_000, 77)])
    ledger.settle(NOON_MS - DAY_MS)
    assert (ledger.used, ledger.as_of_ms, ledger.days) == (10**9, NOON_MS, {20_000: 77})
    assert ledger.at(NOON_MS - DAY_MS) == 10**9
    ledger.change(500, NOON_MS - DAY_MS)
    assert (ledger.used, ledger.as_of_ms, ledger.rate) == (10**9, NOON_MS, 1500)


def test_days_are_split_at_midnight_exactly() -> None:
    ledger = DecayedUsage(HOUR_MS, as_of_ms=NOON_MS)
    ledger.change(1000, NOON_MS)
    ledger.settle(NOON_MS + 2 * DAY_MS)
    assert ledger.days == {20_000: 500 * DAY_MS, 20_001: 1000 * DAY_MS, 20_002: 500 * DAY_MS}


def test_a_month_of_days_is_kept() -> None:
    ledger = DecayedUsage(HOUR_MS, as_of_ms=0, rate=1)
    ledger.settle(NOON_MS)
    assert sorted(ledger.days) == list(range(19_970, 20_001))
    ledger.charge(1, 0, DAY_MS, NOON_MS)
    ledger.settle(NOON_MS + DAY_MS)
    assert sorted(ledger.days) == list(range(19_971, 20_002))
    ledger.change(-1, NOON_MS + DAY_MS)
    ledger.settle(NOON_MS + 40 * DAY_MS)
    assert ledger.days == {}


def test_days_that_somebody_wrote_by_hand_count_only_where_they_can_be() -> None:
    written = [(20_000, 4), (20_001, 9), (19_999, -3), (19_970, 2), (19_969, 5)]
    assert DecayedUsage(HOUR_MS, -7, NOON_MS, 0, written).days == {20_000: 4, 19_970: 2}
    assert DecayedUsage(HOUR_MS, -7, NOON_MS).used == 0


@pytest.mark.parametrize("half_life_ms", [0, -1])
def test_a_half_life_of_nothing_is_refused(half_life_ms: int) -> None:
    with pytest.raises(ValueError, match=f"half life of {half_life_ms} ms"):
        DecayedUsage(half_life_ms)
    with pytest.raises(ValueError, match="above 0"):
        decayed(1, 1, half_life_ms)
    with pytest.raises(ValueError, match="above 0"):
        accrued(1, 1, half_life_ms)
    with pytest.raises(ValueError, match="above 0"):
        DecayedUsage(1).set_half_life(half_life_ms, 0)


def test_another_half_life_keeps_the_share() -> None:
    ours, all_of_it = DecayedUsage(HOUR_MS, rate=3000), DecayedUsage(HOUR_MS, rate=10_000)
    ours.settle(HOUR_MS)
    all_of_it.settle(HOUR_MS)
    share = ours.used * 10**6 // all_of_it.used
    for ledger in (ours, all_of_it):
        ledger.set_half_life(DAY_MS, HOUR_MS)
    assert ours.used * 10**6 // all_of_it.used == share == 300_000
    assert ours.at(100 * DAY_MS) == steady(3000, DAY_MS)
    ours.settle(100 * DAY_MS)
    ours.set_half_life(HOUR_MS, 100 * DAY_MS)
    assert abs(ours.used - steady(3000, HOUR_MS)) <= 1
