# SPDX-License-Identifier: Apache-2.0
"""The cluster as events: one reflector per resource that the core needs; the translator (`feed`) turns their changes
into events of one inbox.

Rules: a resource that the server does not serve is skipped; its reflector finds it when it appears. Owners that define
a gang's size are fetched when the translator requests them, and retried until they can be read. The driver starts when
every first list is complete.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dovetail.core.events import Event
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.client import Client
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.reflector import Change, Drift, Reflector, ReflectorHandlers, ReflectorTimes, log_drift
from dovetail.kube.api.resources import Resource
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.gangs.dialects import Dialect
from dovetail.kube.objects.base import Node
from dovetail.kube.objects.claims import DeviceClass, ResourceClaim
from dovetail.kube.objects.leases import AgentControlPlane, GPULease, LeaseRequest
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.queues import Queue
from dovetail.kube.objects.storage import PersistentVolume, PersistentVolumeClaim
from dovetail.kube.translate.sources import Source, rank, read_owner, sources
from dovetail.kube.translate.translator import Translator

_OWNER_RETRY_S = 5.0
_OWNER_RETRY_MAX_S = 80.0
_APART_S = 0.015
"""The pause between two reads of a watch, so that a stream of pods is read and decided in small batches. At 200 pods a
second a batch has three: each pod costs less, as its data is still in the CPU caches, and half of them wait for 12 ms.
Longer pauses save nothing more."""
_log = logging.getLogger(__name__)


def _nothing(*_: object) -> None:
    pass


class InformerHandlers(Struct, frozen=True):
    """What the process counts: differences to the server that an audit found, by the resource, and owners that could
    not be read."""

    drifted: Callable[[str], None] = _nothing
    owner_failed: Callable[[], None] = _nothing


_NO_HANDLERS = InformerHandlers()


class Informers:
    """`inbox` collects events in order. `changed` is set while it has any, and by whoever wants `events` to return."""

    def __init__(
        self, client: Client, served: Served, feed: Translator, handlers: InformerHandlers = _NO_HANDLERS
    ) -> None:
        self._handlers = handlers
        self.inbox: list[Event] = []
        self.changed = asyncio.Event()
        self.feed = feed
        self.seen: Callable[[Resource, list[Change[Any]]], None] | None = None
        """If set: called with the changes of each resource before their events are in the inbox."""
        self._client = client
        self._fetching: set[OwnerRef] = set()
        self._owners_wanted = asyncio.Event()
        self.reflectors: list[Reflector[Any]] = [self._follow(source) for source in sources(feed, served)]
        by_resource = {reflector.resource: reflector for reflector in self.reflectors}
        self.nodes: Reflector[Node] = by_resource[kinds.NODES]
        self.pods: Reflector[Pod] = by_resource[kinds.PODS]
        self.queues: Reflector[Queue] = by_resource[kinds.QUEUES]
        self.claims: Reflector[PersistentVolumeClaim] = by_resource[kinds.PVCS]
        self.volumes: Reflector[PersistentVolume] = by_resource[kinds.PVS]
        self.device_claims: Reflector[ResourceClaim] = by_resource[kinds.RESOURCE_CLAIMS]
        self.device_classes: Reflector[DeviceClass] = by_resource[kinds.DEVICE_CLASSES]
        self.control_planes: Reflector[AgentControlPlane] = by_resource[kinds.CONTROL_PLANES]
        self.lease_requests: Reflector[LeaseRequest] = by_resource[kinds.LEASE_REQUESTS]
        self.gpu_leases: Reflector[GPULease] = by_resource[kinds.GPU_LEASES]

    def resource_of(self, dialect: Dialect[Any]) -> Resource:
        """The version of a dialect's resource that has a reflector."""
        followed = {reflector.resource for reflector in self.reflectors}
        return next(resource for resource in dialect.resources if resource in followed)

    def _follow(self, source: Source) -> Reflector[Any]:
        def sink(changes: list[Change[Any]]) -> None:
            if self.seen is not None:
                self.seen(source.resource, changes)
            self.put(source.translate(changes))
            if self.feed.gangs.stale:
                self._owners_wanted.set()

        def drifted(drift: Drift) -> None:
            self._handlers.drifted(str(source.resource))
            log_drift(drift)

        return Reflector(
            self._client,
            source.resource,
            source.kind,
            sink,
            params=source.params,
            keep=source.keep,
            handlers=ReflectorHandlers(drift=drifted),
            times=ReflectorTimes(apart_s=_APART_S),
        )

    def put(self, events: list[Event]) -> None:
        if events:
            self.inbox += events
            self.changed.set()

    async def _fetch_owners(self) -> None:
        """Read owners that are wanted until cancelled. None is begun after that, although a reflector may take a last
        batch then: its own tasks end a moment later."""
        async with asyncio.TaskGroup() as reads:
            while True:
                await self._owners_wanted.wait()
                self._owners_wanted.clear()
                for ref in self.feed.gangs.wanted_owners():
                    if ref not in self._fetching:
                        self._fetching.add(ref)
                        reads.create_task(self._fetch(ref))

    async def run(self) -> None:
        """Run all reflectors until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fetch_owners())
            for reflector in self.reflectors:
                tasks.create_task(reflector.run())

    async def synced(self) -> None:
        """Wait for every first list, then exclude the objects read from garbage collection: they stay."""
        for reflector in self.reflectors:
            await reflector.synced.wait()
        self.inbox.sort(key=rank)
        gc.freeze()

    async def events(self, within_s: float) -> list[Event]:
        """Wait for a change, at most so long (0: not at all), and take the events that have come."""
        if within_s:
            # Not asyncio.timeout, which costs several times as much.
            timer = asyncio.get_running_loop().call_later(within_s, self.changed.set)
            try:
                await self.changed.wait()
            finally:
                timer.cancel()
        else:
            # Other tasks run in between: a driver with work left waits nowhere else.
            await asyncio.sleep(0)
        events, self.inbox = self.inbox, []
        self.changed.clear()
        return events

    async def _fetch(self, ref: OwnerRef) -> None:
        """Read an owner, with retries until it can be read. For a missing owner the feed receives None; the gang then
        waits, with that reason."""
        wait_s = _OWNER_RETRY_S
        document: dict[str, object] | None
        try:
            while True:
                try:
                    document = await read_owner(self._client, ref)
                    break
                except NotFound:
                    document = None
                    break
                except KubeError as error:
                    self._handlers.owner_failed()
                    _log.warning("pods of %s wait, as it cannot be read: %s; again in %g s", ref, error, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _OWNER_RETRY_MAX_S)
                if ref not in self.feed.gangs.wanted_owners():
                    return
            self.put(self.feed.gangs.owner(ref, document))
        finally:
            self._fetching.discard(ref)
