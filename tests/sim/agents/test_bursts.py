# SPDX-License-Identifier: Apache-2.0
"""Workloads from a seed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dovetail.sim.agents.bursts import HOUR_MS, bursty, with_large


@pytest.mark.parametrize("load", [60, 130])
def test_the_load_is_exact_and_equal_for_all_agents(load: int) -> None:
    work = bursty(3, load, agents=5, nodes=5, hours=2)
    per_agent = [sum(task.work_gpu_ms for task in work.tasks if task.agent == agent) for agent in range(5)]
    assert per_agent == [40 * 2 * HOUR_MS * load // 100 // 5] * 5
    assert work.load() == pytest.approx(load / 100)
    assert [task.at_ms for task in work.tasks] == sorted(task.at_ms for task in work.tasks)
    assert all(0 <= task.at_ms < work.until_ms for task in work.tasks)


def test_a_seed_is_a_workload() -> None:
    assert bursty(1, 90, hours=1) == bursty(1, 90, hours=1)
    assert bursty(1, 90, hours=1).tasks != bursty(2, 90, hours=1).tasks


def test_no_gang_is_larger_than_an_equal_share_and_one_node_holds_those_that_need_one() -> None:
    work = bursty(1, 90, agents=32, hours=3)
    assert {task.least for task in work.tasks} <= {1, 2, 3, 4}
    assert all(task.least == task.most <= 8 for task in work.tasks if task.same_node)
    assert any(task.same_node for task in work.tasks)


def test_arrivals_come_in_bursts() -> None:
    """Most gaps of an agent are seconds, and some are as long as many means."""
    work = bursty(1, 90)
    times = [task.at_ms for task in work.tasks if task.agent == 0]
    gaps = sorted(later - at_ms for at_ms, later in pairwise(times))
    assert gaps[len(gaps) // 2] < 30_000
    assert gaps[-1] > 8 * sum(gaps) / len(gaps)


def test_large_gangs_come_every_few_hours() -> None:
    work = with_large(bursty(1, 90, agents=15, hours=9))
    large = [task for task in work.tasks if task.agent == 15]
    assert [task.at_ms // HOUR_MS for task in large] == [1, 4, 7]
    assert all(task.least == task.most == 60 for task in large)
    assert len(work.agents) == 16


def test_a_split_agent_keeps_its_tasks() -> None:
    work = bursty(1, 90, agents=4, hours=1)
    split = work.split(2, 3)
    assert [agent.team for agent in split.agents] == ["", "", "agent-2", "", "agent-2", "agent-2"]
    owned = [task for task in work.tasks if task.agent == 2]
    parts = [[task for task in split.tasks if task.agent == agent] for agent in (2, 4, 5)]
    assert [len(part) for part in parts] == [len(owned[i::3]) for i in range(3)]
    assert sum(task.work_gpu_ms for part in parts for task in part) == sum(task.work_gpu_ms for task in owned)
    assert split.teams() == ["agent-0", "agent-1", "agent-2", "agent-3", "agent-2", "agent-2"]
