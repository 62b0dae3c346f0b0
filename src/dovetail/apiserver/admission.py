# SPDX-License-Identifier: Apache-2.0
"""What is checked and filled in before an object is written, beyond the rules of its kind.

Sources: k8s.io/apiserver/pkg/registry/rest, and the admission plugins NamespaceLifecycle and Priority in
k8s.io/apiserver/pkg/admission/plugin and k8s.io/kubernetes/plugin/pkg/admission.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dovetail.apiserver import failures
from dovetail.apiserver.failures import Cause
from dovetail.apiserver.objects import Object, object_at, text_at, with_metadata
from dovetail.apiserver.resources import ServedResource
from dovetail.apiserver.store import Store

DEEPEST = 100
"""Levels of an object. What goes through objects does so level by level, and ends long before the interpreter."""
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_PRIORITY_FIELDS = ("priority", "preemptionPolicy")
_STALE = "the object has been modified; please apply your changes to the latest version and try again"


def stored_form(resource: ServedResource, obj: Object) -> Object:
    """What a client sent, as it is stored. Raises a 400 Failure if it is not of the resource."""
    for field, want in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        has = obj.get(field)
        if has != want:
            raise failures.bad_request(f"the {field} in the data ({has}) does not match the expected {field} ({want})")
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise failures.bad_request("metadata: an object is needed")
    for field in ("labels", "annotations"):
        texts = metadata.get(field) or {}
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise failures.bad_request(f"metadata.{field}: an object of strings is needed")
    finalizers = metadata.get("finalizers") or []
    if not isinstance(finalizers, list) or not all(isinstance(name, str) for name in finalizers):
        raise failures.bad_request("metadata.finalizers: a list of strings is needed")
    if depth(obj) > DEEPEST:
        raise failures.bad_request(f"the object is nested deeper than {DEEPEST} levels")
    return resource.stored(obj)


def depth(document: object) -> int:
    """How many objects and lists are inside of each other, counted up to one more than DEEPEST."""
    found, level = 0, [document]
    while found <= DEEPEST:
        inner = [one for one in level if isinstance(one, (dict, list))]
        if not inner:
            break
        found += 1
        level = [value for one in inner for value in (one.values() if isinstance(one, dict) else one)]
    return found


def in_namespace(resource: ServedResource, namespace: str, obj: Object) -> Object:
    """The object with the namespace of the request. Raises a 400 Failure if it names another."""
    named = text_at(obj, "metadata.namespace")
    if named and named != namespace:
        why = "the namespace of the provided object does not match the namespace sent on the request"
        raise failures.bad_request(why)
    return with_metadata(obj, namespace=namespace if resource.namespaced else None)


def check_namespace(store: Store, resource: ServedResource, obj: Object) -> None:
    """Raises a 404 Failure for a namespace that is not there, a 403 for one that is being deleted."""
    if not resource.namespaced:
        return
    name = text_at(obj, "metadata.namespace")
    namespace = store.get("namespaces", "", name)
    if namespace is None:
        raise failures.not_found("", "namespaces", name)
    if text_at(namespace, "status.phase") == "Terminating":
        why = f"unable to create new content in namespace {name} because it is being terminated"
        cause = Cause("NamespaceTerminating", "metadata.namespace", f"namespace {name} is being terminated")
        raise failures.forbidden(resource.group, resource.plural, text_at(obj, "metadata.name"), why, [cause])


def named(store: Store, resource: ServedResource, obj: Object) -> Object:
    """The object with a name, made from generateName where it brings none."""
    prefix = text_at(obj, "metadata.generateName")
    while prefix and not text_at(obj, "metadata.name"):
        name = prefix + "".join(random.choices(_SUFFIX_LETTERS, k=5))
        if store.get(resource.collection, text_at(obj, "metadata.namespace"), name) is None:
            obj = with_metadata(obj, name=name)
    return obj


def priority_of(obj: Object) -> Object:
    """The spec fields that `with_priority` has filled in, which an update keeps by leaving them out."""
    return {field: value for field, value in object_at(obj, "spec").items() if field in _PRIORITY_FIELDS}


def with_priority(store: Store, resource: ServedResource, obj: Object) -> Object:
    """The object with the priority of its class, or of the default class. Raises a 403 Failure for a wrong one."""
    name = text_at(obj, "spec.priorityClassName")
    classes = store.collection("priorityclasses.scheduling.k8s.io").objects
    chosen = classes.get(("", name)) if name else next((c for c in classes.values() if c.get("globalDefault")), {})
    if chosen is None:
        why = f"no PriorityClass with name {name} was found"
        raise failures.forbidden(resource.group, resource.plural, text_at(obj, "metadata.name"), why)
    spec = object_at(obj, "spec")
    computed = {
        "priority": chosen.get("value", 0),
        "preemptionPolicy": chosen.get("preemptionPolicy", "PreemptLowerPriority"),
    }
    for field, value in computed.items():
        if spec.get(field, value) != value:
            why = f"spec.{field} {spec[field]} is not the {value} of the PriorityClass; leave it out"
            raise failures.forbidden(resource.group, resource.plural, text_at(obj, "metadata.name"), why)
    class_name = {"priorityClassName": text_at(chosen, "metadata.name")} if chosen else {}
    return obj | {"spec": spec | class_name | computed}


def check_preconditions(resource: ServedResource, obj: Object, uid: str, version: str) -> None:
    """Raises a 409 Failure if the object is another one, or another version of it, than was meant; "" means any."""
    for name, wanted, field in (("UID", uid, "uid"), ("ResourceVersion", version, "resourceVersion")):
        has = text_at(obj, f"metadata.{field}")
        if wanted and wanted != has:
            why = f"the {name} in the precondition ({wanted}) does not match the {name} in record ({has})"
            raise failures.conflict(resource.group, resource.plural, text_at(obj, "metadata.name"), why)


def check_version(resource: ServedResource, new: Object, old: Object) -> None:
    """Raises a 409 Failure for an update of an older version, a 422 for one without version where one is needed."""
    version, name = text_at(new, "metadata.resourceVersion"), text_at(old, "metadata.name")
    if not version and "versioned" in resource.traits:
        cause = failures.wrong("metadata.resourceVersion", 0, "must be specified for an update")
        raise failures.invalid(resource.group, resource.kind, name, [cause])
    if version and version != text_at(old, "metadata.resourceVersion"):
        raise failures.conflict(resource.group, resource.plural, name, _STALE)


def refuse(resource: ServedResource, obj: Object, problems: Sequence[Cause]) -> None:
    """Raises a 422 Failure if there are problems."""
    if problems:
        raise failures.invalid(resource.group, resource.kind, text_at(obj, "metadata.name"), problems)
