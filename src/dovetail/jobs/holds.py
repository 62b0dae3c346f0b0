# SPDX-License-Identifier: Apache-2.0
"""Jobs that are held: nothing of them starts before they are released.

Rules
- A job is held by the annotation `dovetail.dev/hold`. It is written on the pods that wait, which the scheduler watches,
  and on the object that makes them a gang, which it reads again whenever one of its pods appears. Where no object makes
  them a gang, only the pods that exist are held.
- What runs cannot be held. A suspended object has no pods, and is not held.
- To release writes `false` on the pods, since the scheduler may know the object as it was; and resumes an object that
  is suspended, unless that is the business of Kueue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dovetail.jobs.changes import NotDone
from dovetail.jobs.finding import NamedJob
from dovetail.jobs.pods import JobPod
from dovetail.jobs.suspending import by_kueue, resume
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import Conflict, NotFound
from dovetail.kube.api.resources import PODS
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.gangs.owners import owned_by, read
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.objects.pods import Pod
from dovetail.kube.queue_changes import MANAGER
from dovetail.kube.translate.annotations import HOLD, PREFIX

_HOLD = PREFIX + HOLD


class HeldJob(Struct, frozen=True):
    """On how many `pods` it was written. `resumed`: the object was suspended, and is not any more. `new_pods`: pods
    that are made later are held, too."""

    pods: int
    resumed: bool = False
    new_pods: bool = False


class _Annotated(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


async def hold(client: Client, job: NamedJob) -> HeldJob:
    """Keep what waits of the job from starting. Raises NotDone and ApiError."""
    if job.ended:
        raise NotDone(f"{job.title} has ended")
    if job.suspended:
        raise NotDone(f"{job.title} is suspended: it has no pods, and none is made before it is resumed")
    waiting, declaring = _waiting(job), _declaring(job)
    if not waiting and (job.pods or not declaring):
        raise NotDone(f"nothing of {job.title} waits: what runs cannot be held; `dovetail cancel` ends it")
    for owner in declaring:
        await _annotate(client, owner.resource.path(owner.namespace, owner.name), "true")
    await _annotate_pods(client, job.namespace, waiting, "true")
    return HeldJob(len(waiting), new_pods=bool(declaring))


async def release(client: Client, job: NamedJob) -> HeldJob:
    """Let the job start. Raises NotDone and ApiError."""
    if job.suspended and job.document is not None and by_kueue(job.document):
        raise NotDone(f"{job.title} is suspended by Kueue, which resumes it when its queue admits it")
    declaring = [owner for owner in _declaring(job) if await _owner_is_held(client, owner)]
    waiting = [pod for pod in _waiting(job) if declaring or is_held(pod)]
    if not (waiting or declaring or job.suspended):
        raise NotDone(f"{job.title} is not held")
    for owner in declaring:
        await _annotate(client, owner.resource.path(owner.namespace, owner.name), None)
    await _annotate_pods(client, job.namespace, waiting, "false")
    if job.suspended:
        await resume(client, job)
    return HeldJob(len(waiting), resumed=job.suspended)


def is_held(pod: JobPod) -> bool:
    """Whether the pod itself is held."""
    return pod.metadata.annotations.get(_HOLD) == "true"


def _waiting(job: NamedJob) -> list[JobPod]:
    return [pod for pod in job.pods if pod.state == "waits"]


def _declaring(job: NamedJob) -> list[OwnerRef]:
    """The objects that make the pods of the job gangs."""
    members = [member for pod in job.pods if (member := owned_by(Pod(metadata=pod.metadata))) is not None]
    if not members and job.kind is not None and job.document is not None and job.kind.declares:
        own = OwnerRef(job.kind.resource, job.namespace, job.name)
        return [own] if read(own, job.document).size is not None else []
    return list(dict.fromkeys(one.owner for one in members if one.owner is not None and not one.alone))


async def _owner_is_held(client: Client, owner: OwnerRef) -> bool:
    try:
        found = await client.request("GET", owner.resource.path(owner.namespace, owner.name), decode=_Annotated)
    except NotFound:
        return False
    return found.metadata.annotations.get(_HOLD) == "true"


async def _annotate(client: Client, path: str, value: str | None, uid: str = "") -> None:
    meta: dict[str, Any] = {"annotations": {_HOLD: value}} | ({"uid": uid} if uid else {})
    params = {"fieldManager": MANAGER}
    await client.request("PATCH", path, {"metadata": meta}, params=params, content_type=MERGE_PATCH)


async def _annotate_pods(client: Client, namespace: str, pods: Sequence[JobPod], value: str) -> None:
    """Write the annotation on pods; one that is gone, or is another one now, does not count."""

    async def one(pod: JobPod) -> None:
        try:
            await _annotate(client, PODS.path(namespace, pod.name), value, pod.metadata.uid)
        except (NotFound, Conflict):
            return

    await asyncio.gather(*map(one, pods))
