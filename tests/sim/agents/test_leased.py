# SPDX-License-Identifier: Apache-2.0
"""The core's own broker as a policy."""

import pytest

from dovetail.sim.agents.bursts import bursty
from dovetail.sim.agents.leased import Leased
from dovetail.sim.agents.tasks import AgentTask, AgentWorkload, BurstyAgent
from dovetail.sim.agents.world import AgentWorld

MINUTE_MS = 60_000


def task(agent: int, at_ms: int, gpus: int, minutes: int, least: int = 0) -> AgentTask:
    return AgentTask(agent, at_ms, least or gpus, gpus, gpus * minutes * MINUTE_MS, 1000, 1000)


def world(*tasks: AgentTask, gpus: int = 8) -> AgentWorld:
    agents = tuple([BurstyAgent(f"a{number}") for number in range(1 + max(one.agent for one in tasks))])
    workload = AgentWorkload("w", (gpus,), agents, tasks, 60 * MINUTE_MS)
    return AgentWorld(workload, Leased(workload))


def test_a_gang_waits_for_the_end_of_the_leases_that_are_in_its_way_and_no_longer() -> None:
    small = task(2, 2 * MINUTE_MS, 4, 30), task(2, 2 * MINUTE_MS, 4, 5)
    runs = world(task(0, 0, 4, 10), task(1, MINUTE_MS, 8, 5), *small).run().runs
    assert runs[1].started_ms == runs[0].ended_ms
    assert runs[3].started_ms == 2 * MINUTE_MS
    assert runs[2].started_ms is not None and runs[1].ended_ms is not None
    assert runs[2].started_ms >= runs[1].ended_ms


def test_of_those_behind_the_first_the_agent_that_has_used_less_comes_first() -> None:
    waiting = task(0, MINUTE_MS, 8, 1), task(0, 2 * MINUTE_MS, 8, 1), task(1, 3 * MINUTE_MS, 8, 1)
    starts = [run.started_ms for run in world(task(0, 0, 8, 10), *waiting).run().runs]
    first, second, other = (start for start in starts[1:] if start is not None)
    assert first < other < second


def test_a_task_that_began_with_few_gets_more_when_they_are_free() -> None:
    runs = world(task(0, 0, 4, 10), task(0, 0, 2, 300), task(1, MINUTE_MS, 8, 60, least=2)).run().runs
    assert runs[2].started_ms == MINUTE_MS
    assert runs[2].ended_ms is not None and runs[2].ended_ms < 100 * MINUTE_MS


@pytest.mark.slow
def test_the_same_workload_gives_the_same_result() -> None:
    workload = bursty(1, 95, agents=4, nodes=4, hours=1)
    first, second = (AgentWorld(workload, Leased(workload)).run() for _ in range(2))
    assert [run.ended_ms for run in first.runs] == [run.ended_ms for run in second.runs]
