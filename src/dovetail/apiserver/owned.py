# SPDX-License-Identifier: Apache-2.0
"""What the objects of one kind own: an index over ownerReferences."""

from __future__ import annotations

from dovetail.apiserver.objects import Key, Object, key_of, objects_at, text_at


class Owned:
    """What is owned by objects of this kind, by the owner's uid."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._by_uid: dict[str, set[Key]] = {}

    def note(self, one: Object, *, removed: bool) -> Key | None:
        """Record the owner of an object. Returns the key of the owner; None if no object of the kind owns it."""
        owner = owner_of(one, self._kind)
        if owner is None:
            return None
        uid = text_at(owner, "uid")
        owned = self._by_uid.setdefault(uid, set())
        (owned.discard if removed else owned.add)(key_of(one))
        if not owned:
            del self._by_uid[uid]
        return text_at(one, "metadata.namespace"), text_at(owner, "name")

    def of(self, owner: Object) -> list[Key]:
        """The keys of what it owns, sorted."""
        return sorted(self._by_uid.get(text_at(owner, "metadata.uid"), ()))


def owner_of(one: Object, kind: str) -> Object | None:
    """The owner reference to an object of this kind."""
    return next((owner for owner in objects_at(one, "metadata.ownerReferences") if owner.get("kind") == kind), None)
