# SPDX-License-Identifier: Apache-2.0
"""Which offer each policy takes: tables, and comparisons with all offers that there are."""

from __future__ import annotations

from random import Random

import pytest

from dovetail.core.bargaining.types import LeaseAlternative, Offer
from dovetail.plane import (
    Accept,
    CheapestCredit,
    CounterOffer,
    DeadlineAware,
    Decline,
    FirstFit,
    KeepWaiting,
    OfferRound,
)
from dovetail.plane.policies import device_milli

MINUTE = 60_000
NOW = 1_000_000


def offer(name: str, count: int = 1, minutes: float = 10, start_in: float = 0, **more: object) -> Offer:
    what = LeaseAlternative(count=count, duration_ms=round(minutes * MINUTE), **more)
    return Offer(name, start_in == 0, what, NOW + round(start_in * MINUTE))


def table(*offers: Offer, asked: tuple[LeaseAlternative, ...] = (), **more: object) -> OfferRound:
    return OfferRound(offers, asked or (LeaseAlternative(8),), NOW, NOW + 15_000, **more)


def test_first_fit_takes_the_first_offer() -> None:
    assert FirstFit()(table(offer("a", 2), offer("b", 8, start_in=30))) == Accept("a")


def test_first_fit_with_patience_takes_no_later_start() -> None:
    policy = FirstFit(patience_ms=10 * MINUTE)
    assert policy(table(offer("b", 8, start_in=30))) == KeepWaiting()
    assert policy(table(offer("b", 8, start_in=30), offer("c", 8, start_in=9))) == Accept("c")


@pytest.mark.parametrize(
    ("more", "milli"),
    [
        ({}, 1000),
        ({"gpu_milli": 250}, 250),
        ({"resource": "nvidia.com/mig-1g.10gb"}, 143),
        ({"resource": "nvidia.com/mig-3g.40gb"}, 429),
        ({"resource": "nvidia.com/mig-7g.80gb"}, 1000),
        ({"resource": "nvidia.com/mig-odd"}, 1000),
    ],
)
def test_what_a_device_counts(more: dict[str, object], milli: int) -> None:
    assert device_milli(LeaseAlternative(**more)) == milli


@pytest.mark.parametrize(
    ("offers", "taken"),
    [
        ((offer("a", 8, 10), offer("b", 4, 10)), "b"),
        ((offer("a", 8, 10), offer("b", 4, 21)), "a"),
        ((offer("a", 4, models=("H100",)), offer("b", 8, models=("A100",))), "b"),
        ((offer("a", 4, start_in=5), offer("b", 4)), "b"),
        ((offer("a", 1, gpu_milli=500), offer("b", 1, 6)), "a"),
        # A lease counts for a minute at least.
        ((offer("a", 2, 0.4), offer("b", 1, 1)), "b"),
    ],
)
def test_cheapest_credit_takes_the_least_rate_times_time(offers: tuple[Offer, ...], taken: str) -> None:
    policy = CheapestCredit({"H100": 2200, "A100": 1000})
    assert policy(table(*offers)) == Accept(taken)


def test_cheapest_credit_takes_nothing_above_its_bound() -> None:
    policy = CheapestCredit(most_gpu_minutes=30)
    assert policy(table(offer("a", 4, 10))) == KeepWaiting()
    assert policy(table(offer("a", 3, 10))) == Accept("a")


@pytest.mark.parametrize(
    ("offers", "move"),
    [
        # 60 device-minutes by minute 30.
        ((offer("a", 4, 20),), Accept("a")),
        # Equally many device-minutes: the one that ends first.
        ((offer("a", 4, 20), offer("b", 8, 20)), Accept("b")),
        ((offer("a", 1, 40), offer("b", 8, 20, start_in=20)), Accept("b")),
        # The term is too short; then the start is too late.
        ((offer("a", 4, 14),), CounterOffer),
        ((offer("b", 8, 20, start_in=23),), CounterOffer),
    ],
)
def test_deadline_aware_takes_what_finishes_for_the_least(offers: tuple[Offer, ...], move: object) -> None:
    policy = DeadlineAware(60 * MINUTE, NOW + 30 * MINUTE)
    found = policy(table(*offers, asked=(LeaseAlternative(8, least=1, duration_ms=40 * MINUTE),)))
    assert found == move or (isinstance(move, type) and isinstance(found, move))


def test_the_counter_offer_is_for_the_fewest_devices_that_finish_by_the_latest_start_in_time() -> None:
    policy = DeadlineAware(60 * MINUTE, NOW + 30 * MINUTE)
    asked = LeaseAlternative(8, least=1, duration_ms=40 * MINUTE)
    found = policy(table(offer("a", 1, 40), asked=(asked,)))
    assert isinstance(found, CounterOffer)
    assert (found.alternative.count, found.alternative.least) == (2, 0)
    assert found.alternative.latest_ms == NOW
    after = table(offer("a", 1, 40), asked=(asked,), rounds=1)
    assert policy(after) == KeepWaiting()


def test_deadline_aware_declines_what_can_not_be_done_any_more() -> None:
    policy = DeadlineAware(60 * MINUTE, NOW + 7 * MINUTE)
    assert isinstance(policy(table(offer("a", 8, 40))), Decline)


def test_a_speedup_below_linear_is_counted() -> None:
    policy = DeadlineAware(60 * MINUTE, NOW + 20 * MINUTE, lambda devices: devices**0.5)
    assert policy(table(offer("a", 8, 30), asked=(LeaseAlternative(9, duration_ms=30 * MINUTE),))) == CounterOffer(
        LeaseAlternative(9, duration_ms=30 * MINUTE, latest_ms=NOW)
    )


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.slow
def test_the_moves_agree_with_all_offers_and_all_counts(seed: int) -> None:
    chance = Random(seed)
    power = chance.choice((1.0, 0.5, 0.8))
    policy = DeadlineAware(
        chance.randint(1, 90) * MINUTE, NOW + chance.randint(1, 60) * MINUTE, lambda devices: devices**power
    )
    asked = tuple(
        LeaseAlternative(per * chance.randint(1, 4), per_node=per, duration_ms=chance.randint(1, 60) * MINUTE)
        for per in (chance.choice((1, 2)) for _ in range(2))
    )
    offers = [
        offer(str(n), chance.randint(1, 8), chance.randint(1, 60), chance.choice((0, 0, chance.randint(1, 50))))
        for n in range(chance.randint(1, 3))
    ]
    table_ = table(*offers, asked=asked)
    move = policy(table_)

    def done_ms(count: int, start_ms: int) -> float:
        return start_ms + policy.work_ms / count**power

    fits = [
        one
        for one in offers
        if done_ms(one.alternative.count, one.start_ms) <= policy.deadline_ms
        and policy.work_ms / one.alternative.count**power <= one.alternative.duration_ms
    ]
    possible = [
        count
        for one in asked
        for count in range(one.per_node, one.count + 1, one.per_node)
        if done_ms(count, NOW) <= policy.deadline_ms and policy.work_ms / count**power <= one.duration_ms
    ]
    if fits:
        assert isinstance(move, Accept)
        taken = next(one for one in fits if one.id == move.offer)
        costs = {one.id: one.alternative.count ** (1 - power) * policy.work_ms for one in fits}
        # Times are rounded up to whole milliseconds.
        assert costs[taken.id] <= min(costs.values()) + 8
    elif possible:
        assert isinstance(move, CounterOffer) and move.alternative.count == min(possible)
    else:
        assert isinstance(move, Decline)
