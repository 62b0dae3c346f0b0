# SPDX-License-Identifier: Apache-2.0
"""Division in whole units, and what is taken back for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.sim.agents.divided import MaxMin, max_min
from dovetail.sim.agents.protocol import AgentAsks, AgentReturns, Grants, LeaseDemand, Revokes, Wanted
from dovetail.sim.fairness import due
from tests.sim.agents.small import small


@pytest.mark.parametrize(
    ("capacity", "wanted", "weights", "parts"),
    [
        (100, [100, 100], [1, 1], [50, 50]),
        (90, [100, 100], [2, 1], [60, 30]),
        (7, [5, 5, 5], [1, 1, 1], [3, 2, 2]),
        (10, [1, 20, 20], [1, 1, 1], [1, 5, 4]),
        (10, [3, 4], [1, 1], [3, 4]),
    ],
)
def test_max_min(capacity: int, wanted: list[int], weights: list[int], parts: list[int]) -> None:
    assert max_min(capacity, wanted, weights) == parts


@given(st.integers(0, 100), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=8))
def test_whole_units_are_near_the_exact_division(capacity: int, agents: list[tuple[int, int]]) -> None:
    wanted, weights = [want for want, _ in agents], [weight for _, weight in agents]
    parts = max_min(capacity, wanted, weights)
    assert sum(parts) == min(capacity, sum(wanted))
    exact = due(capacity, wanted, weights)
    for part, exactly, weight in zip(parts, exact, weights, strict=True):
        assert abs(part - exactly) <= max(weights) * len(weights)
        # No other that wants more has less for its weight with one unit more.
        assert all(
            part / weight <= (other + 1) / its + 1e-9 or not part
            for other, want, its in zip(parts, wanted, weights, strict=True)
            if other < want
        )


def ask(number: int, agent: int, least: int, most: int) -> AgentAsks:
    return AgentAsks(LeaseDemand(number, agent, 0, (Wanted(least, most, 1000),)))


def test_only_what_another_agent_lacks_is_taken_back() -> None:
    policy = MaxMin(small(nodes=(4, 4)))
    [alone] = policy.step(0, [ask(1, 0, 1, 8)])
    assert isinstance(alone, Grants)
    assert len(alone.devices) == 8
    [revoked] = policy.step(10, [ask(2, 1, 1, 2)])
    assert isinstance(revoked, Revokes)
    assert (revoked.lease, len(revoked.devices), revoked.deadline_ms) == (alone.lease, 2, 60_010)
    assert policy.step(11, []) == []
    [granted] = policy.step(20, [AgentReturns(0, alone.lease, revoked.devices)])
    assert isinstance(granted, Grants)
    assert (granted.demand, set(granted.devices)) == (2, set(revoked.devices))


def test_devices_on_their_way_to_a_gang_are_not_granted_to_others() -> None:
    policy = MaxMin(small())
    [first] = policy.step(0, [ask(1, 0, 1, 3)])
    [revoked] = policy.step(1, [ask(2, 1, 2, 2)])
    assert isinstance(first, Grants)
    assert isinstance(revoked, Revokes)
    assert len(revoked.devices) == 1
    # One device is free, for the gang that waits for a second one.
    assert policy.step(2, [ask(3, 1, 1, 1)]) == []
    [granted] = policy.step(3, [AgentReturns(0, first.lease, revoked.devices)])
    assert isinstance(granted, Grants)
    assert (granted.demand, len(granted.devices)) == (2, 2)


def test_what_a_gang_cannot_use_is_lent() -> None:
    policy = MaxMin(small(nodes=(5,)))
    rulings = policy.step(0, [ask(1, 0, 4, 4), ask(2, 1, 3, 3)])
    assert [(each.demand, len(each.devices)) for each in rulings if isinstance(each, Grants)] == [(1, 4)]
    assert len(rulings) == 1
