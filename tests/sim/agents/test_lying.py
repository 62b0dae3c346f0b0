# SPDX-License-Identifier: Apache-2.0
"""Agents that lie: what each does, that no policy breaks by it, and the statistic of what it gains."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.sim.agents.lying import CHURN_MS, KEEP_MS, LIARS, PARTS, WITHHOLD_MS, gain, interval
from dovetail.sim.agents.protocol import AgentAsks, AgentReturns, AgentWithdraws, Grants, Idles, Refuses
from dovetail.sim.agents.sharing import SHARING
from dovetail.sim.agents.tasks import AgentTask
from dovetail.sim.agents.world import AgentWorld
from tests.sim.agents.small import TASKS, Scripted, Watched, check_accounts, gang, hears, small


def lying(kind: str, policy: Scripted, *tasks: AgentTask, idle_ms: int = 10**9) -> AgentWorld:
    world = AgentWorld(small(*tasks, nodes=(8,), agents=1), policy, {0: LIARS[kind]}, idle_ms)
    world.run()
    return world


def asked(policy: Scripted) -> list[tuple[int, int]]:
    """When, and for how many GPUs at most."""
    return [(at_ms, each.demand.most) for at_ms, each in hears(policy, AgentAsks) if isinstance(each, AgentAsks)]


def test_inflating_uses_the_rest_for_other_tasks_and_returns_what_is_left() -> None:
    policy = Scripted((AgentAsks, Grants(1, 0, 0, (0, 1, 2, 3, 4, 5, 6, 7))))
    world = lying("inflate", policy, gang(0, 0, 4, 9_000), gang(0, 0, 3, 5_000))
    assert asked(policy) == [(0, 8), (0, 6)]
    assert [run.ended_ms for run in world.runs] == [9_000, 5_000]
    returned = [(at_ms, each.devices) for at_ms, each in hears(policy, AgentReturns) if isinstance(each, AgentReturns)]
    assert returned == [(0, (7,)), (5_000, (4, 5, 6)), (9_000, (0, 1, 2, 3))]


def test_inflating_asks_for_the_truth_when_it_is_refused() -> None:
    policy = Scripted((AgentAsks, Refuses(0, 0, "too many")), (AgentAsks, Grants(1, 0, 1, (0, 1, 2))))
    world = lying("inflate", policy, gang(0, 0, 3, 5_000))
    assert asked(policy) == [(0, 6), (0, 3)]
    assert world.runs[0].ended_ms == 5_000


def test_churning_asks_again_and_again() -> None:
    policy = Scripted((AgentAsks, None), (AgentAsks, None), (AgentAsks, Grants(1, 0, 2, (0, 1, 2))))
    world = lying("churn", policy, gang(0, 0, 3, 5_000))
    assert [at_ms for at_ms, _ in asked(policy)] == [0, CHURN_MS, 2 * CHURN_MS]
    assert [at_ms for at_ms, _ in hears(policy, AgentWithdraws)][:2] == [CHURN_MS, 2 * CHURN_MS]
    assert world.runs[0].ended_ms == 2 * CHURN_MS + 5_000


def test_withholding_asks_for_all_at_once() -> None:
    policy = Scripted((AgentAsks, Grants(1, 0, 0, (0, 1))), (AgentAsks, Grants(2, 0, 1, (2, 3, 4))))
    world = lying("withhold", policy, gang(0, 1_000, 2, 5_000), gang(0, 70_000, 3, 5_000))
    assert asked(policy) == [(WITHHOLD_MS, 2), (WITHHOLD_MS, 3)]
    assert [run.ended_ms for run in world.runs] == [WITHHOLD_MS + 5_000] * 2


def test_cancelling_takes_less_than_all_only_the_fourth_time() -> None:
    elastic = AgentTask(0, 0, 1, 4, 8_000)
    policy = Scripted(*((AgentAsks, Grants(each + 1, 0, each, (0, 1), settled=True)) for each in range(4)))
    world = lying("cancel", policy, elastic)
    assert asked(policy) == [(0, 4)] * 4
    assert world.runs[0].ended_ms == 4_000


def test_hoarding_keeps_devices_for_the_next_task() -> None:
    policy = Scripted((AgentAsks, Grants(1, 0, 0, (0, 1, 2))))
    world = lying("hoard", policy, gang(0, 0, 3, 5_000), gang(0, 70_000, 2, 5_000), idle_ms=60_000)
    assert [run.ended_ms for run in world.runs] == [5_000, 75_000]
    assert [at_ms for at_ms, _ in hears(policy, AgentWithdraws)] == [70_000]
    assert hears(policy, AgentReturns) == []
    assert hears(policy, Idles) == []
    assert world.outcome.uses[0].idle == 3 * 65_000 + 5_000 + 3 * 25_000


def test_hoarding_ends_after_a_while() -> None:
    policy = Scripted((AgentAsks, Grants(1, 0, 0, (0, 1, 2))), (AgentAsks, Grants(2, 0, 1, (3, 4, 5, 6))))
    lying("hoard", policy, gang(0, 0, 3, 5_000), gang(0, 50_000, 4, 1_000_000), idle_ms=300_000)
    returned = [at_ms for at_ms, _ in hears(policy, AgentReturns)]
    assert returned == [5_000 + KEEP_MS]


@pytest.mark.slow
@settings(max_examples=60)
@given(TASKS, st.sampled_from(sorted(SHARING)), st.sampled_from(sorted(LIARS)))
def test_lies_break_no_policy(tasks: list[AgentTask], policy: str, kind: str) -> None:
    work = small(*tasks, nodes=(4, 2), agents=3, until_ms=61_000)
    watched = Watched(SHARING[policy](work))
    outcome = AgentWorld(work, watched, {0: LIARS[kind], 1: LIARS[kind]}).run()
    check_accounts(outcome)


def test_a_team_of_four_gains_under_max_min_of_agents_and_not_under_static_parts() -> None:
    """8 GPUs, and two agents that always want all: halves, or four fifths for the four parts of one."""
    tasks = [AgentTask(agent, 0, 1, 8, 8_000_000) for agent in range(2) for _ in range(PARTS)]
    work = small(*tasks, nodes=(8,))
    gains = {}
    for policy in ("static", "max-min"):
        truth = AgentWorld(work, SHARING[policy](work)).run()
        gains[policy] = gain(truth, SHARING[policy], "split", 0)
    # Of 8 GPUs, 5 agents have 2, 2, 2, 1 and 1: the first and the three last are one team.
    assert gains == {"static": 0, "max-min": pytest.approx(0.5, abs=0.01)}


def test_the_interval_is_students() -> None:
    mean, low, high = interval([1, 2, 3])
    assert (mean, low, high) == pytest.approx((2, 2 - 2.4844, 2 + 2.4844), abs=1e-3)
    assert interval([5, 5, 5, 5]) == (5, 5, 5)
