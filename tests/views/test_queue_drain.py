# SPDX-License-Identifier: Apache-2.0
"""What runs in a queue that is stopped, and when nothing does any more."""

from __future__ import annotations

import pytest

from dovetail.core.checkpoint import take
from dovetail.core.reasons import Sure
from dovetail.views.names import JobNotFound
from dovetail.views.queue_drain import queue_drain_plan
from tests.views.queued import HOUR, NOW, node, pod, queue, state_of


def test_jobs_end_by_their_run_times_and_the_last_one_empties_the_queue() -> None:
    state = state_of(
        node("a"), node("b"), queue("t"), queue("x", parent="t"), queue("y"),
        pod("one", 4, "a", runs_ms=2 * HOUR, queue="x"), pod("two", 4, "b", runs_ms=HOUR, queue="x"),
        pod("other", 4, "b", queue="y"), pod("waits", 4, queue="x"),
    )  # fmt: skip
    before = take(state)
    plan = queue_drain_plan(state, "t", "Hold", NOW)
    assert take(state) == before
    assert [(job.job, job.queue, job.gpus_milli, job.what) for job in plan.jobs] == [
        ("ns/two", "x", 4000, "ends"), ("ns/one", "x", 4000, "ends"),
    ]  # fmt: skip
    assert (plan.empty.sure, plan.empty.start_ms, plan.empty.basis) == (Sure.KNOWN, NOW + 2 * HOUR, "when ns/one ends")
    assert plan.waiting == 1


def test_of_a_job_without_a_run_time_the_end_is_not_known() -> None:
    state = state_of(node("a"), queue("x"), pod("one", 4, "a", queue="x"))
    plan = queue_drain_plan(state, "x", "Hold", NOW)
    assert [(job.what, job.left.basis) for job in plan.jobs] == [("runs on", "it declares no run time")]
    assert plan.empty.start_ms == 0 and plan.empty.basis.startswith("it is not known when ns/one ends")


def test_jobs_are_evicted_except_those_that_must_not_be_preempted() -> None:
    state = state_of(
        node("a"), queue("x", 8), pod("one", 4, "a", since_ms=HOUR, queue="x", owner="ns/o"),
        pod("fixed", 4, "a", since_ms=HOUR, queue="x", preemptible=False),
    )  # fmt: skip
    plan = queue_drain_plan(state, "x", "HoldAndDrain", NOW)
    assert [(job.job, job.what) for job in plan.jobs] == [("ns/one", "is evicted"), ("ns/fixed", "runs on")]
    assert plan.jobs[1].left.basis == "it must not be preempted, and declares no run time"


def test_a_job_that_leaves_for_another_queue_is_evicted() -> None:
    state = state_of(
        node("a"), queue("x"), queue("y", 8), pod("one", 8, "a", since_ms=HOUR, queue="x", owner="ns/o"),
        pod("claims", 8, queue="y"),
    )  # fmt: skip
    plan = queue_drain_plan(state, "x", "Hold", NOW)
    assert [(job.job, job.what, job.left.basis) for job in plan.jobs] == [("ns/one", "is evicted", "it is evicted")]


def test_a_queue_without_jobs_is_idle_now_and_one_that_does_not_exist_is_refused() -> None:
    state = state_of(node("a"), queue("x"))
    plan = queue_drain_plan(state, "x", "Hold", NOW)
    assert (plan.jobs, plan.empty.start_ms, plan.waiting) == ((), NOW, 0)
    with pytest.raises(JobNotFound, match="queue z does not exist"):
        queue_drain_plan(state, "z", "Hold", NOW)
