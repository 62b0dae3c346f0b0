# SPDX-License-Identifier: Apache-2.0
"""Jobs by name: the objects that are a job, and its pods.

Rules
- A name is that of an object of a kind that a job can be, of a pod, or of a gang of pods without an object. A pod
  stands for the job that it was made for: its controllers are followed up to the last one that is a job. A CronJob is
  none: each of its Jobs is.
- Of objects of one name that made each other the last one up counts (a TrainJob, not its JobSet).
- Kinds that the server does not serve, or that the user may not read, have no objects of the name. Only where nothing
  is found a missing right is an error.
- All pods of a namespace are listed only for gangs without an object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from dovetail.core.queues.types import QUEUE_LABEL
from dovetail.jobs.kinds import (
    ANY,
    JOB,
    JOB_KINDS,
    POD,
    Document,
    Ended,
    JobKind,
    at,
    controller_of,
    kind_named,
    text_at,
)
from dovetail.jobs.pods import JobPod, by_rank
from dovetail.kube.api.client import Client
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.errors import Forbidden, KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import PODS
from dovetail.kube.gangs.dialects import membership
from dovetail.kube.manifests.defaults import DEFAULT_SCHEDULER
from dovetail.kube.manifests.templates import templates
from dovetail.kube.objects.pods import Pod, PodSpec
from dovetail.kube.reading.lists import list_documents
from dovetail.kube.translate.annotations import options_of
from dovetail.views.names import nearest

T = TypeVar("T")


class JobUnknown(KubeError):
    """There is no job of this name, or there are several; the text has what is possible."""


class NamedJob(Struct, frozen=True):
    """A job. `kind` and `document` are its object; None for pods without one. `pods` are those that exist, in the order
    of their ranks."""

    namespace: str
    name: str
    kind: JobKind | None
    document: Document | None
    pods: tuple[JobPod, ...]

    @property
    def title(self) -> str:
        """`Job team-a/train`, `Pod team-a/x`, `Gang team-a/g`."""
        kind = self.kind.resource.kind if self.kind is not None else "Gang" if self.gang else "Pod"
        return f"{kind} {self.namespace}/{self.name}"

    @property
    def gang(self) -> bool:
        """Whether it is a gang of pods without an object."""
        return self.kind is None and not any(pod.name == self.name for pod in self.pods)

    @property
    def schedulers(self) -> frozenset[str]:
        """The schedulers that its pods name."""
        names = {pod.spec.scheduler_name for pod in self.pods}
        if self.document is not None:
            names |= {text_at(template, "spec.schedulerName") for _, template in templates(self.document)}
        return frozenset(name or DEFAULT_SCHEDULER for name in names)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its object, else those of its first pod."""
        if self.document is None:
            return self.pods[0].metadata.labels if self.pods else {}
        labels = at(self.document, "metadata.labels")
        return {key: str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}

    @property
    def queue(self) -> str:
        """The queue that its object or its pods name; "" where they leave that to the namespace."""
        names = [self.labels.get(QUEUE_LABEL, "")]
        if self.document is not None:
            metas = (at(template, "metadata.labels") for _, template in templates(self.document))
            names += [str(labels.get(QUEUE_LABEL, "")) for labels in metas if isinstance(labels, dict)]
        names += [pod.metadata.labels.get(QUEUE_LABEL, "") for pod in self.pods]
        return next((name for name in names if name), "")

    @property
    def ended(self) -> Ended:
        """How it has ended, by its object, else by its pods."""
        if self.kind is not None and self.document is not None:
            return self.kind.ended(self.document)
        states = {pod.state for pod in self.pods}
        if not states or not states <= {"succeeded", "failed"}:
            return ""
        return "failed" if "failed" in states else "succeeded"

    @property
    def suspended(self) -> bool:
        return self.kind is not None and self.document is not None and self.kind.suspended(self.document)


