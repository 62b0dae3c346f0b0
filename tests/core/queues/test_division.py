# SPDX-License-Identifier: Apache-2.0
"""The division against a second one in fractions, against all divisions where there are few, and its promises."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

import pytest
from msgspec.structs import replace

from dovetail.core.queues.division import Claimant, divide
from tests.breadth import seeds


def among(total: int, *claimants: Claimant, k: int = 0, grain: int = 1) -> list[int]:
    return divide(total, claimants, k, grain)


def asks(request: int, weight: int = 1, usage_ppm: int = 0, **more: int) -> Claimant:
    return Claimant("", weight=weight, request=request, usage_ppm=usage_ppm, **more)


def wanted(claimant: Claimant) -> int:
    return claimant.request if claimant.limit is None else min(claimant.request, claimant.limit)


def level(pool: Fraction, wants: list[tuple[Fraction, Fraction]]) -> Fraction | None:
    """x with sum of min(ask, x * weight) = pool; None where all can have what they ask for. By the corners of that
    sum, from the lowest."""
    spent, weight = Fraction(0), sum((w for _, w in wants), Fraction(0))
    for ask, w in sorted(wants, key=lambda want: want[0] / want[1]):
        if spent + ask / w * weight >= pool:
            return (pool - spent) / weight
        spent += ask
        weight -= w
    return None


def in_fractions(total: int, claimants: list[Claimant], k: Fraction) -> list[Fraction]:
    """The division without grains."""
    given = [Fraction(min(c.guarantee, wanted(c))) for c in claimants]
    rest = max(Fraction(0), total - sum(given))
    for priority in sorted({c.priority for c in claimants}, reverse=True):
        left = [i for i, c in enumerate(claimants) if c.priority == priority and c.weight > 0 and given[i] < wanted(c)]
        plain = {i: Fraction(claimants[i].weight) for i in left}
        x = level(rest, [(wanted(claimants[i]) - given[i], plain[i]) for i in left]) if left else None
        s = plain
        if k and rest and x is not None:
            w = {}
            for i in left:
                without_bound = [(rest + 1 if i == j else wanted(claimants[j]) - given[j], plain[j]) for j in left]
                x = level(rest, without_bound)
                assert x is not None
                w[i] = plain[i] * x / rest
            usage = {i: Fraction(claimants[i].usage_ppm, 10**6) for i in left}
            s = {i: max(Fraction(0), w[i] + k * (w[i] - usage[i])) for i in left}
        for weights in ({i: s[i] for i in left if s[i]}, {i: plain[i] for i in left if not s[i]}):
            wants = {i: wanted(claimants[i]) - given[i] for i in weights}
            x = level(rest, [(wants[i], weights[i]) for i in weights]) if weights else None
            parts = {i: wants[i] if x is None else min(wants[i], x * weights[i]) for i in weights}
            for i, part in parts.items():
                given[i] += part
                rest -= part
    return given


FINE = 1000
"""Grains of 1 in amounts of so many leave the division as it is before flooring, to 1."""


def worlds(count: int, grain: int = 1, priorities: int = 2) -> Iterator[tuple[random.Random, int, list[Claimant], int]]:
    """Random ones: the dice for more, the total, the claimants, k in thousandths."""
    for seed in seeds(count):
        dice = random.Random(seed)
        pick, among = dice.choice, dice.randint
        names = dice.sample("abcde", among(1, 5))
        claimants = [
            Claimant(
                name,
                pick([0, 0, 0, grain, 5 * grain]),
                pick([None, among(0, 12) * grain]),
                among(-1, 4),
                among(0, 12) * grain,
                among(0, 8) * 125_000,
                among(1, priorities),
                among(0, 2),
            )
            for name in names
        ]
        yield dice, among(0, 30) * grain, claimants, pick([0, 0, 250, 1000, 3000])


def test_it_is_the_division_in_fractions_to_the_grain() -> None:
    for _, total, claimants, k in worlds(600):
        exact = in_fractions(total, claimants, Fraction(k, 1000))
        for due, want in zip(divide(total, claimants, k, 1), exact, strict=True):
            assert abs(due - want) < 1, (total, claimants, k)
            assert due == want or want.denominator != 1, (total, claimants, k)


def test_nobody_has_more_than_it_may_or_less_than_is_guaranteed() -> None:
    for dice, total, claimants, k in worlds(1000):
        for claimant, due in zip(claimants, divide(total, claimants, k, dice.choice([1, 3, 7])), strict=True):
            assert min(claimant.guarantee, wanted(claimant)) <= due <= wanted(claimant), (total, claimants, k)
            if claimant.weight <= 0:
                assert due == min(claimant.guarantee, wanted(claimant)), (total, claimants, k)


def test_all_is_divided_while_somebody_asks_for_it() -> None:
    for dice, total, claimants, k in worlds(1000):
        due = divide(total, claimants, k, dice.choice([1, 3, 7]))
        guaranteed = [min(c.guarantee, wanted(c)) for c in claimants]
        asked = sum(wanted(c) - g for c, g in zip(claimants, guaranteed, strict=True) if c.weight > 0)
        rest = max(0, total - sum(guaranteed))
        assert sum(due) == sum(guaranteed) + min(rest, asked), (total, claimants, k)


def test_the_order_of_the_events_does_not_matter() -> None:
    for dice, total, claimants, k in worlds(1000):
        shuffled = dice.sample(claimants, len(claimants))
        due = dict(zip([c.name for c in claimants], divide(total, claimants, k, 1), strict=True))
        assert divide(total, shuffled, k, 1) == [due[c.name] for c in shuffled], (total, claimants, k)


def one_changed(count: int, change: Callable[[random.Random, Claimant], Claimant]) -> Iterator[tuple[int, int, object]]:
    """What a claimant gets in a random world, what it gets once it is changed, and the world."""
    for dice, total, claimants, k in worlds(count, FINE):
        i = dice.randrange(len(claimants))
        changed = [*claimants]
        changed[i] = change(dice, claimants[i])
        yield divide(total, claimants, k, 1)[i], divide(total, changed, k, 1)[i], (total, claimants, k, changed[i])


def test_more_weight_never_gets_less() -> None:
    for before, after, world in one_changed(1500, lambda dice, c: replace(c, weight=c.weight + dice.randint(1, 5))):
        assert after >= before - 1, world


def test_a_queue_that_used_more_never_gets_more() -> None:
    def uses_more(dice: random.Random, claimant: Claimant) -> Claimant:
        return replace(claimant, usage_ppm=claimant.usage_ppm + dice.randint(1, 500_000))

    for before, after, world in one_changed(1500, uses_more):
        assert after <= before + 1, world


def test_a_queue_that_asks_for_more_never_gets_less() -> None:
    def asks_more(dice: random.Random, claimant: Claimant) -> Claimant:
        return replace(claimant, request=claimant.request + dice.randint(1, 8) * FINE)

    for before, after, world in one_changed(1500, asks_more):
        assert after >= before - 1, world


def test_of_all_divisions_among_equals_it_is_the_one_where_the_least_get_most() -> None:
    for seed in seeds(200):
        dice = random.Random(seed)
        wants, total = [dice.randint(0, 4) for _ in range(dice.randint(1, 4))], dice.randint(0, 12)
        claimants = [asks(request, created_ms=i) for i, request in enumerate(wants)]
        all_divisions = [d for d in product(*(range(w + 1) for w in wants)) if sum(d) == min(total, sum(wants))]
        best = max(sorted(division) for division in all_divisions)
        # Among those the grains go to the oldest.
        assert tuple(among(total, *claimants)) == max(d for d in all_divisions if sorted(d) == best)


def test_a_lower_priority_gets_only_what_higher_ones_leave() -> None:
    for _, total, claimants, k in worlds(1000, FINE, priorities=3):
        due = divide(total, claimants, k, FINE)
        for claimant, amount in zip(claimants, due, strict=True):
            if amount > min(claimant.guarantee, wanted(claimant)):
                for other, others in zip(claimants, due, strict=True):
                    if other.priority > claimant.priority and other.weight > 0:
                        assert others == wanted(other), (total, claimants, k)


def test_guarantees_come_before_weights_and_priorities() -> None:
    quiet = Claimant("quiet", guarantee=30, weight=1, request=50)
    loud = Claimant("loud", guarantee=0, weight=100, request=100, priority=9)
    assert among(40, quiet, loud) == [30, 10]


def test_guarantees_of_more_than_there_is_are_not_scaled_down_and_leave_no_rest() -> None:
    claimants = [Claimant(name, guarantee=30, request=50) for name in "ab"]
    assert among(40, *claimants, asks(10)) == [30, 30, 0]


def test_what_flooring_leaves_goes_to_the_largest_loss_then_to_the_oldest_then_by_name() -> None:
    assert among(10_000, asks(20_000, 3), asks(20_000, 4), grain=1000) == [4000, 6000]
    young, old = asks(9000, created_ms=2), asks(9000, created_ms=1)
    assert among(3000, young, old, grain=1000) == [1000, 2000]
    equals = [Claimant(name, request=9000) for name in "ba"]
    assert among(3000, *equals, grain=1000) == [1000, 2000]


def test_parts_of_gpus_are_allocated_where_that_is_all_that_is_asked_for_or_left() -> None:
    assert among(2000, asks(500), asks(9000), grain=1000) == [500, 1500]
    assert among(2500, asks(9000), asks(9000, created_ms=1), grain=1000) == [1500, 1000]
    assert among(3000, asks(1600, created_ms=1), asks(9000, created_ms=2), grain=1000) == [1600, 1400]


def test_no_weight_no_part() -> None:
    assert among(10, asks(10, weight=0), asks(10, weight=-3), asks(3)) == [0, 0, 3]
    assert among(10, Claimant("", guarantee=4, weight=0, request=10)) == [4]
    assert among(10) == []


def test_the_rest_is_divided_even_where_history_leaves_nobody_a_part() -> None:
    assert among(90, asks(90, 2, 10**7), asks(90, 1, 10**7), k=1000) == [60, 30]
    # A queue with a part comes first all the same.
    assert among(90, asks(90, 2, 10**7), asks(90, 1, 10**7), asks(40), k=1000) == [33, 17, 40]


def test_many_that_ask_for_little_do_not_hide_the_history_of_those_that_ask_for_much() -> None:
    little = [asks(1, created_ms=i) for i in range(8)]
    used_more, used_less = asks(100, usage_ppm=600_000), asks(100, usage_ppm=400_000)
    *_, more, less = among(108, *little, used_more, used_less, k=1000)
    # w is 50/108 for both, and 100 are divided by 2w - 0.6 and 2w - 0.4.
    assert (more, less) == (38, 62)


def test_history_below_nothing_is_none() -> None:
    assert among(100, asks(100, usage_ppm=300_000), asks(100), k=-500) == [50, 50]


@pytest.mark.parametrize("grain", [0, -1])
def test_a_grain_of_nothing_is_refused(grain: int) -> None:
    with pytest.raises(ValueError, match=f"grain of {grain}"):
        among(10, asks(10), grain=grain)


@pytest.mark.parametrize("total", [0, -5])
def test_nothing_is_divided_where_there_is_nothing(total: int) -> None:
    assert among(total, asks(10), Claimant("", guarantee=2, request=9), asks(-4)) == [0, 2, 0]
