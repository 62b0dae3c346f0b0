# SPDX-License-Identifier: Apache-2.0
"""The world of agents: cases by hand, and what is true of every run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.sim.agents.outcome import AgentOutcome
from dovetail.sim.agents.protocol import (
    AgentAccepts,
    AgentAsks,
    AgentRenews,
    BrokenProtocol,
    Extends,
    Grants,
    Idles,
    Message,
    Proposal,
    Proposes,
    Refuses,
    RefusesRenewal,
    Revokes,
    Ruling,
    TakenBack,
)
from dovetail.sim.agents.sharing import SHARING
from dovetail.sim.agents.tasks import AgentTask, AgentWorkload
from dovetail.sim.agents.world import AgentWorld
from tests.sim.agents.small import TASKS, Scripted, Watched, check_accounts, gang, hears, small


def ends(outcome: AgentOutcome) -> list[int | None]:
    return [run.ended_ms for run in outcome.runs]


def test_two_agents_by_hand() -> None:
    """4 GPUs. Agent 0 asks for all of them for 10 s of work each; agent 1 for 2 GPUs for 4 s, one second later."""
    elastic = AgentTask(0, 0, 1, 4, 40_000, checkpoint_ms=500, restart_ms=1_000)
    work = small(elastic, gang(1, 1_000, 2, 4_000), until_ms=10_000)
    # First come, first served: 0 to 10 s, then 10 to 14 s.
    assert ends(AgentWorld(work, SHARING["fifo"](work)).run()) == [10_000, 14_000]
    # Halves: 20 s on 2 GPUs; 1 to 5 s.
    static = AgentWorld(work, SHARING["static"](work)).run()
    assert ends(static) == [20_000, 5_000]
    # Max-min: saved from 1 to 1.5 s, with 4 of 40 GPU-seconds done. Then agent 1 until 5.5 s; agent 0 starts again in a
    # second, and at 5.5 s has done 10 GPU-seconds. It takes the other two GPUs, with a pause until 6.5 s, and has 30
    # GPU-seconds left, for 4 GPUs.
    divided = AgentWorld(work, SHARING["max-min"](work)).run()
    assert ends(divided) == [14_000, 5_500]
    first, second = divided.runs
    assert (first.overhead, first.lost, first.starts) == (4 * 500 + 2 * 1_000 + 4 * 1_000, 0, 3)
    assert second.overhead == 0
    assert divided.useful == [4_000 + 6_000 + 4 * 3_500, 8_000]
    figures = divided.figures([10_000, 4_000])
    assert figures["utilisation"] == pytest.approx(32 / 40)
    assert figures["completion_s"] == pytest.approx((14 + 4.5) / 2)
    assert figures["worst_slowdown"] == pytest.approx(1.4)
    held = [4 * 1_500 + 2 * 4_000 + 4 * 4_500, 2 * 4_000]
    assert [use.held_in_window for use in divided.uses] == held
    assert figures["jain"] == pytest.approx(sum(held) ** 2 / (2 * sum(each**2 for each in held)))
    assert static.figures([10_000, 4_000])["free_while_wanted"] == 0


def test_a_gang_larger_than_its_part_is_refused() -> None:
    work = small(gang(0, 0, 3, 1_000), gang(1, 0, 2, 1_000))
    outcome = AgentWorld(work, SHARING["static"](work)).run()
    assert [run.refused for run in outcome.runs] == [True, False]
    figures = outcome.figures([1_000, 1_000])
    assert (figures["refused"], figures["completion_s"], figures["worst_slowdown"]) == (1, None, None)


def test_a_checkpoint_that_takes_longer_than_the_grace_is_not_begun() -> None:
    work = small(gang(0, 0, 4, 300_000, checkpoint_ms=61_000, restart_ms=7), gang(1, 1_000, 2, 9_000))
    outcome = AgentWorld(work, SHARING["max-min"](work)).run()
    assert outcome.runs[0].lost == 4 * 1_000
    assert ends(outcome) == [10_000 + 7 + 300_000, 10_000]


@pytest.mark.slow
@settings(max_examples=60)
@given(TASKS, st.sampled_from(sorted(SHARING)))
def test_all_work_is_done_once_and_all_gpu_time_is_accounted_for(tasks: list[AgentTask], policy: str) -> None:
    work = small(*tasks, nodes=(4, 2), agents=3, until_ms=61_000)
    watched = Watched(SHARING[policy](work))
    outcome = AgentWorld(work, watched).run()
    assert watched.lease_of == {}
    assert watched.most_held <= 6
    check_accounts(outcome)
    again = AgentWorld(work, SHARING[policy](work)).run()
    assert ends(again) == ends(outcome)


def one(task: AgentTask) -> AgentWorkload:
    return small(task, agents=1)


def test_a_negotiated_lease_is_renewed_and_then_ends() -> None:
    """4 GPUs for 20 s are proposed for 10 s, and 2 GPUs at once for 40 s; the first ends earlier. Renewed by 3 s, then
    refused, the task is saved until the end, and what is left is asked for again."""
    proposals = (Proposal(1, 4, 0, 10_000), Proposal(2, 2, 0, 40_000))
    policy = Scripted(
        (AgentAsks, Proposes(0, 0, proposals, 5_000)),
        (AgentAccepts, Grants(1, 0, 0, (0, 1, 2, 3), end_ms=10_000, settled=True)),
        (AgentRenews, Extends(1, 0, 13_000)),
        (AgentRenews, RefusesRenewal(1, 0, "another waits")),
        (AgentAsks, Grants(2, 0, 1, (0, 1, 2, 3), end_ms=90_000, settled=True)),
    )
    work = one(AgentTask(0, 0, 2, 4, 80_000, checkpoint_ms=1_000, restart_ms=500))
    outcome = AgentWorld(work, policy).run()
    assert hears(policy, AgentAccepts) == [(0, AgentAccepts(0, 0, 1))]
    # At 70 % of the term 10 s are missing; of the 6 s from then on, at 70 % again, 7 s.
    assert hears(policy, AgentRenews) == [(7_000, AgentRenews(0, 1, 10_000)), (11_200, AgentRenews(0, 1, 7_000))]
    asked = [message.demand for _, message in hears(policy, AgentAsks) if isinstance(message, AgentAsks)]
    assert [demand.at_ms for demand in asked] == [0, 13_000]
    assert [(each.most, each.ms) for each in asked[0].wanted] == [(4, 21_000), (2, 41_000)]
    assert [(each.most, each.ms) for each in asked[1].wanted] == [(4, 9_500), (2, 17_500)]
    assert (outcome.runs[0].lost, outcome.runs[0].overhead) == (0, 4 * 1_500)
    assert ends(outcome) == [13_000 + 500 + 8_000]


def test_a_lease_that_ends_without_time_for_a_checkpoint_takes_the_work() -> None:
    policy = Scripted(
        (AgentAsks, Grants(1, 0, 0, (0, 1), settled=True)),
        (AgentAsks, Grants(2, 0, 1, (2, 3), settled=True)),
        wake_ms=4_000,
    )

    def revoking(now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        rulings = Scripted.step(policy, now_ms, messages)
        if now_ms == 4_000 and not messages:
            policy._wake_ms = None
            return [*rulings, Revokes(1, 0, (1,), 4_900, "a test")]
        return rulings

    policy.step = revoking  # type: ignore[method-assign]
    work = one(gang(0, 0, 2, 10_000, checkpoint_ms=1_000, restart_ms=2_000))
    outcome = AgentWorld(work, policy).run()
    assert outcome.runs[0].lost == 8_000
    assert ends(outcome) == [4_000 + 2_000 + 10_000]


def test_a_device_that_is_not_returned_is_taken_back() -> None:
    """The checkpoint is under way when the lease is revoked a second time, by an earlier deadline."""
    policy = Scripted(
        (AgentAsks, Grants(1, 0, 0, (0, 1), end_ms=6_000, settled=True)),
        (AgentAsks, Grants(2, 0, 1, (2, 3), settled=True)),
        wake_ms=5_500,
    )

    def revoking(now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        rulings = Scripted.step(policy, now_ms, messages)
        if now_ms == 5_500 and policy._wake_ms is not None:
            policy._wake_ms = None
            rulings.append(Revokes(1, 0, (1,), 5_700, "a test"))
        return rulings

    policy.step = revoking  # type: ignore[method-assign]
    outcome = AgentWorld(one(gang(0, 0, 2, 10_000, checkpoint_ms=1_000)), policy).run()
    assert hears(policy, TakenBack) == [(5_700, TakenBack(0, 1, (1,)))]
    assert outcome.runs[0].lost == 2 * 5_000
    assert ends(outcome) == [15_700]


def test_idle_devices_are_reported() -> None:
    """Three devices for a task that uses two: an agent that keeps them would be seen. A truthful one returns it."""
    policy = Scripted((AgentAsks, Grants(1, 0, 0, (0, 1, 2), settled=True)))
    outcome = AgentWorld(one(gang(0, 0, 2, 10_000)), policy, idle_ms=1_000).run()
    assert hears(policy, Idles) == []
    assert outcome.uses[0].idle == 0


@pytest.mark.parametrize(
    ("ruling", "message"),
    [
        (Grants(1, 0, 7, (0, 1)), "no such open demand"),
        (Grants(1, 1, 0, (0, 1)), "no such open demand"),
        (Grants(1, 0, 0, (0,)), "1 devices, and 2 are the least"),
        (Grants(1, 0, 0, (0, 0)), "each once"),
        (Grants(1, 0, 0, ()), "each once"),
        (Grants(1, 0, 0, (3, 4)), "not on one node"),
        (Revokes(1, 0, (0,), 10, "none"), "device 0 is not in the lease"),
    ],
)
def test_a_policy_that_breaks_the_protocol_is_stopped(ruling: Ruling, message: str) -> None:
    task = AgentTask(0, 0, 2, 2, 2_000, same_node=True)
    with pytest.raises(BrokenProtocol, match=message):
        AgentWorld(small(task, nodes=(4, 4)), Scripted((AgentAsks, ruling))).run()


def test_a_device_in_two_leases_is_found() -> None:
    policy = Scripted((AgentAsks, Grants(1, 0, 0, (0, 1))), (AgentAsks, Grants(2, 1, 1, (1, 2))))
    with pytest.raises(BrokenProtocol, match="in another lease"):
        AgentWorld(small(gang(0, 0, 2, 1_000), gang(1, 0, 2, 1_000)), policy).run()


def test_a_policy_that_forgets_a_task_is_found() -> None:
    with pytest.raises(BrokenProtocol, match="1 tasks wait, the first is 0"):
        AgentWorld(one(gang(0, 0, 2, 1_000)), Scripted()).run()


def test_a_refused_task_is_dropped() -> None:
    outcome = AgentWorld(one(gang(0, 0, 2, 1_000)), Scripted((AgentAsks, Refuses(0, 0, "never")))).run()
    assert [run.refused for run in outcome.runs] == [True]
