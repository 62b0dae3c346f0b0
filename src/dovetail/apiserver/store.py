# SPDX-License-Identifier: Apache-2.0
"""The versioned object store: what etcd and the watch cache are to a real API server.

One counter gives every write its resource version. Each collection keeps its objects and its last changes; those are
enough to resume a watch, to list as of an earlier version, and to feed every watcher, each of which holds a place in
them and no queue of their own. A watcher that falls behind by more than the history finds its place gone, as upstream.

Reads are answered from memory. Each write goes into a log as well (`change_log`), and whatever may show a write has to
wait for `written`: so nobody sees what a crash could take back.

`put_raw` and `remove` are the only writes, and they check nothing: rules live in `writes`. So a test can store any
document at all, as long as it has a name.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Self

from msgspec import Struct

from dovetail.apiserver.change_log import ChangeLog, MemoryLog
from dovetail.apiserver.changes import StoreChange, at_version
from dovetail.apiserver.failures import expired, too_large_version
from dovetail.apiserver.objects import Clock, Key, Object, key_of
from dovetail.apiserver.selectors import EVERYTHING, Selection


class HistoryBounds(Struct, frozen=True):
    """How much of its past a store keeps, over all collections: the oldest changes go when any bound is passed."""

    changes: int = 20_000
    age_s: float = float("inf")
    size: int = 1 << 62
    """Bytes of their documents as JSON, where the log measures them."""


class Collection:
    """The objects of one resource, and how they came to be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[Key, Object] = {}
        self.changes: deque[StoreChange] = deque()
        self.changes_ever = 0
        self.floor = 0
        """The newest version whose change is forgotten: watches resume from here on, not from before."""
        self.listeners: list[Callable[[StoreChange], None]] = []
        """Called with every write while it is being made; they only record it."""

    def record(self, change: StoreChange) -> None:
        self.changes.append(change)
        self.changes_ever += 1
        for listener in self.listeners:
            listener(change)

    def forget_oldest(self) -> StoreChange:
        """Drops the oldest change. Returns it."""
        change = self.changes.popleft()
        self.floor = change.version
        return change

    def since(self, version: int) -> int:
        """How many changes are newer than the version. Raises a 410 Failure if they are not all known."""
        if version < self.floor:
            raise expired(f"too old resource version: {version} ({self.floor})")
        newer = 0
        for change in reversed(self.changes):
            if change.version <= version:
                break
            newer += 1
        return newer

    def as_of(self, version: int) -> dict[Key, Object]:
        """The objects as they were at a version. Raises a 410 Failure if that is too long ago."""
        newer = self.since(version)
        objects = dict(self.objects) if newer else self.objects
        for change in islice(reversed(self.changes), newer):
            if change.previous is None:
                del objects[key_of(change.object)]
            else:
                objects[key_of(change.previous)] = change.previous
        return objects