class Finder:
    """Finds jobs on one cluster."""

    def __init__(self, client: Client, served: Served) -> None:
        self._client = client
        self._kinds = [kind for kind in JOB_KINDS if served.has(kind.resource)]
        self._forbidden: Forbidden | None = None

    async def job(self, namespace: str, name: str, prefix: str = ANY) -> NamedJob:
        """The job of this name; `prefix` is what stands before it: a kind, `pod`, `job` or nothing. Raises JobUnknown
        and ApiError."""
        self._forbidden = None
        found = await self._objects(namespace, name, prefix) if prefix != POD else []
        if found:
            return await self._of_object(namespace, *_only(found, name, prefix))
        pod = await self._pod(namespace, name) if prefix in (ANY, POD) else None
        if pod is not None:
            return await self._of_pod(pod)
        gang = await self._gang(namespace, name) if prefix == ANY else None
        if gang is not None:
            return gang
        if self._forbidden is not None:
            raise self._forbidden
        raise JobUnknown(await self._unknown(namespace, name, prefix))

    async def object(self, namespace: str, name: str, kind: JobKind) -> NamedJob:
        """The object of just this kind. Raises JobUnknown and ApiError."""
        self._forbidden = None
        document = await self._get(kind, namespace, name) if kind in self._kinds else None
        if document is not None:
            return await self._of_object(namespace, kind, document)
        if self._forbidden is not None:
            raise self._forbidden
        raise JobUnknown(f"there is no {kind.resource.kind} of {kind.resource.group} {name!r} in namespace {namespace}")

    async def again(self, job: NamedJob) -> NamedJob:
        """The job as it is now. Raises JobUnknown if it is gone."""
        if job.kind is None or job.document is None:
            return await self.job(job.namespace, job.name)
        document = await self._get(job.kind, job.namespace, job.name)
        if document is None or text_at(document, "metadata.uid") != text_at(job.document, "metadata.uid"):
            raise JobUnknown(f"{job.title} was deleted")
        return await self._of_object(job.namespace, job.kind, document)

    async def _objects(self, namespace: str, name: str, prefix: str) -> list[tuple[JobKind, Document]]:
        """The objects of this name that no other of them has made."""
        wanted = kind_named(prefix)
        kinds = [kind for kind in self._kinds if prefix in (ANY, JOB) or kind is wanted]
        replies = await asyncio.gather(*(self._get(kind, namespace, name) for kind in kinds))
        found = [(kind, one) for kind, one in zip(kinds, replies, strict=True) if one is not None]
        uids = {text_at(one, "metadata.uid") for _, one in found}
        return [(kind, one) for kind, one in found if uids.isdisjoint(_owners(one))]

    async def _of_object(self, namespace: str, kind: JobKind, document: Document) -> NamedJob:
        selector = kind.selector(document)
        pods = await self._list(namespace, selector) if selector else ()
        return NamedJob(namespace, text_at(document, "metadata.name"), kind, document, pods)

    async def _of_pod(self, pod: JobPod) -> NamedJob:
        """The job that the pod was made for: the pod itself where no job made it."""
        namespace, name = pod.metadata.namespace, pod.name
        references = [
            {"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "controller": one.controller}
            for one in pod.metadata.owner_references
        ]
        document: Document = {"metadata": {"ownerReferences": references}}
        above: tuple[JobKind, Document] | None = None
        while (controller := controller_of(document)) is not None:
            found = await self._get(controller[0], namespace, controller[1])
            if found is None:
                break
            above, document = (controller[0], found), found
        if above is not None:
            return await self._of_object(namespace, *above)
        gang = await self._gang(namespace, gang_of(pod)) if gang_of(pod) else None
        return gang or NamedJob(namespace, name, None, None, (pod,))

    async def _gang(self, namespace: str, name: str) -> NamedJob | None:
        pods = await self._list(namespace)
        members = [pod for pod in pods if gang_of(pod) == name]
        return NamedJob(namespace, name, None, None, tuple(members)) if members else None

    async def _list(self, namespace: str, selector: str = "") -> tuple[JobPod, ...]:
        params = {"labelSelector": selector} if selector else {}
        found = await list_all(self._client, PODS.inside(namespace), JobPod, params=params)
        return tuple(sorted(found.objects.values(), key=by_rank))

    async def _pod(self, namespace: str, name: str) -> JobPod | None:
        return await self._permitted(self._client.request("GET", PODS.path(namespace, name), decode=JobPod))

    async def _get(self, kind: JobKind, namespace: str, name: str) -> Document | None:
        path = kind.resource.path(namespace, name)
        found: Document | None = await self._permitted(self._client.request("GET", path, decode=dict[str, Any]))
        if found is None:
            return None
        return {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, **found}

    async def _permitted(self, reply: Awaitable[T]) -> T | None:
        """The reply; None where there is no such object, or the user may not read it."""
        try:
            return await reply
        except NotFound:
            return None
        except Forbidden as error:
            self._forbidden = self._forbidden or error
            return None

    async def _unknown(self, namespace: str, name: str, prefix: str) -> str:
        names: list[str] = []
        for pod in await self._permitted(self._list(namespace)) or ():
            names += [pod.name, gang_of(pod), *(one.name for one in pod.metadata.owner_references)]
        what = prefix or "job or pod"
        near = nearest(name, [one for one in names if one])
        return f"there is no {what} {name!r} in namespace {namespace}{near}"

    async def jobs(self, namespace: str, keep: Callable[[NamedJob], bool]) -> list[NamedJob]:
        """All jobs of the namespace that `keep` takes, without their pods read one by one: objects that end by
        themselves, or are of Ray, and pods without an object."""
        found: list[NamedJob] = []
        for kind in self._kinds:
            if not (kind.ends or kind.suspend):
                continue
            listed = await self._permitted(list_documents(self._client, kind.resource.inside(namespace)))
            found += [
                NamedJob(namespace, text_at(one, "metadata.name"), kind, one, ())
                for one in listed or () if controller_of(one) is None
            ]  # fmt: skip
        gangs: dict[str, list[JobPod]] = {}
        for pod in await self._list(namespace):
            if not any(one.controller for one in pod.metadata.owner_references):
                gangs.setdefault(gang_of(pod) or pod.name, []).append(pod)
        found += [NamedJob(namespace, name, None, None, tuple(pods)) for name, pods in gangs.items()]
        if not found and self._forbidden is not None:
            raise self._forbidden
        return [job for job in found if keep(job)]


def gang_of(pod: JobPod) -> str:
    """The name of the gang that it names itself; "" for none, and where its controller makes it part of one."""
    options = options_of(pod.metadata)
    seen = Pod(metadata=pod.metadata, spec=PodSpec(scheduling_group=pod.spec.scheduling_group))
    member = membership(seen, options, None)
    return member.name if member is not None and member.owner is None else ""


def _owners(document: Document) -> Iterable[str]:
    return [str(one.get("uid", "")) for one in at(document, "metadata.ownerReferences") or () if isinstance(one, dict)]


def _only(found: Sequence[tuple[JobKind, Document]], name: str, prefix: str) -> tuple[JobKind, Document]:
    """The only one, or the Job where `job/` is asked for. Raises JobUnknown."""
    if len(found) == 1:
        return found[0]
    if prefix == JOB:
        for kind, document in found:
            if kind.name == JOB:
                return kind, document
    which = " or ".join(f"{kind.name}/{name}" for kind, _ in found)
    raise JobUnknown(f"{name!r} names {len(found)} objects: write {which}")
