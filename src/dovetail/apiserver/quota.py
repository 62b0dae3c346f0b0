# SPDX-License-Identifier: Apache-2.0
"""How much a store may hold: number of objects, their bytes, and the bytes of one.

Only writes of clients are refused; what follows from them, such as the status of a job or the mark of an object that
is being deleted, always has room.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dovetail.apiserver import failures
from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.objects import Object, key_of, text_at
from dovetail.apiserver.resources import ServedResource
from dovetail.apiserver.store import Store


class QuotaLimits(Struct, frozen=True):
    """Bytes are those of the objects as JSON."""

    objects: int
    size: int
    object_size: int


class StoreQuota:
    """Counts the objects of one store. `limits` None refuses nothing and counts nothing."""

    def __init__(self, store: Store, limits: QuotaLimits | None = None) -> None:
        self._store = store
        self._limits = limits
        self.objects = 0
        self.size = 0
        if limits is not None:
            for collection in store.collections:
                self.objects += len(collection.objects)
                self.size += sum(map(_size, collection.objects.values()))
            store.listeners.append(self._count)

    def _count(self, change: StoreChange) -> None:
        if change.previous is not None:
            self.objects -= 1
            self.size -= _size(change.previous)
        if not change.removed:
            self.objects += 1
            self.size += _size(change.object)

    def check(self, resource: ServedResource, obj: Object) -> None:
        """Raises a 413 Failure for an object that is too large, a 403 QuotaExceeded where there is no room for it."""
        limits = self._limits
        if limits is None:
            return
        name, size = text_at(obj, "metadata.name"), _size(obj)
        if size > limits.object_size:
            raise failures.too_large(f"the object has {size} bytes as JSON; at most {limits.object_size} are stored")
        old = self._store.get(resource.collection, *key_of(obj))
        if old is None and self.objects >= limits.objects:
            why = f"requested: 1 object, used: {self.objects}, limited: {limits.objects}"
            raise failures.QuotaExceeded(resource.group, resource.plural, name, why)
        more = size - (_size(old) if old is not None else 0)
        if more > 0 and self.size + more > limits.size:
            why = f"requested: {more} bytes, used: {self.size}, limited: {limits.size}"
            raise failures.QuotaExceeded(resource.group, resource.plural, name, why)


def _size(obj: Object) -> int:
    return len(msgspec.json.encode(obj))
