# SPDX-License-Identifier: Apache-2.0
"""The request bodies that the scheduler writes into ResourceClaims. Pure; encoded once each.

Patches carry the uid and the resourceVersion that was read: they fail on a claim that has changed since, or was
recreated under the name. Additions are strategic merge patches, which the API server applies without a detour through
JSON in three quarters of the time. Removals must be plain merge patches, as a strategic one keeps list entries that it
does not name. A status update cannot change the metadata, and an update of the claim cannot change its status
(registry/resource/resourceclaim/strategy.go): so the finalizer needs a separate write.

Rules of an allocation, as in kube-scheduler: results are in the order of the grants, with the tolerations of the
request and the conditions of the device. Configurations of classes come first, each class once, then those of the claim
that apply to the chosen requests. A configuration for all requests names none.
Source: k8s.io/dynamic-resource-allocation/structured (Allocate).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.core.decisions import ClaimToMake
from dovetail.core.dra.extended import name_base
from dovetail.core.dra.types import Allocation, Grant
from dovetail.core.model import Requirement
from dovetail.kube.objects.base import time_text
from dovetail.kube.objects.claims import (
    ClaimMeta,
    Consumer,
    DeviceClass,
    DeviceRequest,
    ExactRequest,
    OpaqueConfiguration,
    ResourceClaim,
)

FINALIZER = "resource.kubernetes.io/delete-protection"
"""The finalizer that keeps a claim while devices are allocated for it."""
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim created for extended resources."""
_encode = msgspec.json.Encoder().encode
_Json = dict[str, Any]


def extended(made: ClaimToMake, pod_name: str, pod_uid: str) -> bytes:
    """The claim for a pod's extended resources, with the finalizer. Source: preFilterExtendedResources."""
    namespace, _, name = made.claim.partition("/")
    requests = [
        {
            "name": one.name,
            "exactly": {"deviceClassName": one.device_class, "allocationMode": one.mode, "count": one.count},
        }
        for (one,) in made.spec.requests
    ]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": pod_uid, "controller": True}
    metadata = {
        "name": name,
        "generateName": name_base(pod_name),
        "namespace": namespace,
        "annotations": {EXTENDED: "true"},
        "ownerReferences": [owner],
        "finalizers": [FINALIZER],
    }
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return _encode(kind | {"metadata": metadata, "spec": {"devices": {"requests": requests}}})


def with_finalizer(meta: ClaimMeta) -> bytes:
    return _encode({"metadata": _version(meta) | {"finalizers": [*meta.finalizers, FINALIZER]}})


def without_finalizer(meta: ClaimMeta) -> bytes:
    return _encode({"metadata": _version(meta) | {"finalizers": [one for one in meta.finalizers if one != FINALIZER]}})


def reserved(claim: ResourceClaim, pod_name: str, pod_uid: str, allocation: _Json | None) -> bytes:
    """Adds the pod to the consumers of the claim, with `allocation` if that is new."""
    consumers = [*claim.status.reserved_for, Consumer(resource="pods", name=pod_name, uid=pod_uid)]
    status: _Json = {"reservedFor": consumers}
    if allocation is not None:
        status["allocation"] = allocation
    return _encode({"metadata": _version(claim.metadata), "status": status})


def released(claim: ResourceClaim, pod_uid: str) -> bytes:
    """Removes the pod from the claim's consumers, and the allocation if no other consumer is left."""
    others = [consumer for consumer in claim.status.reserved_for if consumer.uid != pod_uid]
    status: _Json = {"reservedFor": others} if others else {"reservedFor": None, "allocation": None}
    return _encode({"metadata": _version(claim.metadata), "status": status})


def _version(meta: ClaimMeta) -> _Json:
    return {"uid": meta.uid, "resourceVersion": meta.resource_version}


def allocation(
    claim: ResourceClaim,
    granted: Allocation,
    class_named: Callable[[str], DeviceClass | None],
    now_ms: int,
) -> _Json:
    """The field `status.allocation` of a claim for these granted devices."""
    requests = claim.spec.devices.requests or ()
    chosen = {grant.request for grant in granted.grants}
    picked = dict(_picked(request, chosen) for request in requests)
    devices: _Json = {"results": [_result(grant, picked.get(grant.request)) for grant in granted.grants]}
    if config := _config(claim, picked, class_named):
        devices["config"] = config
    found: _Json = {"devices": devices, "allocationTimestamp": time_text(now_ms)}
    if granted.node:
        here = {"key": "metadata.name", "operator": "In", "values": [granted.node]}
        found["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    elif granted.node_terms is not None:
        terms = [
            {name: _requirements(part) for name, part in parts if part}
            for term in granted.node_terms
            for parts in [(("matchExpressions", term.expressions), ("matchFields", term.fields))]
        ]
        found["nodeSelector"] = {"nodeSelectorTerms": terms}
    return found


def _picked(request: DeviceRequest, chosen: set[str]) -> tuple[str, ExactRequest | None]:
    """The name under which a request was granted, and the alternative that was granted."""
    if request.exactly is not None:
        return request.name, request.exactly
    for one in request.first_available:
        if (name := f"{request.name}/{one.name}") in chosen:
            return name, one
    return request.name, None


def _result(grant: Grant, request: ExactRequest | None) -> _Json:
    found: _Json = {
        "request": grant.request, "driver": grant.driver, "pool": grant.pool, "device": grant.device,
    }  # fmt: skip
    if grant.admin_access:
        found["adminAccess"] = True
    if request is not None and request.tolerations:
        found["tolerations"] = request.tolerations
    if grant.conditions:
        found["bindingConditions"] = grant.conditions
    if grant.failure_conditions:
        found["bindingFailureConditions"] = grant.failure_conditions
    if grant.share:
        found["shareID"] = grant.share
    if grant.consumed:
        found["consumedCapacity"] = {name: _quantity(milli) for name, milli in grant.consumed}
    return found


def _quantity(milli: int) -> str:
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def _requirements(part: Iterable[Requirement]) -> list[_Json]:
    return [
        {"key": r.key, "operator": r.operator} | ({"values": list(r.values)} if r.values else {}) for r in part
    ]  # fmt: skip


def _config(
    claim: ResourceClaim,
    picked: Mapping[str, ExactRequest | None],
    class_named: Callable[[str], DeviceClass | None],
) -> list[_Json]:
    of_class: dict[str, list[str]] = {}
    for name, request in picked.items():
        if request is not None:
            of_class.setdefault(request.device_class_name, []).append(name)
    found = []
    for class_name, names in of_class.items():
        device_class = class_named(class_name)
        for config in device_class.spec.config if device_class is not None else ():
            found.append(_entry("FromClass", names, picked, config.opaque))
    for one in claim.spec.devices.config:
        if not one.requests or any(_is_about(one.requests, name) for name in picked):
            found.append(_entry("FromClaim", one.requests, picked, one.opaque))
    return found


def _entry(
    source: str,
    requests: Sequence[str],
    picked: Iterable[str],
    opaque: OpaqueConfiguration | None,
) -> _Json:
    found: _Json = {"source": source}
    if requests and not all(_is_about(requests, name) for name in picked):
        found["requests"] = requests
    if opaque is not None:
        found["opaque"] = opaque
    return found


def _is_about(requests: Sequence[str], name: str) -> bool:
    """Whether one of `requests` is `name`, or the request that `name` is an alternative of."""
    return name in requests or name.partition("/")[0] in requests
