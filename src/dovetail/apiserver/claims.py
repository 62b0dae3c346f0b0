# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims as a scheduler depends on them: defaults, and what of their spec and status is refused.

Sources: k8s.io/kubernetes/pkg/apis/resource/v1/defaults.go, pkg/apis/resource/validation/validation.go. Not known here:
whether CEL expressions compile, the formats of names, authorization, the status of single devices.
"""

from __future__ import annotations

from dovetail.apiserver.failures import Cause, missing, not_allowed, wrong
from dovetail.apiserver.objects import Object, object_at, objects_at, text_at, value_at
from dovetail.apiserver.pods import containers

MOST_CONSUMERS = 256
MOST_RESULTS = 32
_NO_REQUEST = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"


def defaulted(claim: Object) -> Object:
    return claim | {"spec": _defaulted(object_at(claim, "spec"))}


def defaulted_template(template: Object) -> Object:
    spec = object_at(template, "spec")
    return template | {"spec": spec | {"spec": _defaulted(object_at(spec, "spec"))}}


def _defaulted(spec: Object) -> Object:
    devices = object_at(spec, "devices")
    requests = []
    for request in objects_at(devices, "requests"):
        if "exactly" in request:
            request = request | {"exactly": _exact(object_at(request, "exactly"))}
        if "firstAvailable" in request:
            request = request | {"firstAvailable": [_exact(one) for one in objects_at(request, "firstAvailable")]}
        requests.append(request)
    return spec | {"devices": devices | ({"requests": requests} if "requests" in devices else {})}


def _exact(request: Object) -> Object:
    counted = {"allocationMode": "ExactCount"} | request
    return {"count": 1} | counted if counted["allocationMode"] == "ExactCount" else counted


def problems(claim: Object) -> list[Cause]:
    return _problems(object_at(claim, "spec"), "spec.devices.requests")


def template_problems(template: Object) -> list[Cause]:
    return _problems(object_at(template, "spec.spec"), "spec.spec.devices.requests")


def _problems(spec: Object, path: str) -> list[Cause]:
    found = []
    for i, request in enumerate(objects_at(spec, "devices.requests")):
        exact, several = "exactly" in request, objects_at(request, "firstAvailable")
        if exact == bool(several):
            found.append(wrong(f"{path}[{i}]", 0, "exactly one of `exactly` or `firstAvailable` is required"))
            continue
        alternatives = [(f"{path}[{i}].firstAvailable[{j}]", one) for j, one in enumerate(several)]
        for at, one in alternatives or [(f"{path}[{i}].exactly", object_at(request, "exactly"))]:
            mode, count = one.get("allocationMode"), one.get("count")
            if not text_at(one, "deviceClassName"):
                found.append(missing(f"{at}.deviceClassName"))
            if mode not in ("ExactCount", "All"):
                why = f'Unsupported value: "{mode}": supported values: "All", "ExactCount"'
                found.append(Cause("FieldValueNotSupported", f"{at}.allocationMode", why))
            elif mode == "ExactCount" and (not isinstance(count, int) or count <= 0):
                found.append(wrong(f"{at}.count", count, "must be greater than zero"))
    return found


def update_problems(new: Object, old: Object) -> list[Cause]:
    return [] if new.get("spec") == old.get("spec") else [wrong("spec", 0, "field is immutable")]


def status_problems(new: Object, old: Object) -> list[Cause]:
    """The problems of an update of the status."""
    found = []
    allocation, before = value_at(new, "status.allocation"), value_at(old, "status.allocation")
    consumers = objects_at(new, "status.reservedFor")
    uids = [text_at(consumer, "uid") for consumer in consumers]
    path = "status.reservedFor"
    for i, consumer in enumerate(consumers):
        found += [missing(f"{path}[{i}].{field}") for field in ("resource", "name", "uid") if not consumer.get(field)]
        if uids[i] in uids[:i]:
            found.append(Cause("FieldValueDuplicate", f"{path}[{i}]", f'Duplicate value: "{uids[i]}"'))
    if len(consumers) > MOST_CONSUMERS:
        why = f"Too many: {len(consumers)}: must have at most {MOST_CONSUMERS} items"
        found.append(Cause("FieldValueTooMany", path, why))
    if consumers and allocation is None:
        found.append(not_allowed(path, "may not be specified when `allocated` is not set"))
    elif text_at(new, "metadata.deletionTimestamp") and set(uids) - {
        text_at(consumer, "uid") for consumer in objects_at(old, "status.reservedFor")
    }:
        why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        found.append(not_allowed(path, why))
    if allocation is not None and before is not None:
        if allocation != before:
            found.append(wrong("status.allocation", 0, "field is immutable"))
    elif allocation is not None:
        found += _allocation_problems(new)
    return found


def _allocation_problems(claim: Object) -> list[Cause]:
    path, found = "status.allocation.devices.results", []
    names = set()
    for request in objects_at(claim, "spec.devices.requests"):
        names.add(text_at(request, "name"))
        names |= {f"{request.get('name')}/{one.get('name')}" for one in objects_at(request, "firstAvailable")}
    results = objects_at(claim, path)
    if len(results) > MOST_RESULTS:
        why = f"Too many: {len(results)}: must have at most {MOST_RESULTS} items"
        found.append(Cause("FieldValueTooMany", path, why))
    for i, result in enumerate(results):
        found += [missing(f"{path}[{i}].{field}") for field in ("driver", "pool", "device") if not result.get(field)]
        if text_at(result, "request") not in names:
            found.append(wrong(f"{path}[{i}].request", text_at(result, "request"), _NO_REQUEST))
    return found


def usable_by(claim: Object | None, pod: Object) -> bool:
    """Whether the kubelet of the pod's node can prepare the devices of the claim for the pod.

    Source: pkg/kubelet/cm/dra/manager.go (PrepareResources).
    """
    uids = [text_at(consumer, "uid") for consumer in objects_at(claim, "status.reservedFor")]
    if value_at(claim, "status.allocation") is None or text_at(pod, "metadata.uid") not in uids:
        return False
    terms = objects_at(claim, "status.allocation.nodeSelector.nodeSelectorTerms")
    fields = [field for term in terms for field in objects_at(term, "matchFields") if not term.get("matchExpressions")]
    return all(text_at(pod, "spec.nodeName") in (field.get("values") or ()) for field in fields)


def names_of(pod: Object) -> list[str]:
    """The names of the pod's claims, that of its extended resources included; "" for one that is still to be made."""
    made = {
        text_at(status, "name"): text_at(status, "resourceClaimName")
        for status in objects_at(pod, "status.resourceClaimStatuses")
    }
    extended = text_at(pod, "status.extendedResourceClaimStatus.resourceClaimName")
    return [
        text_at(claim, "resourceClaimName") or made.get(text_at(claim, "name"), "")
        for claim in objects_at(pod, "spec.resourceClaims")
    ] + ([extended] if extended else [])


