# SPDX-License-Identifier: Apache-2.0
"""The names of objects, for completion in a shell: quickly, or not at all.

Rules: only metadata is read, and what has been read in the time is the answer. What may not be read has no names.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec import field

from dovetail.kube.api.client import JSON, Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.base import ObjectMeta, Wire

_METADATA = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
_PAGE = 1000
_MOST_PAGES = 10
_TIME_S = 2.0


class _Item(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Page(Wire, frozen=True):
    items: tuple[_Item, ...] = ()
    metadata: dict[str, object] = field(default_factory=dict)


async def read_names(config: ClusterConfig, resource: Resource, namespace: str = "") -> tuple[ObjectMeta, ...]:
    """The metadata of the objects of a namespace, or without one of all; at most 10,000. Raises nothing."""
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
    return tuple(found)
