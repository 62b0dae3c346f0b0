# SPDX-License-Identifier: Apache-2.0
"""The end of objects: grace periods, finalizers, dependents of an owner, contents of a namespace.

What upstream's controllers do some time later is done in the same step here, so a foreground deletion is an ordinary
one. A dependent that names several owners goes with the last of them. Not known here: an owner that was already gone
when its dependent was created does not take it along.

`commit` and `remove` are the writes that all of the API goes through: they keep the index of owners, and the resources
that custom resource definitions declare, in step with the store.

Sources: k8s.io/apiserver/pkg/registry/rest/delete.go, pkg/registry/generic/registry/store.go,
k8s.io/kubernetes/pkg/registry/core/pod/strategy.go (CheckGracefulDelete).
"""

from __future__ import annotations

from dovetail.apiserver import failures
from dovetail.apiserver.admission import check_preconditions
from dovetail.apiserver.objects import (
    Clock,
    Key,
    Object,
    key_of,
    object_at,
    objects_at,
    seconds_of,
    text_at,
    timestamp,
    value_at,
    with_metadata,
    with_status,
)
from dovetail.apiserver.pods import is_finished
from dovetail.apiserver.resources import Catalogue, ServedResource
from dovetail.apiserver.store import Store

_PERMANENT = ("default", "kube-system", "kube-public")
_DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


