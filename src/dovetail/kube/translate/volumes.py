# SPDX-License-Identifier: Apache-2.0
"""Claims, volumes, storage classes and attach limits: from wire structs to core records.

Rules
- A claim is bound once the volume controller has completed the bind. A claim with a volume name that is not completed
  waits, with any class (upstream treats it as unbound and immediate).
- A volume that is Released, Failed or being deleted offers no access mode, so no claim picks it.
- A volume with zone and region labels fits nodes with these values, or nodes that have no such label at all. A value
  may list several, joined by two underscores.
- An unreadable size fits nothing: it is too large in a claim, and zero in a volume. A selector above the limit selects
  nothing.
Sources: plugins volumebinding and volumezone, k8s.io/component-helpers/storage.
Not supported: in-tree volume types and their migration to CSI (their limits and their drivers' names), and the beta
zone labels of nodes.
"""

from __future__ import annotations

from dovetail.core.model import LabelSelector, NodeTerm, Problem, Requirement, StorageClass, Volume, VolumeClaim
from dovetail.core.quantities import MAX_QUANTITY, QuantityError, units
from dovetail.kube.objects import storage as wire
from dovetail.kube.objects.base import Quantities
from dovetail.kube.translate import limits
from dovetail.kube.translate.selectors import label_selector, node_terms

CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_NO_VOLUME = LabelSelector((Requirement("", "In"),))
_BOUND = "pv.kubernetes.io/bind-completed"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_UNUSABLE = frozenset({"Released", "Failed"})
_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_ZONE_LABELS = {
    _ZONE: _ZONE,
    _REGION: _REGION,
    "failure-domain.beta.kubernetes.io/zone": _ZONE,
    "failure-domain.beta.kubernetes.io/region": _REGION,
}


def claim(obj: wire.PersistentVolumeClaim) -> VolumeClaim:
    meta, spec = obj.metadata, obj.spec
    bound = _BOUND in meta.annotations
    storage_class = limits.name(meta.annotations.get(CLASS_ANNOTATION, spec.storage_class_name or ""))
    problems: list[Problem] = []
    few = limits.of_selector(spec.selector) <= limits.MOST_PARTS
    return VolumeClaim(
        namespace=meta.namespace,
        name=meta.name,
        volume=spec.volume_name if bound else "",
        # A claim with a volume name must not get another volume: without a class the core lets it wait.
        storage_class="" if spec.volume_name and not bound else storage_class,
        request_bytes=_bytes(spec.resources.requests, MAX_QUANTITY + 1),
        access_modes=tuple(sorted(spec.access_modes)),
        selected_node=limits.name(meta.annotations.get(_SELECTED_NODE, "")),
        selector=label_selector(spec.selector, "spec.selector", problems) if few else _NO_VOLUME,
        volume_mode=spec.volume_mode,
        deleting=meta.deletion_timestamp is not None,
        owner=next((reference.uid for reference in meta.owner_references if reference.controller), ""),
    )


def volume(obj: wire.PersistentVolume) -> Volume:
    meta, spec = obj.metadata, obj.spec
    usable = obj.status.phase not in _UNUSABLE and meta.deletion_timestamp is None
    problems: list[Problem] = []
    required = spec.node_affinity.required if spec.node_affinity is not None else None
    terms = node_terms(required, "spec.nodeAffinity.required", problems)
    return Volume(
        name=meta.name,
        storage_class=meta.annotations.get(CLASS_ANNOTATION, spec.storage_class_name),
        capacity_bytes=_bytes(spec.capacity, 0),
        access_modes=tuple(sorted(spec.access_modes)) if usable else (),
        node_terms=_in_zone(terms, meta.labels),
        labels=tuple(sorted(meta.labels.items())),
        claim=f"{spec.claim_ref.namespace}/{spec.claim_ref.name}" if spec.claim_ref is not None and usable else "",
        driver=spec.csi.driver if spec.csi is not None else "",
        available=usable and obj.status.phase == "Available",
        volume_mode=spec.volume_mode,
    )


def storage_class(obj: wire.StorageClass) -> StorageClass:
    topologies = tuple(
        NodeTerm(tuple(Requirement(e.key, "In", e.values) for e in term.match_label_expressions))
        for term in obj.allowed_topologies
    )
    return StorageClass(
        name=obj.metadata.name,
        wait=obj.volume_binding_mode == "WaitForFirstConsumer",
        provisions=obj.provisioner != _NO_PROVISIONER,
        driver=obj.provisioner if obj.provisioner != _NO_PROVISIONER else "",
        topologies=topologies or None,
    )


def attach_limits(obj: wire.CSINode) -> tuple[tuple[str, int], ...]:
    """The driver and the number of volumes that it can attach to the node, for each driver with a limit."""
    drivers = ((d.name, d.allocatable.count) for d in obj.spec.drivers or () if d.allocatable is not None)
    return tuple(sorted((name, count) for name, count in drivers if count is not None))


def _in_zone(terms: tuple[NodeTerm, ...] | None, labels: dict[str, str]) -> tuple[NodeTerm, ...] | None:
    """The terms, narrowed to the zones and regions in the labels."""
    inside = tuple(
        Requirement(_ZONE_LABELS[key], "In", tuple(value.split("__")))
        for key, value in sorted(labels.items())
        if key in _ZONE_LABELS
    )
    if not inside:
        return terms
    anywhere = tuple(Requirement(key, "DoesNotExist") for key in _ZONE_LABELS)
    return tuple(
        NodeTerm((*term.expressions, *narrowed), term.fields)
        for term in (terms if terms is not None else (NodeTerm(),))
        if terms is None or term.expressions or term.fields
        for narrowed in (inside, anywhere)
    )


def _bytes(amounts: Quantities, unreadable: int) -> int:
    try:
        return units(str(amounts.get("storage", 0)))
    except QuantityError:
        return unreadable