class Watcher:
    """A position in a collection's changes, until the context ends; `changed` is set while there may be more to
    take."""

    def __init__(self, collection: Collection, pending: int = 0) -> None:
        self.changed = asyncio.Event()
        self.changed.set()
        self._collection = collection
        self._taken = collection.changes_ever - pending
        collection.listeners.append(self._wake)

    def _wake(self, _: StoreChange) -> None:
        self.changed.set()

    def take(self) -> list[StoreChange]:
        """What happened since the last call, oldest first. Raises a 410 Failure if some of it is forgotten."""
        self.changed.clear()
        changes = self._collection.changes
        pending = self._collection.changes_ever - self._taken
        if pending > len(changes):
            raise expired("too old resource version: the watcher fell behind the history")
        self._taken += pending
        return list(islice(changes, len(changes) - pending, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._collection.listeners.remove(self._wake)


class Store:
    """All collections, by `ServedResource.collection`. It begins with what its log has."""

    def __init__(
        self, bounds: HistoryBounds = HistoryBounds(), *, log: ChangeLog | None = None, clock: Clock = time.time
    ) -> None:  # fmt: skip
        self.log: ChangeLog = log or MemoryLog()
        self._bounds = bounds
        self._clock = clock
        self._collections: dict[str, Collection] = {}
        self._order: deque[Collection] = deque()
        """The collection of each change that is kept, oldest first."""
        self._history_size = 0
        self.listeners: list[Callable[[StoreChange], None]] = []
        """As those of a collection, for all of them."""
        contents = self.log.contents()
        self.version = contents.version
        self._floor = contents.floor
        for name, obj in contents.objects:
            self.collection(name).objects[key_of(obj)] = obj
        for name, change in contents.changes:
            self._record(self.collection(name), change)
        self._trim()

    def collection(self, name: str) -> Collection:
        found = self._collections.get(name)
        if found is None:
            found = self._collections[name] = Collection(name)
            found.floor = self._floor
        return found

    @property
    def collections(self) -> list[Collection]:
        return list(self._collections.values())

    def get(self, collection: str, namespace: str, name: str) -> Object | None:
        return self.collection(collection).objects.get((namespace, name))

    def list(self, collection: str, selection: Selection = EVERYTHING) -> list[Object]:
        """The objects that are selected, by namespace and name."""
        return [obj for _, obj in sorted(self.collection(collection).objects.items()) if selection.holds(obj)]

    def put_raw(self, collection: str, obj: Object) -> Object:
        """Stores the document as it is, under the next resource version, with no check and no default.

        Raises a 503 Failure if the log cannot take it, and has changed nothing then.
        """
        place = self.collection(collection)
        key = key_of(obj)
        version = self.version + 1
        stored = at_version(obj, version)
        self._commit(place, StoreChange(version, stored, place.objects.get(key), removed=False, at_s=self._clock()))
        return stored

    def remove(self, collection: str, key: Key) -> Object:
        """Takes an object out. Returns its last state. Raises KeyError if there is none, a 503 Failure as `put_raw`."""
        place = self.collection(collection)
        previous = place.objects[key]
        version = self.version + 1
        gone = at_version(previous, version)
        self._commit(place, StoreChange(version, gone, previous, removed=True, at_s=self._clock()))
        return gone

    def _commit(self, place: Collection, change: StoreChange) -> None:
        change.size = self.log.append(place.name, change)
        self.version = change.version
        key = key_of(change.object)
        if change.removed:
            del place.objects[key]
        else:
            place.objects[key] = change.object
        self._record(place, change)
        for listener in self.listeners:
            listener(change)
        self._trim()

    def _record(self, place: Collection, change: StoreChange) -> None:
        self._order.append(place)
        self._history_size += change.size
        place.record(change)

    def _trim(self) -> None:
        """Forgets what is beyond the bounds."""
        bounds, oldest_s = self._bounds, self._clock() - self._bounds.age_s
        floor = self._floor
        while self._order and (
            len(self._order) > bounds.changes
            or self._history_size > bounds.size
            or self._order[0].changes[0].at_s < oldest_s
        ):
            forgotten = self._order.popleft().forget_oldest()
            self._history_size -= forgotten.size
            floor = forgotten.version
        if floor != self._floor:
            self._floor = floor
            self.log.forget(floor)

    async def written(self) -> None:
        """Returns when all writes so far are where they survive the process. Raises a 503 Failure if one cannot be."""
        await self.log.written()

    def check_version(self, version: int) -> None:
        """Raises a 504 Failure for a version that is still to come."""
        if version > self.version:
            raise too_large_version(version, self.version)

    def forget_history(self) -> None:
        """Make every version up to now too old to watch from or to list at."""
        self.version += 1
        self._floor = self.version
        self._order.clear()
        self._history_size = 0
        for collection in self._collections.values():
            collection.changes.clear()
            collection.floor = self.version
        self.log.forget(self.version)
