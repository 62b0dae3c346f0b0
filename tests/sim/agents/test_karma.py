# SPDX-License-Identifier: Apache-2.0
"""Karma's credits, on published cases and against the paper's loop, one unit at a time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.sim.agents.divided import max_min
from dovetail.sim.agents.karma import KarmaLedger, KarmaQuanta
from dovetail.sim.agents.tasks import AgentWorkload, BurstyAgent

HALF = Fraction(1, 2)


def test_three_users_whose_demands_differ_get_equal_totals() -> None:
    wanted = [(3, 2, 1), (3, 0, 3), (0, 3, 3), (2, 2, 4), (2, 3, 5)]
    karma = KarmaLedger(6, 3, HALF, 6)
    parts = [karma.divide(each) for each in wanted]
    assert parts == [[3, 2, 1], [3, 0, 3], [0, 3, 3], [2, 2, 2], [2, 3, 1]]
    assert [sum(column) for column in zip(*parts, strict=True)] == [10, 10, 10]
    assert karma.credits == [6, 6, 6]
    memoryless = [max_min(6, each, (1, 1, 1)) for each in wanted]
    assert [sum(column) for column in zip(*memoryless, strict=True)] == [10, 9, 11]


def test_a_user_that_waited_gets_more_in_its_burst() -> None:
    karma = KarmaLedger(12, 3, HALF, 100)
    quiet = [karma.divide((6, 6, 0)) for _ in range(4)]
    burst = [karma.divide((6, 6, 12)) for _ in range(2)]
    assert quiet == [[6, 6, 0]] * 4
    assert [parts[2] for parts in burst] == [8, 8]
    assert [max_min(12, (6, 6, 12), (1, 1, 1))[2] for _ in range(2)] == [4, 4]


def test_without_credits_nothing_is_borrowed() -> None:
    karma = KarmaLedger(4, 2, Fraction(1), 0)
    assert karma.divide((4, 0)) == [2, 0]
    assert KarmaLedger(4, 2, Fraction(0), 0).divide((4, 0)) == [2, 0]


def one_by_one(
    capacity: int, alpha: Fraction, credits: list[Fraction], wanted: list[int]
) -> tuple[list[int], list[Fraction]]:
    """The loop of the paper, with the sets made again for every unit."""
    n = len(wanted)
    guaranteed = int(alpha * capacity / n)
    shared = capacity - n * guaranteed
    credits = [credit + Fraction(shared, n) for credit in credits]
    parts = [min(want, guaranteed) for want in wanted]
    donated = [guaranteed - part for part in parts]
    while True:
        borrowers = [i for i in range(n) if parts[i] < wanted[i] and credits[i] >= 1]
        donors = [i for i in range(n) if donated[i]]
        if not borrowers or not (donors or shared):
            return parts, credits
        borrower = max(borrowers, key=lambda i: (credits[i], -i))
        if donors:
            donor = min(donors, key=lambda i: (credits[i], i))
            credits[donor] += 1
            donated[donor] -= 1
        else:
            shared -= 1
        credits[borrower] -= 1
        parts[borrower] += 1


@given(
    st.integers(1, 20),
    st.integers(0, 4),
    st.integers(0, 9),
    st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=1, max_size=6),
)
def test_credits_and_parts_are_those_of_the_loop(
    capacity: int, quarters: int, start: int, quanta: list[list[int]]
) -> None:
    alpha = Fraction(quarters, 4)
    karma, credits = KarmaLedger(capacity, 3, alpha, start), [Fraction(start)] * 3
    for wanted in quanta:
        parts, credits = one_by_one(capacity, alpha, credits, wanted)
        assert karma.divide(wanted) == parts
        assert karma.credits == credits


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=5))
def test_no_unit_is_left_that_somebody_wants(quanta: list[list[int]]) -> None:
    karma = KarmaLedger(10, 4, HALF, 1000)
    for wanted in quanta:
        assert sum(karma.divide(wanted)) == min(10, sum(wanted))


def test_weights_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no weights.*\[1, 2\]"):
        KarmaQuanta(AgentWorkload("", (4,), (BurstyAgent("a"), BurstyAgent("b", 2)), (), 1))
