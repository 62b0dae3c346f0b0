# SPDX-License-Identifier: Apache-2.0
"""The names of objects, for completion in a shell: quickly, or not at all.

Rules: only metadata is read, and what has been read in the time is the answer. Users that may list no nodes and no
queues get those that the running scheduler shows in a namespace. What may not be read otherwise has no names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct, field

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.client import JSON, Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import Forbidden, KubeError
from dovetail.kube.api.resources import NAMESPACES, NODES, PODS, QUEUES, Resource
from dovetail.kube.gangs.made_for import object_of
from dovetail.kube.manifests.documents import ManifestError, read_documents
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.views import NODE_LISTS, QUEUE_SHARES, ViewDocument
from dovetail.kube.translate.annotations import PREFIX

_METADATA = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
_PAGE = 1000
_MOST_PAGES = 10
_TIME_S = 2.0


_KINDS = {"namespaces": NAMESPACES, "nodes": NODES, "pods": PODS, "queues": QUEUES}
_GANG = f"{PREFIX}gang"


class Named(Struct, frozen=True):
    """An object. `jobs` are the job that it was made for and its gang, if it has any."""

    name: str
    jobs: tuple[str, ...] = ()


class _Item(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Page(Wire, frozen=True):
    items: tuple[_Item, ...] = ()
    metadata: dict[str, object] = field(default_factory=dict)


class _Node(Struct, frozen=True):
    node: str


class _Nodes(Struct, frozen=True):
    nodes: tuple[_Node, ...] = ()


class _Queue(Struct, frozen=True):
    queue: str


async def read_names(config: ClusterConfig, plurals: Sequence[str], namespace: str) -> list[list[Named]]:
    """Of each plural of _KINDS the objects, at most 10,000; of kinds with namespaces those of this one. Raises
    nothing."""
    found: list[list[Named]] = [[] for _ in plurals]
    with suppress(KubeError, TimeoutError):
        async with asyncio.timeout(_TIME_S), Client(config, user_agent="dovetail") as client:
            reads = zip(plurals, found, strict=True)
            await asyncio.gather(*(_read(client, _KINDS[one], namespace, into) for one, into in reads))
    return found


async def _read(client: Client, resource: Resource, namespace: str, found: list[Named]) -> None:
    path = resource.path(namespace if resource.namespaced else None)
    params: dict[str, str | int] = {"limit": _PAGE}
    attempts = Attempts(timeout_s=_TIME_S, retries=0)
    with suppress(KubeError, JsonError):
        try:
            for _ in range(_MOST_PAGES):
                page = await client.request(
                    "GET", path, params=params, decode=_Page, accept=_METADATA, attempts=attempts
                )  # fmt: skip
                found += [_named(one.metadata) for one in page.items]
                if not (more := page.metadata.get("continue")):
                    return
                params["continue"] = str(more)
        except Forbidden:
            if resource in _VIEWS:
                view, names = _VIEWS[resource]
                path = view.path(namespace)
                document = await client.request("GET", path, decode=ViewDocument, attempts=attempts)
                found += map(Named, names(document.answer))


def _of_nodes(answer: bytes) -> list[str]:
    return [one.node for one in decode_json(answer, _Nodes).nodes]


def _of_queues(answer: bytes) -> list[str]:
    return [one.queue for one in decode_json(answer, tuple[_Queue, ...])]


_VIEWS: dict[Resource, tuple[Resource, Callable[[bytes], list[str]]]] = {
    NODES: (NODE_LISTS, _of_nodes),
    QUEUES: (QUEUE_SHARES, _of_queues),
}


def names_in(files: Sequence[str], plurals: Sequence[str], namespace: str) -> list[list[Named]]:
    """The same of files. What cannot be read has no names."""
    found: dict[str, list[Named]] = {_KINDS[one].kind: [] for one in plurals}
    with suppress(ManifestError):
        for document in read_documents(files):
            value = document.value
            if not isinstance(value, dict) or value.get("kind") not in found:
                continue
            with suppress(msgspec.ValidationError):
                meta = msgspec.convert(value.get("metadata", {}), ObjectMeta)
                if value["kind"] != PODS.kind or (meta.namespace or "default") == namespace:
                    found[value["kind"]].append(_named(meta))
    return list(found.values())


def _named(found: ObjectMeta) -> Named:
    job = object_of(Pod(metadata=found)).rpartition("/")[2]
    gang = found.annotations.get(_GANG)
    return Named(found.name, tuple(filter(None, (job, gang))))
