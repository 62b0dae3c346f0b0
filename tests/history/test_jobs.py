# SPDX-License-Identifier: Apache-2.0
"""Jobs of the past from the records of their pods."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.history.jobs import past_jobs
from dovetail.history.records import HOUR_MS, PodRecord

NOW_MS = 100 * HOUR_MS


def pod(name: str, at_ms: int, bound_ms: int = 0, ended_ms: int = 0, outcome: Any = "", **more: Any) -> PodRecord:
    return PodRecord(
        f"{name}-{at_ms}", "team", name, more.pop("job", "train"), gpu_milli=2000, node=f"n-{name}",
        submitted_ms=at_ms, bound_ms=bound_ms, started_ms=bound_ms and bound_ms + 5, ended_ms=ended_ms,
        outcome=outcome, **more,
    )  # fmt: skip


def test_a_job_has_the_times_of_all_its_pods() -> None:
    pods = [
        pod("a", 100, 200, 900, "Completed", restarts=1),
        pod("b", 110, 220, 1000, "Failed", code="OOMKilled", restarts=2),
    ]
    (job,) = past_jobs(pods, NOW_MS)
    assert (job.job, job.outcome, job.code, job.pods) == ("team/train", "Failed", "OOMKilled", 2)
    assert (job.submitted_ms, job.waited_ms, job.bound_ms, job.ran_ms, job.ended_ms) == (100, 100, 200, 800, 1000)
    assert job.gpu_ms == 2000 * 700 + 2000 * 780
    assert job.nodes == ("n-a", "n-b")
    assert job.restarts == 3
    assert job.steps == ()


def test_a_preempted_job_goes_on_with_its_next_pods() -> None:
    pods = [pod("a", 100, 200, 900, "Preempted"), pod("a", 901, 2000, 3000, "Completed")]
    (job,) = past_jobs(pods, NOW_MS)
    assert (job.outcome, job.preempted, job.pods, job.gpus_milli) == ("Completed", 1, 2, 2000)
    assert (job.waited_ms, job.ran_ms) == (100, 2800)


@pytest.mark.parametrize(
    ("outcome", "after_ms", "jobs"),
    [
        ("Completed", 0, 2), ("Completed", 10, 2), ("Deleted", 10, 2), ("Preempted", 10, 1), ("Failed", 10, 1),
        ("Failed", HOUR_MS, 2), ("Lost", HOUR_MS - 1, 1),
    ],
)  # fmt: skip
def test_a_name_is_used_again(outcome: str, after_ms: int, jobs: int) -> None:
    pods = [pod("a", 100, 200, 900, outcome), pod("a", 900 + after_ms, 900 + after_ms)]
    assert len(past_jobs(pods, NOW_MS)) == jobs


def test_pods_that_ended_before_others_began_are_of_the_job_while_one_runs() -> None:
    pods = [pod("a", 100, 200, 900, "Completed"), pod("b", 100, 200), pod("c", 5000)]
    (job,) = past_jobs(pods, NOW_MS)
    assert (job.outcome, job.ended_ms, job.ran_ms) == ("Running", 0, NOW_MS - 200)


def test_a_job_that_waits_has_not_run() -> None:
    (job,) = past_jobs([pod("a", 100)], NOW_MS, steps=True)
    assert (job.outcome, job.waited_ms, job.ran_ms, job.gpu_ms) == ("Waiting", NOW_MS - 100, None, 0)
    (step,) = job.steps
    assert (step.outcome, step.waited_ms, step.startup_ms, step.ran_ms) == ("Waiting", NOW_MS - 100, None, None)


def test_steps_have_the_time_of_each() -> None:
    (job,) = past_jobs([pod("a", 100, 200, 900, "Completed")], NOW_MS, steps=True)
    (step,) = job.steps
    assert (step.waited_ms, step.startup_ms, step.ran_ms) == (100, 5, 695)


def test_the_latest_job_comes_first() -> None:
    pods = [pod("a", 100, job="old"), pod("b", 300, job="new"), pod("c", 300, job="also")]
    assert [job.job for job in past_jobs(pods, NOW_MS)] == ["team/also", "team/new", "team/old"]


def test_an_end_without_an_outcome_is_lost_and_no_error() -> None:
    (job,) = past_jobs([pod("a", 100, 200, 900), pod("b", 100, 200, 900, "Completed")], NOW_MS, steps=True)
    assert (job.outcome, [step.outcome for step in job.steps]) == ("Lost", ["Lost", "Completed"])
