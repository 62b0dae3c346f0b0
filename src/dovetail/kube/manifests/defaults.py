# SPDX-License-Identifier: Apache-2.0
"""What an API server and its controllers would add to manifests, as far as a scheduler reads it.

Rules
- A node without allocatable gets its capacity; a volume that nothing claims is available.
- A pod gets the number of its priority class (or of the global default, or 0) and the name of the default scheduler;
  so does one whose class is not there, which is reported. A claim gets the newest of the default storage classes.
- A pod that names a ResourceClaimTemplate gets a ResourceClaim of its own, unless its status names one.
- An object without a creation time counts as made after all that have one, in the order of the input.
Source: https://github.com/kubernetes/kubernetes: plugin/pkg/admission/{priority,storage/storageclass/setdefault},
pkg/apis/scheduling/types.go, pkg/controller/resourceclaim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct, structs

from dovetail.kube.api.resources import CLAIM_TEMPLATES, RESOURCE_CLAIMS, STORAGE_CLASSES, Resource
from dovetail.kube.manifests.documents import Document
from dovetail.kube.objects.base import ObjectMeta, OwnerReference, Wire
from dovetail.kube.objects.claims import ClaimMeta, ResourceClaim
from dovetail.kube.objects.pods import Pod, PodResourceClaimStatus
from dovetail.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dovetail.kube.translate.volumes import CLASS_ANNOTATION

# (group, kind, namespace, name); the namespace of what has none is "".
Key = tuple[str, str, str, str]

NAMESPACE = "default"
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", False, "PriorityClass")
DEFAULT_SCHEDULER = "default-scheduler"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class PriorityClass(Wire, frozen=True):
    """scheduling.k8s.io/v1."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False


class Object(Struct):
    """`wire` is `document`, read and completed."""

    document: Document
    key: Key
    wire: Any


Unknown = tuple[Object, str, str]
"""(object, field, message)"""


def key_of(resource: Resource, namespace: str, name: str) -> Key:
    return resource.group, resource.kind, namespace, name


def of_kind(objects: Mapping[Key, Object], resource: Resource) -> Iterator[Object]:
    return (obj for obj in objects.values() if obj.key[:2] == (resource.group, resource.kind))


def with_allocatable(node: dict[str, Any]) -> dict[str, Any]:
    """A node's manifest with its capacity for its allocatable where that is missing."""
    status = node.get("status")
    if not isinstance(status, dict) or "capacity" not in status or "allocatable" in status:
        return node
    return node | {"status": status | {"allocatable": status["capacity"]}}


def stamp(objects: Mapping[Key, Object]) -> None:
    """Give objects without a creation time one after all others, a millisecond apart."""
    known = [obj.wire.metadata.creation_timestamp for obj in objects.values()]
    newest = max((moment for moment in known if moment is not None), default=_EPOCH)
    for i, obj in enumerate(objects.values(), 1):
        meta: ObjectMeta = obj.wire.metadata
        if meta.creation_timestamp is None:
            meta = structs.replace(meta, creation_timestamp=newest + timedelta(milliseconds=i))
            obj.wire = structs.replace(obj.wire, metadata=meta)


def complete(objects: dict[Key, Object], scheduler_name: str | None) -> list[Unknown]:
    """Complete stamped objects and add the claims of pods; return the names of missing objects. All pods get this
    scheduler name; None: they keep their own."""
    classes = {obj.key[3]: obj.wire for obj in of_kind(objects, PRIORITY_CLASSES)}
    priorities = _SYSTEM_PRIORITIES | {name: found.value for name, found in classes.items()}
    usual = next((found.value for found in classes.values() if found.global_default), 0)
    storage_class = _default_storage_class(objects)
    unknown: list[Unknown] = []
    for obj in list(objects.values()):
        wire = obj.wire
        if isinstance(wire, Pod):
            spec = wire.spec
            class_name = str(obj.document.value.get("spec", {}).get("priorityClassName", ""))
            priority = spec.priority
            if priority is None:
                priority = priorities.get(class_name) if class_name else usual
            if priority is None:
                message = f"PriorityClass {class_name!r} is not in the input: its priority is taken for {usual}"
                unknown.append((obj, "spec.priorityClassName", message))
                priority = usual
            name = scheduler_name or spec.scheduler_name or DEFAULT_SCHEDULER
            obj.wire = structs.replace(wire, spec=structs.replace(spec, priority=priority, scheduler_name=name))
            _make_claims(objects, obj)
        elif isinstance(wire, PersistentVolumeClaim):
            if wire.spec.storage_class_name is None and CLASS_ANNOTATION not in wire.metadata.annotations:
                obj.wire = structs.replace(wire, spec=structs.replace(wire.spec, storage_class_name=storage_class))
        elif isinstance(wire, PersistentVolume) and not wire.status.phase and wire.spec.claim_ref is None:
            obj.wire = structs.replace(wire, status=structs.replace(wire.status, phase="Available"))
    return unknown


def _default_storage_class(objects: Mapping[Key, Object]) -> str | None:
    """The newest of those that are marked so."""
    marked: list[StorageClass] = [obj.wire for obj in of_kind(objects, STORAGE_CLASSES)]
    marked = [found for found in marked if found.metadata.annotations.get(_DEFAULT_CLASS) == "true"]
    newest = max(marked, key=lambda found: found.metadata.creation_timestamp or _EPOCH, default=None)
    return newest.metadata.name if newest is not None else None


def _make_claims(objects: dict[Key, Object], obj: Object) -> None:
    """A ResourceClaim of the pod's own for each template that it names, unless its status names one."""
    pod: Pod = obj.wire
    meta, statuses = pod.metadata, pod.status.resource_claim_statuses
    made = {status.name for status in statuses}
    owner = OwnerReference("v1", "Pod", meta.name, meta.uid, True)
    for claim in pod.spec.resource_claims:
        template = objects.get(key_of(CLAIM_TEMPLATES, meta.namespace, claim.resource_claim_template_name))
        if claim.name in made or template is None:
            continue
        name = f"{meta.name}-{claim.name}"
        key = key_of(RESOURCE_CLAIMS, meta.namespace, name)
        own = ClaimMeta(name, meta.namespace, "/".join(key), owner_references=(owner,))
        objects.setdefault(key, Object(obj.document, key, ResourceClaim(own, template.wire.spec.spec)))
        statuses = (*statuses, PodResourceClaimStatus(claim.name, name))
    obj.wire = structs.replace(pod, status=structs.replace(pod.status, resource_claim_statuses=statuses))
