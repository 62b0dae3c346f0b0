# SPDX-License-Identifier: Apache-2.0
"""How far a job is."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.jobs.finding import NamedJob
from dovetail.jobs.waiting import Goal, Outcome, failure, outcome, progress, started, wanted_pods, why_waiting
from tests.jobs.builders import indexed, job, pod

COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": "Job has reached its limit"}]}
REFUSED = {
    "type": "PodScheduled",
    "status": "False",
    "message": "NoNodeFits (NotYet): 0/4 nodes are available: 4 full.",
}


def of(*pods: Any, status: dict[str, Any] | None = None, wanted: int = 2) -> NamedJob:
    return job("job", "train", *pods, spec=indexed(wanted), status=status or {})


RUNS = [pod("a", "Running", "n"), pod("b", "Running", "n")]


@pytest.mark.parametrize(
    ("one", "is_started"),
    [
        (of(*RUNS), True),
        (of(RUNS[0]), False),
        (of(RUNS[0], pod("b")), False),
        (of(RUNS[0], pod("b", "Pending", "n")), False),
        (of(RUNS[0], pod("b", "Succeeded", "n")), True),
        (of(), False),
        (of(pod("a", "Failed", "n"), status=FAILED), True),
        (of(status=FAILED), False),
        (of(status=COMPLETE), True),
    ],
)
def test_a_job_has_started_when_all_that_it_wants_runs_or_ran(one: NamedJob, is_started: bool) -> None:
    assert started(one) is is_started


@pytest.mark.parametrize(
    ("one", "goal", "found"),
    [
        (of(*RUNS), "started", "reached"),
        (of(*RUNS), "done", ""),
        (of(*RUNS), "failed", ""),
        (of(status=COMPLETE), "done", "reached"),
        (of(status=COMPLETE), "failed", "missed"),
        (of(status=FAILED), "done", "missed"),
        (of(status=FAILED), "failed", "reached"),
        (of(status=FAILED), "started", "missed"),
    ],
)
def test_the_end_of_a_wait(one: NamedJob, goal: Goal, found: Outcome) -> None:
    assert outcome(one, goal) == found


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (of(wanted=4), 4),
        (job("job", "train", spec={"parallelism": 3, "completions": 2}), 2),
        (job("job", "train", spec={"parallelism": 3}), 3),
        (job("deployment", "serve", spec={"replicas": 5}), 5),
        (NamedJob("team-a", "g", None, None, (pod("a"), pod("b"))), 2),
        (job("jobset", "t", spec={"replicatedJobs": [{"name": "n", "template": {"spec": indexed(8)}}]}), 8),
    ],
)
def test_how_many_pods_a_job_wants(one: NamedJob, wanted: int) -> None:
    assert wanted_pods(one) == wanted


def test_progress_in_words() -> None:
    assert progress(of(pod("a"), pod("b", "Running", "n"))) == "1 pod waits, 1 pod runs"
    assert progress(of(*RUNS)) == "2 pods run"
    assert progress(of()) == "has no pods yet"
    assert progress(of(status=COMPLETE)) == "succeeded"
    assert progress(job("job", "t", spec={"suspend": True})) == "is suspended: it has no pods"
    assert progress(of(pod("a", "Running", "n", deleted=True))) == "1 pod ends"


def test_why_a_job_failed() -> None:
    bad = pod("a", "Failed", "n", containers={"main": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}})
    assert failure(of(bad, status=FAILED)) == "failed: pod a: exit code 137 (OOMKilled)"
    assert failure(of(status=FAILED)) == "failed: Job has reached its limit"
    gone = pod("a", "Failed", "n", containers={})
    assert failure(of(gone, gone, status=FAILED)) == "failed: pod a and 1 more: failed"


def test_why_a_job_waits() -> None:
    assert why_waiting(of(pod("a", conditions=[REFUSED]))).startswith("NoNodeFits (NotYet): 0/4 nodes")
    pulling = {"main": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    assert why_waiting(of(pod("a", "Pending", "n", containers=pulling))) == "ImagePullBackOff: no such image"
    assert why_waiting(of(*RUNS)) == ""


def test_pods_without_an_object_have_ended_when_all_of_them_have() -> None:
    def gang(*phases: str) -> NamedJob:
        return NamedJob("team-a", "g", None, None, tuple(pod(str(i), one, "n") for i, one in enumerate(phases)))

    assert [gang(*phases).ended for phases in (["Succeeded"] * 2, ["Succeeded", "Failed"], ["Failed", "Running"])] == [
        "succeeded", "failed", "",
    ]  # fmt: skip
