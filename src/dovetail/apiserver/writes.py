# SPDX-License-Identifier: Apache-2.0
"""Create, update and bind as a Kubernetes API server does them, on top of the store.

Each is one synchronous step: the check of a resource version and the write that depends on it cannot be torn apart.
Objects go in and come out in stored form; refusals are `Failure`s.

Sources: k8s.io/apiserver/pkg/registry/rest/{create,update}.go, pkg/registry/generic/registry/store.go,
k8s.io/kubernetes/pkg/registry/core/pod/storage/storage.go.
"""

from __future__ import annotations

import uuid

from dovetail.apiserver import failures, pods
from dovetail.apiserver.admission import (
    check_namespace,
    check_preconditions,
    check_version,
    in_namespace,
    named,
    priority_of,
    refuse,
    with_priority,
)
from dovetail.apiserver.deletions import Deletions, finalizers_of, held
from dovetail.apiserver.kinds import NO_RULES, RULES, metadata_problems
from dovetail.apiserver.objects import (
    Clock,
    Key,
    Object,
    key_of,
    object_at,
    objects_at,
    text_at,
    timestamp,
    value_at,
    with_metadata,
)
from dovetail.apiserver.quota import StoreQuota
from dovetail.apiserver.resources import ServedResource
from dovetail.apiserver.store import Store

_DELETION_FIELDS = ("deletionTimestamp", "deletionGracePeriodSeconds")
_FIXED_FIELDS = ("uid", "creationTimestamp", "generation", *_DELETION_FIELDS)
_STATUS_METADATA = ("labels", "annotations", "finalizers")
_NO_NEW_FINALIZERS = "no new finalizers can be added if the object is being deleted, found new finalizers"


