# SPDX-License-Identifier: Apache-2.0
"""The names of objects, for completion in a shell: quickly, or not at all.

Rules: only metadata is read, and what has been read in the time is the answer. What may not be read has no names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct, field

from dovetail.kube.api.client import JSON, Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.resources import NAMESPACES, NODES, PODS, QUEUES
from dovetail.kube.manifests.documents import ManifestError, read_documents
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.translate.annotations import PREFIX

_METADATA = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
_PAGE = 1000
_MOST_PAGES = 10
_TIME_S = 2.0


_KINDS = {"namespaces": NAMESPACES, "nodes": NODES, "pods": PODS, "queues": QUEUES}
_GANG = f"{PREFIX}gang"


class Named(Struct, frozen=True):
    """An object. `jobs` are its controller and its gang, if it has any."""

    name: str
    jobs: tuple[str, ...] = ()


class _Item(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Page(Wire, frozen=True):
    items: tuple[_Item, ...] = ()
    metadata: dict[str, object] = field(default_factory=dict)


async def read_names(config: ClusterConfig, plural: str, namespace: str = "") -> tuple[Named, ...]:
    """The objects of a namespace, or without one of all; at most 10,000. Raises nothing. `plural`: one of
    _KINDS."""
    resource = _KINDS[plural]
    found: list[ObjectMeta] = []
    with suppress(KubeError, TimeoutError):
        async with asyncio.timeout(_TIME_S), Client(config, user_agent="dovetail") as client:
            params: dict[str, str | int] = {"limit": _PAGE}
            for _ in range(_MOST_PAGES):
                page = await client.request(
                    "GET", resource.path(namespace or None), params=params, decode=_Page, accept=_METADATA,
                    attempts=Attempts(timeout_s=_TIME_S, retries=0),
                )  # fmt: skip
                found += [one.metadata for one in page.items]
                if not (more := page.metadata.get("continue")):
                    break
                params["continue"] = str(more)
    return tuple(map(_named, found))


def names_in(files: Sequence[str], plural: str, namespace: str = "") -> Iterator[Named]:
    """The same of files. What cannot be read has no names."""
    with suppress(ManifestError):
        for document in read_documents(files):
            value = document.value
            if isinstance(value, dict) and value.get("kind") == _KINDS[plural].kind:
                with suppress(msgspec.ValidationError):
                    found = msgspec.convert(value.get("metadata", {}), ObjectMeta)
                    if not namespace or (found.namespace or "default") == namespace:
                        yield _named(found)


def _named(found: ObjectMeta) -> Named:
    jobs = [one.name for one in found.owner_references if one.controller]
    gang = found.annotations.get(_GANG)
    return Named(found.name, (*jobs, *([gang] if gang else [])))
