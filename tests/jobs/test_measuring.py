# SPDX-License-Identifier: Apache-2.0
"""Which output of a job that measures is its result, and that no job is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dovetail.jobs.finding import JobUnknown, NamedJob
from dovetail.jobs.kinds import JOB_KINDS
from dovetail.jobs.measuring import MeasureAnswer, MeasureJob, MeasureRequest, measure
from dovetail.jobs.pods import JobPod, JobPodStatus
from dovetail.kube.api.errors import KubeError
from dovetail.kube.objects.base import ObjectMeta

REQUEST = MeasureRequest("ns", "image", wait_s=5)
_BATCH = next(kind for kind in JOB_KINDS if kind.resource.plural == "jobs" and kind.resource.group == "batch")


class Jobs:
    """Jobs whose two pods have these phases, one after the other."""

    def __init__(self, *phases: tuple[str, str], ended: str = "") -> None:
        self.phases, self.ended = list(phases), ended
        self.created: list[str] = []
        self.left: set[str] = set()
        self.refused: KubeError | None = None
        self.lost: KubeError | None = None
        self.created_half = False

    async def create(self, documents: list[dict[str, Any]], *_: object, **__: object) -> None:
        if self.refused is not None:
            raise self.refused
        self.created.append(documents[0]["metadata"]["name"])
        self.left.add(self.created[-1])
        if self.created_half:
            await asyncio.sleep(60)

    async def find(self, namespace: str, name: str, _: str) -> NamedJob:
        if name not in self.left:
            raise JobUnknown(name)
        phases = self.phases[0]
        pods = [
            JobPod(ObjectMeta(f"{name}-{i}-x", namespace), status=JobPodStatus(one)) for i, one in enumerate(phases)
        ]
        status = {"conditions": [{"type": self.ended, "status": "True", "message": "in time"}]} if self.ended else {}
        return NamedJob(namespace, name, _BATCH, {"status": status}, tuple(pods))

    async def again(self, job: NamedJob) -> NamedJob:
        if self.lost is not None:
            raise self.lost
        self.phases = self.phases[1:] or self.phases
        return await self.find(job.namespace, job.name, "job")

    async def read_logs(self, _: object, __: object, write: Any) -> None:
        write(None, b"a table\n")

    async def cancel(self, job: NamedJob) -> None:
        self.left.discard(job.name)


async def answers(jobs: Jobs, count: int = 1) -> list[MeasureAnswer]:
    found: list[MeasureAnswer] = []
    cluster: Any = jobs
    named = [MeasureJob(f"m{i}", ("a", "b"), 8) for i in range(count)]
    await measure(cluster, named, REQUEST, 0.01, lambda _, answer: found.append(answer))
    return found


@pytest.mark.parametrize("then", [("Succeeded", "Running"), ("Succeeded", "Failed")])
async def test_the_output_counts_once_the_first_pod_has_succeeded(then: tuple[str, str]) -> None:
    jobs = Jobs(("Pending", "Pending"), ("Running", "Running"), then)
    assert await answers(jobs) == [MeasureAnswer("a table")]
    assert not jobs.left


async def test_of_a_job_that_failed_no_output_counts_as_it_may_end_before_the_large_messages() -> None:
    (answer,) = await answers(Jobs(("Failed", "Running"), ended="Failed"))
    assert not answer.text and answer.why.startswith("failed: pod m0-0-x")


async def test_a_first_pod_that_is_evicted_is_made_again() -> None:
    assert await answers(Jobs(("Running", "Running"), ("Failed", "Running"), ("Succeeded", "Running"))) == [
        MeasureAnswer("a table")
    ]


async def test_what_fails_after_the_first_job_was_created_is_an_answer() -> None:
    jobs = Jobs(("Running", "Running"))
    jobs.lost = KubeError("gone for a moment")
    assert await answers(jobs, 2) == [MeasureAnswer("", "gone for a moment")] * 2
    assert not jobs.left
    jobs.refused = KubeError("not allowed")
    with pytest.raises(ExceptionGroup):
        await answers(jobs)


async def test_an_interrupt_while_a_job_is_created_leaves_none() -> None:
    jobs = Jobs(("Running", "Running"))
    jobs.created_half = True
    running = asyncio.ensure_future(answers(jobs))
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert jobs.created == ["m0"] and not jobs.left