class Deletions:
    """Deletes objects of one store."""

    def __init__(self, store: Store, catalogue: Catalogue, clock: Clock) -> None:
        self._store = store
        self._catalogue = catalogue
        self._clock = clock
        self._emptied = ""
        """The namespace whose contents are being deleted now: it is examined once, after that."""
        self._dependents: dict[str, set[tuple[str, Key]]] = {}
        """Owner uid -> collection and key of the objects that have named it as their owner."""
        for collection in store.collections:
            for obj in collection.objects.values():
                self._index(collection.name, obj)

    def commit(self, resource: ServedResource, obj: Object) -> Object:
        """Stores an object that has passed all checks."""
        before = self._store.get(resource.collection, *key_of(obj))
        stored = self._store.put_raw(resource.collection, obj)
        self._unindex(resource.collection, before)
        self._index(resource.collection, stored)
        return stored

    def _index(self, collection: str, stored: Object) -> None:
        for reference in objects_at(stored, "metadata.ownerReferences"):
            self._dependents.setdefault(text_at(reference, "uid"), set()).add((collection, key_of(stored)))
        if collection == _DEFINITIONS:
            self._catalogue.define(stored)

    def _unindex(self, collection: str, gone: Object | None) -> None:
        for reference in objects_at(gone, "metadata.ownerReferences"):
            uid = text_at(reference, "uid")
            dependents = self._dependents.get(uid, set())
            dependents.discard((collection, key_of(gone or {})))
            if not dependents:
                self._dependents.pop(uid, None)

    def remove(self, resource: ServedResource, key: Key) -> Object:
        """Takes an object out for good. Returns its last state."""
        gone = self._store.remove(resource.collection, key)
        self._unindex(resource.collection, gone)
        if resource.collection == _DEFINITIONS:
            for owned in list(self._store.collection(key[1]).objects):
                self._store.remove(key[1], owned)
            self._catalogue.undefine(gone)
        self._release_dependents(text_at(gone, "metadata.uid"), collect=True)
        self._finish_namespace(key[0])
        return gone

    def delete(self, resource: ServedResource, key: Key, options: Object, *, dry_run: bool = False) -> Object:
        """The object, if it lives on for a while or the resource is one that returns it; else a Status of success.

        `options` is a DeleteOptions object. Raises 403 (a namespace that always is), 404 and 409 Conflict
        (preconditions) Failures.
        """
        obj = self._store.get(resource.collection, *key)
        if obj is None:
            raise failures.not_found(resource.group, resource.plural, key[1])
        wanted = object_at(options, "preconditions")
        check_preconditions(resource, obj, text_at(wanted, "uid"), text_at(wanted, "resourceVersion"))
        uid = text_at(obj, "metadata.uid")
        if dry_run:
            return failures.success(resource.group, resource.plural, key[1], uid)
        if options.get("propagationPolicy") == "Orphan":
            self._release_dependents(uid, collect=False)
        if resource.collection == "namespaces":
            if key[1] in _PERMANENT:
                raise failures.forbidden("", "namespaces", key[1], "this namespace may not be deleted")
            return self._delete_namespace(resource, obj)
        grace_s = _grace_s(obj, options) if resource.collection == "pods" else 0
        if not grace_s and not held(obj):
            gone = self.remove(resource, key)
            if "returned" in resource.traits:
                return gone
            return failures.success(resource.group, resource.plural, key[1], uid)
        marked = self._marked(obj, grace_s)
        return obj if marked is obj else self.commit(resource, marked)

    def _marked(self, obj: Object, grace_s: int) -> Object:
        """The object as being deleted. Once it is, only a shorter grace period changes it."""
        end_s = seconds_of(text_at(obj, "metadata.deletionTimestamp"))
        old_grace_s = value_at(obj, "metadata.deletionGracePeriodSeconds") or 0
        generation = value_at(obj, "metadata.generation")
        if end_s is None:
            start_s, generation = self._clock(), generation + 1 if isinstance(generation, int) else None
        elif grace_s < old_grace_s:
            start_s = end_s - old_grace_s
        else:
            return obj
        end = timestamp(max(start_s + grace_s, self._clock()))
        return with_metadata(obj, deletionTimestamp=end, deletionGracePeriodSeconds=grace_s, generation=generation)

    def _delete_namespace(self, resource: ServedResource, namespace: Object) -> Object:
        name = text_at(namespace, "metadata.name")
        marked = self._marked(namespace, 0)
        if marked is not namespace:
            namespace = self.commit(resource, with_status(marked, phase="Terminating"))
        self._emptied = name
        try:
            for collection in self._store.collections:
                for key in [key for key in collection.objects if key[0] == name]:
                    # A dependent may have gone with its owner, earlier in this loop.
                    if key in collection.objects:
                        self.delete(self._resource(collection.name), key, {})
        finally:
            self._emptied = ""
        self._finish_namespace(name)
        return namespace

    def _finish_namespace(self, name: str) -> None:
        """Removes a namespace that is being deleted, once it is empty."""
        if name == self._emptied:
            return
        namespace = self._store.get("namespaces", "", name)
        if text_at(namespace, "status.phase") != "Terminating" or namespace is None or held(namespace):
            return
        if not any(key[0] == name for collection in self._store.collections for key in collection.objects):
            self.remove(self._resource("namespaces"), ("", name))

    def _release_dependents(self, owner: str, *, collect: bool) -> None:
        """Takes the reference to the owner off its dependents, and deletes those that it was the last owner of."""
        for collection, key in self._dependents.pop(owner, ()):
            obj = self._store.get(collection, *key)
            references = objects_at(obj, "metadata.ownerReferences")
            others = [reference for reference in references if reference.get("uid") != owner]
            if obj is None or len(others) == len(references):
                continue
            if collect and not others:
                self.delete(self._resource(collection), key, {})
            else:
                self.commit(self._resource(collection), with_metadata(obj, ownerReferences=others or None))

    def _resource(self, collection: str) -> ServedResource:
        """The resource of a collection that the API has written to, even if its group is no longer served."""
        group = collection.partition(".")[2]
        return self._catalogue.of_collection(collection) or ServedResource(group, "", collection.partition(".")[0], "")


def held(obj: Object) -> bool:
    """Whether finalizers hold the object."""
    return bool(finalizers_of(obj))


def finalizers_of(obj: Object) -> list[str]:
    return list(object_at(obj, "metadata").get("finalizers") or ())


def _grace_s(pod: Object, options: Object) -> int:
    """A pod that no kubelet runs goes at once; a negative period means one second."""
    if not text_at(pod, "spec.nodeName") or is_finished(pod):
        return 0
    period_s = options.get("gracePeriodSeconds")
    if period_s is None:
        period_s = value_at(pod, "spec.terminationGracePeriodSeconds")
    return 0 if not isinstance(period_s, int) else 1 if period_s < 0 else period_s
