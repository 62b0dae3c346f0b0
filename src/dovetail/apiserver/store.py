# SPDX-License-Identifier: Apache-2.0
"""The versioned object store: what etcd and the watch cache are to a real API server.

One counter gives every write its resource version. Each collection keeps its objects and its last changes; those are
enough to resume a watch, to list as of an earlier version, and to feed every watcher, each of which holds a place in
them and no queue of their own. A watcher that falls behind by more than the history finds its place gone, as upstream.

`put_raw` and `remove` are the only writes, and they check nothing: rules live in `writes`. So a test can store any
document at all, as long as it has a name.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Self

import msgspec
from msgspec import Struct, field

from dovetail.apiserver.failures import expired, too_large_version
from dovetail.apiserver.objects import Key, Object, key_of, with_metadata
from dovetail.apiserver.selectors import EVERYTHING, Selection
from dovetail.apiserver.views import ObjectView


class StoreChange(Struct, eq=False):
    """One write. `previous` is the object before it, None when it was created."""

    version: int
    object: Object
    previous: Object | None
    removed: bool
    _lines: dict[tuple[str, ObjectView], bytes] = field(default_factory=dict)

    def line(self, view: ObjectView, selection: Selection) -> bytes:
        """The watch event for a watcher of the selection; b"" if that sees no change. Encoded once per view.

        An object that ceases to match is DELETED as it last matched, with the version of the write.
        """
        before = self.previous is not None and selection.holds(self.previous)
        after = not self.removed and selection.holds(self.object)
        if not before and not after:
            return b""
        kind = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
        encoded = self._lines.get((kind, view))
        if encoded is None:
            shown = self.object if after or self.previous is None else _at(self.previous, self.version)
            encoded = self._lines[kind, view] = event_line(kind, view.of(shown))
        return encoded


def event_line(kind: str, shown: Object) -> bytes:
    """A watch event as it goes over the wire."""
    return msgspec.json.encode({"type": kind, "object": shown}) + b"\n"


def _at(obj: Object, version: int) -> Object:
    return with_metadata(obj, resourceVersion=str(version))


class Collection:
    """The objects of one resource, and how they came to be."""

    def __init__(self, name: str, history: int) -> None:
        self.name = name
        self.objects: dict[Key, Object] = {}
        self.changes: deque[StoreChange] = deque(maxlen=history)
        self.changes_ever = 0
        self.floor = 0
        """The newest version whose change is forgotten: watches resume from here on, not from before."""
        self.listeners: list[Callable[[StoreChange], None]] = []
        """Called with every write while it is being made; they only record it."""

    def record(self, change: StoreChange) -> None:
        if len(self.changes) == self.changes.maxlen:
            self.floor = self.changes[0].version
        self.changes.append(change)
        self.changes_ever += 1
        for listener in self.listeners:
            listener(change)

    def forget_history(self, version: int) -> None:
        self.changes.clear()
        self.floor = version

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
    """All collections, by `Resource.collection`. `history` bounds the changes kept for each of them."""

    def __init__(self, history: int = 20_000) -> None:
        self.version = 1
        self._history = history
        self._collections: dict[str, Collection] = {}

    def collection(self, name: str) -> Collection:
        found = self._collections.get(name)
        if found is None:
            found = self._collections[name] = Collection(name, self._history)
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
        """Stores the document as it is, under the next resource version, with no check and no default."""
        place = self.collection(collection)
        key = key_of(obj)
        previous = place.objects.get(key)
        self.version += 1
        stored = place.objects[key] = _at(obj, self.version)
        place.record(StoreChange(self.version, stored, previous, removed=False))
        return stored

    def remove(self, collection: str, key: Key) -> Object:
        """Takes an object out. Returns its last state. Raises KeyError if there is none."""
        place = self.collection(collection)
        previous = place.objects.pop(key)
        self.version += 1
        gone = _at(previous, self.version)
        place.record(StoreChange(self.version, gone, previous, removed=True))
        return gone

    def check_version(self, version: int) -> None:
        """Raises a 504 Failure for a version that is still to come."""
        if version > self.version:
            raise too_large_version(version, self.version)

    def forget_history(self) -> None:
        """Make every version up to now too old to watch from or to list at."""
        self.version += 1
        for collection in self._collections.values():
            collection.forget_history(self.version)
