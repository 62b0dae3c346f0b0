# SPDX-License-Identifier: Apache-2.0
"""What users create and delete: the objects of new jobs, and jobs that are cancelled.

Rules
- Objects are created one after the other, as they are written; what was created before a failure stays, and is named.
  Where the cluster does not serve one of their kinds, none is created.
- To cancel deletes the object of the job, with what it has made, on condition that it is still the same one; pods
  without an object are deleted themselves. Pods end with their own grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dovetail.jobs.finding import NamedJob
from dovetail.jobs.kinds import Document, at, text_at
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import AlreadyExists, ApiError, Conflict, KubeError, NotFound
from dovetail.kube.api.resources import PODS, Resource
from dovetail.kube.objects.base import Wire
from dovetail.kube.queue_changes import MANAGER


class NotDone(KubeError):
    """The change is not possible; the text has the reason and what to do."""


class Created(Struct, frozen=True):
    """An object that was created: what it is called in `dovetail logs`, and its uid."""

    kind: str
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {place}{self.name}"


async def create(
    client: Client, resources: Mapping[tuple[str, str], Resource], documents: Iterable[Document], namespace: str,
    *, owned: bool = False, dry_run: bool = False,
) -> tuple[Created, ...]:  # fmt: skip
    """Create the objects in their order, those without a namespace in this one. `resources` are by API version and
    kind. With `owned` the others are owned by the first one, and are deleted with it. `dry_run`: the server checks them
    and stores none. Raises NotDone, which names what was created before, and ApiError."""
    done: list[Created] = []
    first: Document | None = None
    known: list[tuple[Document, str, str, Resource]] = []
    for document in documents:
        kind, version = text_at(document, "kind"), text_at(document, "apiVersion")
        resource = resources.get((version, kind))
        if resource is None:
            raise NotDone(f"the cluster serves no {kind} of {version}: nothing was created")
        known.append((document, kind, version, resource))
    for document, kind, version, resource in known:
        own = (text_at(document, "metadata.namespace") or namespace) if resource.namespaced else ""
        meta = {**(at(document, "metadata") or {}), **({"namespace": own} if own else {})}
        if owned and first is not None and not dry_run:
            meta["ownerReferences"] = [_reference(first)]
        params = {"fieldManager": MANAGER} | ({"dryRun": "All"} if dry_run else {})
        try:
            found = await client.request(
                "POST", resource.path(own or None), {**document, "metadata": meta}, params=params, decode=dict[str, Any]
            )
        except AlreadyExists:
            name = text_at(document, "metadata.name")
            raise NotDone(f"{kind} {own}/{name} exists already{_so_far(done)}") from None
        except ApiError as error:
            if done:
                raise NotDone(f"{error}{_so_far(done)}") from error
            raise
        created = {"apiVersion": version, "kind": kind, **found}
        first = first or created
        done.append(Created(kind, own, text_at(created, "metadata.name"), text_at(created, "metadata.uid")))
    return tuple(done)


def _so_far(done: Sequence[Created]) -> str:
    return f"; created before: {', '.join(map(str, done))}" if done else ""


def _reference(document: Document) -> Document:
    return {
        "apiVersion": text_at(document, "apiVersion"), "kind": text_at(document, "kind"),
        "name": text_at(document, "metadata.name"), "uid": text_at(document, "metadata.uid"), "controller": False,
    }  # fmt: skip


async def cancel(client: Client, job: NamedJob) -> bool:
    """Delete the job. Returns False where it is gone already. Raises NotDone where another job has its name now, and
    ApiError."""
    if job.kind is not None and job.document is not None:
        path = job.kind.resource.path(job.namespace, job.name)
        return await _delete(client, path, text_at(job.document, "metadata.uid"), job.title)
    left = [pod for pod in job.pods if pod.state not in ("succeeded", "failed")]
    deleted = await asyncio.gather(
        *(_delete(client, PODS.path(job.namespace, pod.name), pod.metadata.uid, f"pod {pod.name}") for pod in left)
    )
    return any(deleted)


async def _delete(client: Client, path: str, uid: str, title: str) -> bool:
    body = {
        "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": {"uid": uid}
    }  # fmt: skip
    try:
        await client.request("DELETE", path, body)
    except NotFound:
        return False
    except Conflict as error:
        raise NotDone(f"{title} is another one by now: look again") from error
    return True


class _Listed(Wire, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class _Resources(Wire, frozen=True):
    resources: tuple[_Listed, ...] = ()


async def resources_of(client: Client, documents: Iterable[Document]) -> dict[tuple[str, str], Resource]:
    """Where objects of the kinds of these documents are created, by API version and kind; without those that are not
    served. Raises ApiError."""
    versions = dict.fromkeys(text_at(document, "apiVersion") for document in documents)
    found: dict[tuple[str, str], Resource] = {}
    for version in versions:
        group, _, number = version.rpartition("/")
        try:
            path = f"/apis/{version}" if group else f"/api/{number}"
            served = await client.request("GET", path, decode=_Resources)
        except NotFound:
            continue
        for one in served.resources:
            if "/" not in one.name:
                found[version, one.kind] = Resource(group, number, one.name, one.namespaced, one.kind)
    return found
