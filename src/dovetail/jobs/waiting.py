# SPDX-License-Identifier: Apache-2.0
"""How far a job is, and the wait until it has started or ended.

Rules
- A job has started when as many pods as its object wants run, or have ended, and none of its pods waits. A job that
  has ended has started, unless none of its pods ever ran.
- It has ended when its object reports so; pods without an object when all of them have ended.
- A job is read again and again, each time its object and its pods.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Literal

from dovetail.jobs.finding import Finder, NamedJob
from dovetail.jobs.kinds import at
from dovetail.jobs.pods import JobPod, PodState
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.gangs.owners import read

Goal = Literal["started", "done", "failed"]
Outcome = Literal["", "reached", "missed"]
"""Not known yet; the job is there; it never will be."""
_OVER: tuple[PodState, ...] = ("runs", "ends", "succeeded", "failed")
_IN_WORDS: dict[PodState, tuple[str, str]] = {
    "waits": ("waits", "wait"),
    "starts": ("starts", "start"),
    "runs": ("runs", "run"),
    "ends": ("ends", "end"),
    "succeeded": ("has succeeded", "have succeeded"),
    "failed": ("has failed", "have failed"),
}


def wanted_pods(job: NamedJob) -> int:
    """How many pods the job has when all of it runs, as far as its object declares that; else those that exist."""
    if job.kind is None or job.document is None:
        return len(job.pods)
    if job.kind.declares:
        size = read(OwnerRef(job.kind.resource, job.namespace, job.name), job.document).size
        if size is not None:
            return size.pods if size.pods is not None else sum(part.pods or part.min_count for part in size.parts)
    parallelism, completions = at(job.document, "spec.parallelism"), at(job.document, "spec.completions")
    if isinstance(parallelism, int):
        return min(parallelism, completions) if isinstance(completions, int) else parallelism
    replicas = at(job.document, "spec.replicas")
    return replicas if isinstance(replicas, int) else len(job.pods)


def started(job: NamedJob) -> bool:
    """Whether all of the job runs, or has run."""
    over = sum(pod.state in _OVER for pod in job.pods)
    if job.ended:
        return bool(over) or job.ended == "succeeded"
    waits = any(pod.state in ("waits", "starts") for pod in job.pods)
    return bool(over) and not waits and over >= wanted_pods(job)


def outcome(job: NamedJob, goal: Goal) -> Outcome:
    """Whether the job is where the wait is for."""
    if goal == "started":
        return "reached" if started(job) else "missed" if job.ended else ""
    if not job.ended:
        return ""
    return "reached" if (job.ended == "succeeded") == (goal == "done") else "missed"


def progress(job: NamedJob) -> str:
    """How far the job is, in words: `2 pods wait, 2 pods run`."""
    if job.ended:
        return "succeeded" if job.ended == "succeeded" else failure(job)
    if job.suspended:
        return "is suspended: it has no pods"
    counts = Counter(pod.state for pod in job.pods)
    parts = [
        f"{counts[state]} pod{'s' if counts[state] > 1 else ''} {words[counts[state] > 1]}"
        for state, words in _IN_WORDS.items() if counts[state]
    ]  # fmt: skip
    return ", ".join(parts) or "has no pods yet"


def failure(job: NamedJob) -> str:
    """Why the job failed, in words."""
    bad: list[JobPod] = [pod for pod in job.pods if pod.state == "failed"]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        return f"failed: pod {bad[0].name}{more}: {bad[0].how}"
    for one in at(job.document, "status.conditions") or () if job.document is not None else ():
        if isinstance(one, dict) and one.get("type") == "Failed" and one.get("status") == "True":
            return f"failed: {one.get('message') or one.get('reason')}"
    return "failed"


def why_waiting(job: NamedJob) -> str:
    """Why the first of its pods that do not run waits; "" if that is not known."""
    late = [pod for pod in job.pods if pod.state in ("waits", "starts")]
    return next((pod.why for pod in late if pod.why), "")


async def wait(
    finder: Finder, job: NamedJob, goal: Goal, every_s: float, shown: Callable[[NamedJob], None]
) -> tuple[NamedJob, Outcome]:
    """Wait until the job is there, or never will be. `shown` gets the job each time. Raises JobUnknown if it is
    deleted, and ApiError."""
    while True:
        shown(job)
        found = outcome(job, goal)
        if found:
            return job, found
        await asyncio.sleep(every_s)
        job = await finder.again(job)
