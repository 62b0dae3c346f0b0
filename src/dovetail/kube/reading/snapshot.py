# SPDX-License-Identifier: Apache-2.0
"""A snapshot of all objects of a cluster that the core reads, in the form of manifests: the same kinds, and the owners.

Rules
- An object has only the fields that a wire struct reads: no environment, no commands, no data.
  Annotations and labels are whole, except the copy of the manifest that `kubectl apply` leaves.
- The owners of all pods that have not finished are read, whichever scheduler they name: `simulate` schedules all pods.
- The lists are read one after the other: a change in between may be in one list and not in another.
- Kinds that may not be read, or cannot be decoded, are named in `unread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import Served, discover
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.resources import Resource
from dovetail.kube.gangs import owners
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.views import VIEWS_GROUP, VIEWS_VERSION
from dovetail.kube.reading.lists import ListReply, ListRequest, list_permitted, lists_of
from dovetail.kube.translate.pod_status import is_finished
from dovetail.kube.translate.sources import sources
from dovetail.kube.translate.translator import Translator

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
Document = dict[str, Any]


class Snapshot(Struct, frozen=True):
    """`objects` as in manifests; `unread` names what is missing and why, a line each. `lists` are the replies to the
    further requests, none where one of them failed."""

    objects: tuple[Document, ...]
    unread: tuple[str, ...]
    lists: tuple[ListReply, ...] = ()


async def read_snapshot(config: ClusterConfig, further: Iterable[ListRequest] = ()) -> Snapshot:
    """Raises KubeError where the server cannot be reached at all. `further` are lists of which the objects are not in
    the snapshot."""
    async with Client(config, user_agent="dovetail") as client:
        served = await discover(client)
        found = await _snapshot(client, served)
        try:
            return replace(found, lists=await lists_of(client, served, further))
        except KubeError as error:
            return replace(found, unread=(*found.unread, f"facts: {error}"))


async def _snapshot(client: Client, served: Served) -> Snapshot:
    objects: list[Document] = []
    # Views are answers, not objects: a cluster whose scheduler does not answer is whole without them.
    silent = [one for one in served.failed if one != f"{VIEWS_GROUP}/{VIEWS_VERSION}"]
    unread = [f"{api_version}: its API server did not answer" for api_version in silent]
    wanted: dict[OwnerRef, None] = {}
    for source in sources(Translator(), served):
        if source.followed or not served.has(source.resource):
            continue
        reply = await list_permitted(client, served, ListRequest(source.resource, source.kind))
        if reply.objects is None:
            unread.append(f"{source.resource}: {reply.unread}")
            continue
        unread += [f"{source.resource} {'/'.join(bad.key or ('?',))}: {bad.problem}" for bad in reply.bad]
        objects += [_document(source.resource, one) for one in reply.objects]
        if source.kind is Pod:
            wanted.update(dict.fromkeys(_owners(reply.objects)))
    found = await asyncio.gather(*(_owner(client, ref) for ref in wanted), return_exceptions=True)
    for ref, owner in zip(wanted, found, strict=True):
        if isinstance(owner, KubeError):
            # The owner of a pod that is being deleted with it may be gone already.
            unread += [] if isinstance(owner, NotFound) else [f"{ref}: {owner}"]
        elif isinstance(owner, BaseException):
            raise owner
        else:
            objects.append(owner)
    return Snapshot(tuple(objects), tuple(unread))


def _owners(pods: Iterable[Pod]) -> Iterable[OwnerRef]:
    for pod in pods:
        member = owners.owned_by(pod) if not is_finished(pod) else None
        while member is not None:
            if member.owner is not None:
                yield member.owner
            member = member.above


async def _owner(client: Client, ref: OwnerRef) -> Document:
    """Raises KubeError."""
    path = ref.resource.path(ref.namespace, ref.name)
    document: Document = await client.request("GET", path, decode=dict[str, Any])
    try:
        return _document(ref.resource, msgspec.convert(document, owners.wire_of(ref)))
    except msgspec.ValidationError:
        return document


def _document(resource: Resource, obj: Struct) -> Document:
    document = {"apiVersion": resource.api_version, "kind": resource.kind, **_written(obj)}
    document["metadata"].get("annotations", {}).pop(_APPLIED, None)
    return document


def _written(value: Any) -> Any:
    """As it is decoded from: fields that have their defaults are left out."""
    if isinstance(value, Struct):
        return {
            field.encode_name: _written(found)
            for field in fields(value)
            if (found := getattr(value, field.name)) != _default(field)
        }
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    return msgspec.to_builtins(value)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is NODEFAULT else field.default_factory()
