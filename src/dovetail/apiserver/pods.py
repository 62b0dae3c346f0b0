# SPDX-License-Identifier: Apache-2.0
"""Pods as a scheduler depends on them: defaults, what is refused, QoS class, and what a pod requests of its node.

Sources: k8s.io/kubernetes/pkg/apis/core/v1/defaults.go, pkg/apis/core/validation/validation.go,
pkg/apis/core/v1/helper/qos/qos.go, k8s.io/component-helpers/resource/helpers.go. Not known here: pod-level resources
(`spec.resources`), service accounts, default tolerations, and the rest of upstream's validation.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from dovetail.apiserver.failures import Cause, bad_request, missing, not_allowed, wrong
from dovetail.apiserver.objects import Object, object_at, objects_at, text_at, with_condition, with_status
from dovetail.core.quantities import QuantityError, amount, parse

_SPEC_DEFAULTS: Object = {
    "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30, "securityContext": {},
    "schedulerName": "default-scheduler", "enableServiceLinks": True,
}  # fmt: skip
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_MUTABLE = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates")
_MUTABLE_WHILE_GATED = ("nodeSelector", "affinity")
_IMMUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def is_finished(pod: Object | None) -> bool:
    return text_at(pod, "status.phase") in ("Succeeded", "Failed")


def containers(pod: Object) -> list[tuple[str, Object]]:
    """Init containers, then containers, each with its path."""
    return [
        (f"spec.{field}[{index}]", container)
        for field in ("initContainers", "containers")
        for index, container in enumerate(objects_at(pod, f"spec.{field}"))
    ]


def defaulted(pod: Object) -> Object:
    """The pod with the defaults that schedulers see. Raises a 400 Failure for containers that are not objects."""
    spec = _SPEC_DEFAULTS | object_at(pod, "spec")
    for field in ("initContainers", "containers"):
        if field in spec:
            if spec[field] != objects_at(pod, f"spec.{field}"):
                raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: spec.{field} is no list of objects')
            spec[field] = [_with_requests(container) for container in spec[field]]
    return pod | {"spec": spec}


def _with_requests(container: Object) -> Object:
    """Limits become requests where a resource has no request of its own."""
    resources = object_at(container, "resources")
    requests = object_at(resources, "limits") | object_at(resources, "requests")
    filled = resources | ({"requests": requests} if requests else {})
    return container | {"resources": filled}


def born(pod: Object, now_s: float) -> Object:
    """The pod with the status of a new one."""
    new = pod | {"status": {"phase": "Pending", "qosClass": quality_of_service(pod)}}
    if objects_at(pod, "spec.schedulingGates"):
        message = "Scheduling is blocked due to non-empty scheduling gates"
        return with_condition(new, "PodScheduled", "False", now_s, "SchedulingGated", message)
    return new


def problems(pod: Object) -> list[Cause]:
    """The problems of a defaulted pod. Raises a 400 Failure for a quantity that cannot be read, as upstream."""
    found = []
    if not objects_at(pod, "spec.containers"):
        found.append(missing("spec.containers"))
    for path, container in containers(pod):
        found += [missing(f"{path}.{field}") for field in ("name", "image") if not text_at(container, field)]
        found += _resource_problems(f"{path}.resources", object_at(container, "resources"))
    if text_at(pod, "spec.restartPolicy") not in _RESTART_POLICIES:
        allowed = ", ".join(f'"{policy}"' for policy in _RESTART_POLICIES)
        found.append(wrong("spec.restartPolicy", pod["spec"]["restartPolicy"], f"supported values: {allowed}"))
    return found


def _resource_problems(path: str, resources: Object) -> list[Cause]:
    limits, requests = _amounts(f"{path}.limits", resources), _amounts(f"{path}.requests", resources)
    found = []
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            place, text = f"{path}.{field}[{name}]", str(resources[field][name])
            if value < 0:
                found.append(wrong(place, text, "must be greater than or equal to 0"))
            if _is_extended(name) and value.denominator != 1:
                found.append(wrong(place, text, "must be an integer"))
    for name, value in requests.items():
        overcommit = not (_is_extended(name) or name.startswith("hugepages-"))
        if name not in limits:
            if not overcommit:
                found.append(missing(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif value > limits[name] or (value != limits[name] and not overcommit):
            relation = "less than or equal to" if overcommit else "equal to"
            why = f"must be {relation} {name} limit of {resources['limits'][name]}"
            found.append(wrong(f"{path}.requests", str(resources["requests"][name]), why))
    return found


def _amounts(path: str, resources: Object) -> dict[str, Fraction]:
    amounts = {}
    for name, text in object_at(resources, path.rpartition(".")[2]).items():
        try:
            amounts[name] = parse(str(text))
        except QuantityError as error:
            raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: {path}[{name}]: {error}') from error
    return amounts


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def update_problems(new: Object, old: Object) -> list[Cause]:
    """The problems of an update of the pod."""
    found = []
    gates, old_gates = ({gate.get("name") for gate in objects_at(p, "spec.schedulingGates")} for p in (new, old))
    if added := sorted(map(str, gates - old_gates)):
        why = f"only deletion is allowed, but found new scheduling gate '{added[0]}'"
        found.append(not_allowed("spec.schedulingGates", why))
    tolerations = objects_at(new, "spec.tolerations")
    if any(toleration not in tolerations for toleration in objects_at(old, "spec.tolerations")):
        found.append(not_allowed("spec.tolerations", "existing toleration can not be modified"))
    mutable = _MUTABLE + (_MUTABLE_WHILE_GATED if old_gates else ())
    if _fixed_part(new, mutable) != _fixed_part(old, mutable):
        found.append(not_allowed("spec", _IMMUTABLE))
    return found


def _fixed_part(pod: Object, mutable: Iterable[str]) -> Object:
    fixed = {field: value for field, value in object_at(pod, "spec").items() if field not in mutable}
    for field in ("initContainers", "containers"):
        fixed[field] = [container | {"image": ""} for container in objects_at(pod, f"spec.{field}")]
    return fixed


def quality_of_service(pod: Object) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory alone."""
    guaranteed, any_amount = True, False
    for path, container in containers(pod):
        resources = object_at(container, "resources")
        limits, requests = _amounts(f"{path}.limits", resources), _amounts(f"{path}.requests", resources)
        for name in ("cpu", "memory"):
            any_amount |= bool(limits.get(name) or requests.get(name))
            guaranteed &= bool(limits.get(name)) and requests.get(name) == limits[name]
    return "BestEffort" if not any_amount else "Guaranteed" if guaranteed else "Burstable"


