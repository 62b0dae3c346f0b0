# SPDX-License-Identifier: Apache-2.0
"""A collection kept up to date: list, watch, resume, list again, and now and then prove that nothing was missed.

Rules
- `known` changes only together with a call of the sink, and the sink sees every difference once, in order: also the
  deletes that happened while there was no watch, and a delete with an add when a name is reused (by the uid).
- A collection that the server does not serve (404: the CRD is not installed) is empty, counts as synced, and is looked
  for again every `recheck_s`.
- An object that cannot be decoded is reported, once until it is listed again, decoded or gone. If it was known before,
  its last good version stays: to forget a running pod would give its GPUs away twice.
- A stream that the server ends is resumed at once, 410 is a new list, anything else waits longer each time.
- An exception of the sink ends `run`: a state that has missed a change must not live on.
Does not know: what the objects mean.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Generic, TypeVar

from msgspec import Struct

from dovetail.kube.api.changes import Change as Change
from dovetail.kube.api.changes import whole as whole
from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import BadObject, Identified, Key, Keyed, Reader, T
from dovetail.kube.api.errors import ApiError, Gone, KubeError, NotFound, no_reply
from dovetail.kube.api.listing import Listing, gc_paused, list_all
from dovetail.kube.api.resources import Resource
from dovetail.kube.api.watch import HEARTBEAT_S, SILENT, Batch, watch

K = TypeVar("K", bound=Keyed)

log = logging.getLogger(__name__)

_BACKOFF_S = 0.2
# A server that comes back is found again soon: after an outage of a minute no more than half a minute is lost.
_BACKOFF_MAX_S = 5.0
# What held this long was no failure, however it ended.
_GOOD_STREAM_S = 10.0


class Drift(Struct, frozen=True):
    """What an audit found. An empty one (false in a condition) means that `known` is what the server has."""

    resource: Resource
    checked: int
    missing: tuple[Key, ...] = ()
    extra: tuple[Key, ...] = ()
    different: tuple[Key, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.different)


def log_bad_object(bad: BadObject) -> None:
    """How a bad object is reported unless the caller decides otherwise."""
    log.warning("%s %s is ignored: %s", bad.resource, "/".join(bad.key or ("?",)), bad.problem)


def log_error(error: KubeError) -> None:
    """How a failed list or watch is reported unless the caller decides otherwise."""
    log.warning("%s; trying again", error)


def log_drift(drift: Drift) -> None:
    """How a drift is reported unless the caller decides otherwise."""
    log.error("%s has drifted from the server, listing again: %s", drift.resource, drift)


class ReflectorHandlers(Struct, frozen=True):
    """What is called for a bad object, for a failed list or watch, and for a drift."""

    bad_object: Callable[[BadObject], None] = log_bad_object
    error: Callable[[KubeError], None] = log_error
    drift: Callable[[Drift], None] = log_drift


class ReflectorTimes(Struct, frozen=True):
    """The time between two audits, and between two looks for a kind that is not served; `heartbeat_s` and `apart_s` are
    those of `watch`."""

    audit_every_s: float = 600.0
    recheck_s: float = 60.0
    heartbeat_s: float = HEARTBEAT_S
    apart_s: float = 0.0


class Reflector(Generic[T]):
    """Follows one collection, or the part that `params` (labelSelector, fieldSelector) selects.

    known             by (namespace, name) what `keep` makes of the objects: the whole of them, or what somebody will
                      ask for after their changes were handed over, with the metadata; read only for others
    unreadable        keys of objects that exist but whose newest version could not be decoded
    synced            set once the first list is complete, and for good
    served            False while the server does not have this kind
    resource_version  up to where everything has been seen; "" when the next step is a list
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        kind: type[T],
        sink: Callable[[list[Change[T]]], None],
        *,
        params: Mapping[str, str] | None = None,
        keep: Callable[[T], T] = whole,
        handlers: ReflectorHandlers = ReflectorHandlers(),
        times: ReflectorTimes = ReflectorTimes(),
    ) -> None:
        self.resource = resource
        self.known: dict[Key, T] = {}
        self.unreadable: set[Key] = set()
        self.synced = asyncio.Event()
        self.served = True
        self.resource_version = ""
        self._client = client
        self._path = resource.path()
        self._reader = Reader(resource, kind)
        self._kind = kind
        self._sink = sink
        self._params = params
        self._keep = keep
        self._handlers = handlers
        self._times = times
        self._heard_s = time.monotonic()
        self._advanced = asyncio.Event()
        self._auditing = asyncio.Lock()
        # Keys deleted since the audit under way began.
        self._deleted: set[Key] = set()
        self._relist = False

    def staleness_s(self) -> float:
        """Seconds since the server last sent anything about this collection."""
        return time.monotonic() - self._heard_s

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._audit_now_and_then())

    async def audit(self) -> Drift:
        """Compare `known` with a list made on the side. Raises ApiError.

        What is newer than that list is left out, and the watch first gets the time of one heartbeat to catch up with
        it. After a drift the reflector lists again at the next word from the server. Resource versions are compared as
        numbers, which Kubernetes 1.35 made part of the API.
        """
        async with self._auditing:
            self._deleted = set()
            listing = await self._list(Identified)
            as_of = version_number(listing.resource_version)
            # Where no bookmark comes there was no event either, so what is not known after the wait was missed.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.heartbeat_s):
                    while version_number(self.resource_version) < as_of:
                        self._advanced.clear()
                        await self._advanced.wait()
            drift = self._drift(listing.objects, as_of)
        if drift:
            self._relist = True
            self._handlers.drift(drift)
        return drift

    def _drift(self, listed: Mapping[Key, Identified], as_of: int) -> Drift:
        def same_or_newer(key: Key) -> bool:
            mine, theirs = self.known[key].metadata, listed[key].metadata
            return (mine.uid, mine.resource_version) == (theirs.uid, theirs.resource_version) or is_newer(key)

        def is_newer(key: Key) -> bool:
            return version_number(self.known[key].metadata.resource_version) > as_of

        known = self.known.keys() - self.unreadable
        return Drift(
            self.resource,
            checked=len(listed),
            missing=tuple(sorted(listed.keys() - self.known.keys() - self.unreadable - self._deleted)),
            extra=tuple(sorted(key for key in known - listed.keys() if not is_newer(key))),
            different=tuple(sorted(key for key in known & listed.keys() if not same_or_newer(key))),
        )

    async def _audit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._times.audit_every_s * (0.8 + 0.4 * self._client.jitter()))
            if self.synced.is_set() and self.served:
                try:
                    await self.audit()
                except KubeError as error:
                    self._handlers.error(error)

    async def _follow(self) -> None:
        failures = 0
        while True:
            began_s = time.monotonic()
            calm = False
            try:
                await self._list_and_watch()
                calm = self._heard_s > began_s
            except Gone:
                self.resource_version = ""
                # All watchers of a restarted server have to list at the same moment.
                await asyncio.sleep(self._client.jitter())
            except NotFound:
                self._replace({}, [], "")
                self.served = False
                await asyncio.sleep(self._times.recheck_s)
                continue
            except KubeError as error:
                if self._refuses_streaming_list(error):
                    self._client.without_streaming_list.add(self._path)
                    continue
                self._handlers.error(error)
            else:
                # The end of a watch is a word, too.
                self._heard_s = time.monotonic()
            failures = 0 if calm or time.monotonic() - began_s > _GOOD_STREAM_S else failures + 1
            if failures:
                backoff_s = min(_BACKOFF_MAX_S, _BACKOFF_S * 2.0**failures)
                await asyncio.sleep(backoff_s * (0.5 + 0.5 * self._client.jitter()))

    def _refuses_streaming_list(self, error: KubeError) -> bool:
        """Old servers call the option invalid, or take the watch and never send the bookmark that ends the list."""
        streaming = not self.resource_version and self._path not in self._client.without_streaming_list
        return streaming and isinstance(error, ApiError) and (error.status in (400, 422) or error.reason == SILENT)

    async def _list_and_watch(self) -> None:
        """A streaming list, or a watch to its end; before the watch a list in pages, where one is needed."""
        if not self.resource_version and self._path in self._client.without_streaming_list:
            listing = await self._list(self._kind)
            self._replace(listing.objects, listing.bad, listing.resource_version)
        batches = watch(
            self._client,
            self._reader,
            self.resource_version,
            params=self._params,
            heartbeat_s=self._times.heartbeat_s,
            apart_s=self._times.apart_s,
        )
        async with aclosing(batches):
            if not self.resource_version:
                with gc_paused():
                    await self._stream_list(batches)
                return
            async for batch in batches:
                self._apply(batch)
                if self._relist:
                    self._relist = False
                    self.resource_version = ""
                    return

    async def _list(self, kind: type[K]) -> Listing[K]:
        return await list_all(self._client, self.resource, kind, params=self._params)

    async def _stream_list(self, batches: AsyncIterator[Batch[T]]) -> None:
        objects: dict[Key, T] = {}
        bad: list[BadObject] = []
        async for batch in batches:
            self._heard_s = time.monotonic()
            for event in batch.events:
                if isinstance(event, BadObject):
                    bad.append(event)
                else:
                    meta = event.object.metadata
                    objects[meta.namespace, meta.name] = event.object
            if batch.initial_end:
                self._replace(objects, bad, batch.resource_version)
                return
        raise no_reply("Dropped", "the stream ended before the list did", f"GET {self._path}", harmless=True)

    def _replace(self, objects: dict[Key, T], bad: list[BadObject], resource_version: str) -> None:
        """Take a complete list for what is known, and hand over the differences."""
        log.debug("%s: %d objects are listed, at version %s", self.resource, len(objects), resource_version)
        self.unreadable = {one.key for one in bad if one.key}
        for one in bad:
            self._handlers.bad_object(one)
        changes: list[Change[T]] = []
        # Not a difference of sets, whose order changes from run to run.
        for key in [key for key in self.known if key not in objects and key not in self.unreadable]:
            self._remove(key, self.known[key], changes)
        for key, object in objects.items():
            self._put(key, object, changes)
        self._relist = False
        self._finish(changes, resource_version)
        self.served = True
        self.synced.set()

    def _apply(self, batch: Batch[T]) -> None:
        changes: list[Change[T]] = []
        for event in batch.events:
            if isinstance(event, BadObject):
                if event.key not in self.unreadable or event.deleted:
                    # Somebody may write it all the time.
                    self._handlers.bad_object(event)
                if event.key is None:
                    continue
                if event.deleted:
                    self.unreadable.discard(event.key)
                    if event.key in self.known:
                        self._remove(event.key, self.known[event.key], changes)
                else:
                    self.unreadable.add(event.key)
                continue
            key = event.object.metadata.namespace, event.object.metadata.name
            self.unreadable.discard(key)
            if event.type == "DELETED":
                self._remove(key, event.object, changes)
            else:
                self._put(key, event.object, changes)
        self._finish(changes, batch.resource_version or self.resource_version)

    def _put(self, key: Key, object: T, changes: list[Change[T]]) -> None:
        old = self.known.get(key)
        if old is not None and old.metadata.uid != object.metadata.uid:
            self._remove(key, old, changes)
            old = None
        if old is None:
            changes.append(Change("added", object))
        elif old.metadata.resource_version != object.metadata.resource_version:
            changes.append(Change("modified", object))
        self.known[key] = self._keep(object)

    def _remove(self, key: Key, last: T, changes: list[Change[T]]) -> None:
        old = self.known.pop(key, None)
        if old is not None:
            changes.append(Change("deleted", last))
            if self._auditing.locked():
                self._deleted.add(key)

    def _finish(self, changes: list[Change[T]], resource_version: str) -> None:
        self.resource_version = resource_version
        self._heard_s = time.monotonic()
        self._advanced.set()
        if changes:
            self._sink(changes)


def version_number(resource_version: str) -> int:
    """The place of a resource version in the order of its collection; 0 where it has none."""
    return int(resource_version) if resource_version.isdecimal() else 0
