# SPDX-License-Identifier: Apache-2.0
"""Workloads from lists of jobs."""

from __future__ import annotations

import pytest

from dovetail.sim import sample
from dovetail.sim.agents.bursts import HOUR_MS
from dovetail.sim.agents.recorded import JOBS, recorded
from dovetail.sim.traces.jobs import read_jobs

SAMPLE = read_jobs(sample.BURSTS, 8)


def test_every_agent_has_its_part_of_the_load() -> None:
    work = recorded(SAMPLE, seed=1, load_percent=80, hours=6)
    due = 128 * 6 * HOUR_MS * 80 // 100 // 16
    for agent in range(16):
        tasks = [task for task in work.tasks if task.agent == agent]
        assert len(tasks) == JOBS
        assert sum(task.work_gpu_ms for task in tasks) == pytest.approx(due, rel=0.001)
        assert (tasks[0].at_ms, tasks[-1].at_ms) == (0, work.until_ms - 1)
    assert work.load() == pytest.approx(0.8, rel=0.001)


def test_bursts_stay_in_proportion() -> None:
    work = recorded(SAMPLE, seed=0, load_percent=80)
    name, jobs = work.agents[0].name.split("-")[0], [task.at_ms for task in work.tasks if task.agent == 0]
    listed = [job.at_ms for job in SAMPLE if job.pods[0].namespace == name]
    spans = {
        first
        for first in range(len(listed) - JOBS + 1)
        if all(
            abs((at_ms - listed[first]) * work.until_ms / (listed[first + JOBS - 1] - listed[first]) - scaled) < 2
            for at_ms, scaled in zip(listed[first : first + JOBS], jobs, strict=True)
        )
    }
    assert len(spans) == 1


def test_jobs_larger_than_a_share_are_elastic() -> None:
    work = recorded(SAMPLE, seed=0, load_percent=80, agents=32)
    large = [task for task in work.tasks if task.most > 4]
    assert large
    assert all(task.least == 4 and not task.same_node for task in large)
    assert all(task.least == task.most for task in work.tasks if task.most <= 4)


def test_a_seed_is_a_workload() -> None:
    assert recorded(SAMPLE, 1, 80) == recorded(SAMPLE, 1, 80)
    assert recorded(SAMPLE, 1, 80).tasks != recorded(SAMPLE, 2, 80).tasks


def test_a_short_list_is_refused() -> None:
    with pytest.raises(ValueError, match="80 jobs with a run time: use a longer list"):
        recorded(SAMPLE[:79], 1, 80)