class Writes:
    """Writes objects of one store."""

    def __init__(self, store: Store, deletions: Deletions, clock: Clock, quota: StoreQuota | None = None) -> None:
        self._store = store
        self._deletions = deletions
        self._clock = clock
        self._quota = quota or StoreQuota(store)

    def existing(self, resource: ServedResource, key: Key) -> Object:
        """Raises a 404 Failure."""
        found = self._store.get(resource.collection, *key)
        if found is None:
            raise failures.not_found(resource.group, resource.plural, key[1])
        return found

    def create(self, resource: ServedResource, namespace: str, obj: Object, *, dry_run: bool = False) -> Object:
        """The stored object. Raises 400, 403, 404 (no such namespace), 409 AlreadyExists, 413 and 422
        Failures."""
        obj = in_namespace(resource, namespace, obj)
        if text_at(obj, "metadata.resourceVersion"):
            raise failures.Failure(500, "", "resourceVersion should not be set on objects to be created")
        check_namespace(self._store, resource, obj)
        rules = RULES.get(resource.collection, NO_RULES)
        obj = rules.defaulted(named(self._store, resource, obj))
        if rules.prioritised:
            obj = with_priority(self._store, resource, obj)
        refuse(resource, obj, metadata_problems(obj) + rules.problems(obj))
        if self._store.get(resource.collection, *key_of(obj)) is not None:
            raise failures.already_exists(resource.group, resource.plural, key_of(obj)[1])
        if "status" in resource.traits and "born-with-status" not in resource.traits:
            obj = rules.born(obj, self._clock())
        fixed: Object = dict.fromkeys(_DELETION_FIELDS) | {
            "uid": str(uuid.uuid4()), "creationTimestamp": timestamp(self._clock()),
            "generation": 1 if "generation" in resource.traits else None,
        }  # fmt: skip
        obj = with_metadata(obj, **fixed)
        self._quota.check(resource, obj)
        return obj if dry_run else self._deletions.commit(resource, obj)

    def update(
        self, resource: ServedResource, key: Key, new: Object, subresource: str, *, dry_run: bool = False
    ) -> Object:
        """The stored object. `subresource` is "status", or "" for everything else.

        An update that changes nothing makes no new version; one that takes the last finalizer off an object that is
        being deleted removes it. Raises 400, 403 (no room), 404, 409 Conflict (stale version, other uid), 413
        and 422 Failures.
        """
        old = self.existing(resource, key)
        new = in_namespace(resource, key[0], new)
        if (name := text_at(new, "metadata.name")) != key[1]:
            raise failures.bad_request(f"the name of the object ({name}) does not match the name on the URL ({key[1]})")
        check_version(resource, new, old)
        check_preconditions(resource, old, text_at(new, "metadata.uid"), "")
        updated = _with_new_status if subresource == "status" else self._updated
        candidate = updated(resource, new, old)
        candidate = with_metadata(candidate, resourceVersion=text_at(old, "metadata.resourceVersion"))
        if candidate == old:
            return candidate
        self._quota.check(resource, candidate)
        if dry_run:
            return candidate
        ending = text_at(old, "metadata.deletionTimestamp") and not value_at(old, "metadata.deletionGracePeriodSeconds")
        if ending and held(old) and not held(candidate):
            return self._deletions.remove(resource, key)
        return self._deletions.commit(resource, candidate)

    def _updated(self, resource: ServedResource, new: Object, old: Object) -> Object:
        """The new object, with what a client cannot change taken from the old one."""
        rules = RULES.get(resource.collection, NO_RULES)
        new = rules.defaulted(new)
        if rules.prioritised:
            new = new | {"spec": priority_of(old) | object_at(new, "spec")}
        if "status" in resource.traits:
            new = _status_from(old, new)
        fixed = {field: value_at(old, f"metadata.{field}") for field in _FIXED_FIELDS}
        new = with_metadata(new, **fixed)
        problems = metadata_problems(new) + rules.problems(new) + rules.update_problems(new, old)
        added = [name for name in finalizers_of(new) if name not in finalizers_of(old)]
        if added and fixed["deletionTimestamp"]:
            problems.append(failures.not_allowed("metadata.finalizers", f"{_NO_NEW_FINALIZERS} {added}"))
        refuse(resource, new, problems)
        if fixed["generation"] is not None and _specification(new) != _specification(old):
            new = with_metadata(new, generation=fixed["generation"] + 1)
        return new

    def bind(self, resource: ServedResource, key: Key, binding: Object, *, dry_run: bool = False) -> Object:
        """Bind a pod to a node. Raises 400, 404, 409 Conflict and 422 Failures. Source: BindingREST.assignPod."""
        name = key[1]
        if text_at(binding, "metadata.name") != name:
            raise failures.bad_request("name in URL does not match name in Binding object")
        if not text_at(binding, "target.name"):
            raise failures.invalid("", "Binding", name, [failures.missing("target.name")])
        pod = self.existing(resource, key)
        uid, version = text_at(binding, "metadata.uid"), text_at(binding, "metadata.resourceVersion")
        check_preconditions(resource, pod, uid, version)
        why = (
            f"pod {name} is being deleted, cannot be assigned to a host"
            if text_at(pod, "metadata.deletionTimestamp")
            else f'pod {name} is already assigned to node "{node}"'
            if (node := text_at(pod, "spec.nodeName"))
            else f"pod {name} has non-empty .spec.schedulingGates"
            if objects_at(pod, "spec.schedulingGates")
            else ""
        )
        if why:
            raise failures.conflict("", "pods/binding", name, why)
        pod = pods.bound(pod, binding, self._clock())
        self._quota.check(resource, pod)
        if not dry_run:
            self._deletions.commit(resource, pod)
        return failures.success("", "pods", name)


def _with_new_status(resource: ServedResource, new: Object, old: Object) -> Object:
    """The old object with the status of the new one, and with some of its metadata if the kind allows that."""
    taken = () if "isolated" in resource.traits else _STATUS_METADATA
    metadata: Object = {field: object_at(new, "metadata").get(field) for field in taken}
    if managed := object_at(new, "metadata").get("managedFields"):
        metadata["managedFields"] = managed
    rules = RULES.get(resource.collection, NO_RULES)
    kept = {field: value for field, value in object_at(old, "status").items() if field in rules.sticky_status}
    updated = with_metadata(_status_from(new, old), **metadata)
    updated = updated | {"status": kept | object_at(new, "status")} if kept else updated
    refuse(resource, updated, metadata_problems(updated) + rules.status_problems(updated, old))
    return updated


def _specification(obj: Object) -> Object:
    """The part of the object whose changes the generation counts."""
    return {field: value for field, value in obj.items() if field not in ("metadata", "status")}


def _status_from(source: Object, target: Object) -> Object:
    """The target with the status of the source."""
    rest = {field: value for field, value in target.items() if field != "status"}
    return rest | {"status": source["status"]} if "status" in source else rest
