# SPDX-License-Identifier: Apache-2.0
"""Jobs that are suspended: a field of their object keeps them from having pods, and their controller deletes those that
run. `dovetail release` resumes them.

Rules
- The field is written on condition that the object is still the same one. The answer has it: the API server drops a
  field that the definition of its kind does not have, and would answer as if it were written.
- What Kueue suspends and resumes is not suspended: Kueue would resume it. A RayJob is suspended only as KubeRay has it:
  of one with another spec it takes the suspended object as invalid, and the job fails.
Source: of RayJob ray-project/kuberay, ray-operator/controllers/ray/utils/validation.go, ValidateRayJobSpec.
"""

from __future__ import annotations

from typing import Any

from dovetail.jobs.changes import NotDone
from dovetail.jobs.finding import NamedJob
from dovetail.jobs.kinds import KUEUE_LABEL, Document, at, text_at
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import Conflict
from dovetail.kube.queue_changes import MANAGER


def by_kueue(document: Document) -> bool:
    """Whether Kueue suspends and resumes the object."""
    return KUEUE_LABEL in (at(document, "metadata.labels") or {})


def ray_job_hindrance(document: Document) -> str:
    """Why KubeRay does not suspend this RayJob; "" where it does."""
    if at(document, "spec.clusterSelector"):
        return "KubeRay suspends no RayJob on a cluster of others (spec.clusterSelector)"
    if at(document, "spec.shutdownAfterJobFinishes") is not True:
        return "KubeRay suspends a RayJob only with spec.shutdownAfterJobFinishes: true"
    return ""


def why_not_suspended(job: NamedJob) -> str:
    """Why the job cannot be suspended; "" where it can."""
    if job.ended:
        return "it has ended"
    if job.kind is None or job.document is None or not job.kind.suspend:
        return "its kind has no field for that: `dovetail cancel` ends it"
    if job.suspended:
        return "it is suspended already"
    if by_kueue(job.document):
        return "Kueue would resume it"
    return ray_job_hindrance(job.document) if job.kind.resource.kind == "RayJob" else ""


async def suspend(client: Client, job: NamedJob, *, dry_run: bool = False) -> None:
    """Suspend the job. `dry_run`: the server checks the change, and stores none. Raises NotDone and ApiError."""
    if why := why_not_suspended(job):
        raise NotDone(f"{job.title} is not suspended: {why}")
    assert job.kind is not None
    if not job.kind.suspended(await _write(client, job, value=True, dry_run=True)):
        raise NotDone(f"{job.title} is not suspended: the definition of {job.kind.resource.kind} has no such field")
    if not dry_run:
        await _write(client, job, value=True)


async def resume(client: Client, job: NamedJob) -> None:
    """Undo that. Raises NotDone and ApiError."""
    await _write(client, job, value=False)


async def _write(client: Client, job: NamedJob, *, value: bool, dry_run: bool = False) -> Document:
    assert job.kind is not None and job.document is not None
    patch: Any = value
    for step in reversed(job.kind.suspend.split(".")):
        patch = {step: patch}
    patch["metadata"] = {"uid": text_at(job.document, "metadata.uid")}
    params = {"fieldManager": MANAGER} | ({"dryRun": "All"} if dry_run else {})
    path = job.kind.resource.path(job.namespace, job.name)
    try:
        found: Document = await client.request(
            "PATCH", path, patch, params=params, content_type=MERGE_PATCH, decode=dict[str, Any]
        )
    except Conflict as error:
        raise NotDone(f"{job.title} is another one by now, or has just changed: look again") from error
    return found
