# SPDX-License-Identifier: Apache-2.0
"""The lists and watches of one plane: its AgentControlPlane, the LeaseRequests and the GPULeases of its namespace.

Rules: a watch that its server ends is resumed; any other end, also 410, is raised by `next`, and it is time to begin
again with lists. The leases are listed last: what the control plane's status answers is written by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import BadObject, Reader, WatchEvent
from dovetail.kube.api.errors import no_reply
from dovetail.kube.api.listing import Listing, list_all
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, LEASE_REQUESTS, Resource
from dovetail.kube.api.watch import watch
from dovetail.kube.objects import leases as wire
from dovetail.plane.broker import Notice
from dovetail.plane.cluster_view import PlaneView

_SHORTEST_S = 1.0
"""A sound server lets a watch last longer."""


class ObjectsSeen(Struct, frozen=True):
    """Changes of objects of one kind, in order."""

    kind: str
    events: Sequence[WatchEvent[Any] | BadObject]


class PlaneWatches:
    """`begin`, then `next` again and again, and `end`. What is listed goes into the view."""

    def __init__(self, client: Client, view: PlaneView) -> None:
        self._client = client
        self._view = view
        self._seen: asyncio.Queue[ObjectsSeen | Exception] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Raises ApiError."""
        view = self._view
        only = {"fieldSelector": f"metadata.name={view.name}"}
        planes = await self._list(CONTROL_PLANES, wire.AgentControlPlane, only)
        view.control = next(iter(planes.objects.values()), None)
        requests = await self._list(LEASE_REQUESTS, wire.LeaseRequest)
        view.requests_listed(requests)
        held = await self._list(GPU_LEASES, wire.GPULease)
        view.leases_listed(held)
        self._start(CONTROL_PLANES, wire.AgentControlPlane, planes.resource_version, only)
        self._start(LEASE_REQUESTS, wire.LeaseRequest, requests.resource_version)
        self._start(GPU_LEASES, wire.GPULease, held.resource_version)

    async def next(self) -> ObjectsSeen:
        """Raises ApiError."""
        seen = await self._seen.get()
        if isinstance(seen, Exception):
            raise seen
        return seen

    async def leases(self) -> list[Notice]:
        """What a list of the leases shows now. Raises ApiError."""
        return self._view.leases_listed(await self._list(GPU_LEASES, wire.GPULease))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _list(self, resource: Resource, kind: Any, params: Mapping[str, str] | None = None) -> Listing[Any]:
        return await list_all(self._client, resource.inside(self._view.namespace), kind, params=params)

    def _start(self, resource: Resource, kind: Any, version: str, params: Mapping[str, str] | None = None) -> None:
        reader: Reader[Any] = Reader(resource.inside(self._view.namespace), kind)
        self._tasks.append(asyncio.create_task(self._watch(reader, version, params)))

    async def _watch(self, reader: Reader[Any], version: str, params: Mapping[str, str] | None) -> None:
        try:
            while True:
                begun_s = time.monotonic()
                async with aclosing(watch(self._client, reader, version, params=params)) as batches:
                    async for batch in batches:
                        version = batch.resource_version or version
                        if batch.events:
                            self._seen.put_nowait(ObjectsSeen(reader.resource.kind, batch.events))
                if time.monotonic() - begun_s < _SHORTEST_S:
                    raise no_reply("Dropped", "the watch ended at once", f"watch {reader.resource}", harmless=True)
        except Exception as error:
            self._seen.put_nowait(error)