def requests_of(pod: Object) -> dict[str, int]:
    """The requests of the pod, in milli-CPU and whole units.

    A sidecar (a restartable init container) runs along with all that start after it. Raises QuantityError.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for path, container in containers(pod):
        wants = {name: amount(name, str(text)) for name, text in object_at(container, "resources.requests").items()}
        total = {name: running.get(name, 0) + wants.get(name, 0) for name in running.keys() | wants}
        peak = {name: max(peak.get(name, 0), total.get(name, 0)) for name in peak.keys() | total}
        if path.startswith("spec.containers") or container.get("restartPolicy") == "Always":
            running = total
    for name, text in object_at(pod, "spec.overhead").items():
        peak[name] = peak.get(name, 0) + amount(name, str(text))
    return peak


def bound(pod: Object, binding: Object, now_s: float) -> Object:
    """The pod on the node of a Binding, with the Binding's annotations and labels merged in.

    Source: BindingREST.setPodNodeAndMetadata in k8s.io/kubernetes/pkg/registry/core/pod/storage/storage.go.
    """
    metadata = object_at(pod, "metadata")
    for field in ("annotations", "labels"):
        if extra := object_at(binding, f"metadata.{field}"):
            metadata = metadata | {field: object_at(metadata, field) | extra}
    spec = object_at(pod, "spec") | {"nodeName": text_at(binding, "target.name")}
    placed = with_status(pod | {"metadata": metadata, "spec": spec}, nominatedNodeName=None)
    return with_condition(placed, "PodScheduled", "True", now_s)