def extended_problems(new: Object, old: Object) -> list[Cause]:
    """The problems of a pod's status about its extended resources.

    Source: pkg/apis/core/validation/validation.go (validatePodExtendedResourceClaimStatus).
    """
    path, found = "status.extendedResourceClaimStatus", []
    now, before = (value_at(pod, path) for pod in (new, old))
    if now is None or now == before:
        return []
    mappings = objects_at(new, f"{path}.requestMappings")
    if not mappings:
        found.append(missing(f"{path}.requestMappings", "at least one request mapping is required"))
    requests = {text_at(one, "name"): object_at(one, "resources.requests") for _, one in containers(new)}
    for i, mapping in enumerate(mappings):
        container, resource = text_at(mapping, "containerName"), text_at(mapping, "resourceName")
        if container not in requests:
            why = "must match the name of an entry in spec.initContainers.name or spec.containers.name"
            found.append(wrong(f"{path}.requestMappings[{i}].containerName", container, why))
        elif resource not in requests[container]:
            why = (
                "must match the extended resource name of an entry in spec.initContainers.resources.requests or "
                "spec.containers.resources.requests"
            )
            found.append(wrong(f"{path}.requestMappings[{i}].resourceName", resource, why))
    if not text_at(new, f"{path}.resourceClaimName"):
        found.append(missing(f"{path}.resourceClaimName"))
    return found


def by_claim(pod: Object) -> set[str]:
    """The extended resources that the pod has by a claim."""
    mappings = objects_at(pod, "status.extendedResourceClaimStatus.requestMappings")
    return {text_at(mapping, "resourceName") for mapping in mappings}
