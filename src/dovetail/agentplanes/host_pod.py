# SPDX-License-Identifier: Apache-2.0
"""The host's pod that follows from a pod of an endpoint, or why there is none.

Rules
- Pure, and by the tables of `fields`. What an agent wrote is data: it decides what runs in its own containers, and
  nothing else of the host.
- The result keeps the Restricted pod security standard, has no service account token, no link to services, and only our
  own labels.
- What variables and volumes show is in `endpoint_pod`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from dovetail.agentplanes import names
from dovetail.agentplanes.endpoint_pod import (
    ConfigMaps,
    EndpointPod,
    PodRefusal,
    shown_volume,
    variables_from,
    variables_of,
)
from dovetail.agentplanes.fields import (
    CONTAINER_FIELDS,
    CONTAINER_SECURITY_FIELDS,
    PASSED_ANNOTATIONS,
    POD_FIELDS,
    POD_SECURITY_FIELDS,
    REFUSED_ANNOTATIONS,
    Treatment,
)
from dovetail.apiserver.objects import Object, object_at, objects_at, text_at, value_at

MODEL_LABEL = "nvidia.com/gpu.product"
MOST_BYTES = 64 << 10
"""Of the host's pod as JSON."""
_GRACE_S = 30
_ARCHITECTURE, _SYSTEM = "kubernetes.io/arch", "kubernetes.io/os"
_DEVICES = re.compile(r"nvidia\.com/(gpu|mig-[0-9a-z.+-]+)")
_RESOURCES = re.compile(rf"cpu|memory|ephemeral-storage|hugepages-\w+|{_DEVICES.pattern}")
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


_NONE: ConfigMaps = {}


class HostTarget(Struct, frozen=True):
    """Where the pods of a plane go. `most_grace_s` bounds the grace period of a pod."""

    namespace: str
    plane_uid: str
    scheduler_name: str = "dovetail"
    most_grace_s: int = 120


class HostPodPlan(Struct, frozen=True):
    """What to create, without the lease; `without` are the fields that were dropped."""

    document: Object
    without: tuple[str, ...] = ()


class NotCarried(Struct, frozen=True):
    """Why there is no pod on the host, for the agent."""

    message: str
    reason: str = "NotCarried"


def host_pod(pod: Object, target: HostTarget, maps: ConfigMaps = _NONE) -> HostPodPlan | NotCarried:
    """The host's pod for a pod of the endpoint."""
    made = EndpointPod(pod, maps)
    try:
        _refuse_annotations(pod)
        spec = _spec(made, target)
    except PodRefusal as refusal:
        return NotCarried(str(refusal), refusal.reason)
    namespace, name, uid = (text_at(pod, f"metadata.{field}") for field in ("namespace", "name", "uid"))
    annotations = object_at(pod, "metadata.annotations")
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.host_name(target.plane_uid, name, uid),
            "namespace": target.namespace,
            "labels": {names.PLANE_UID: target.plane_uid, names.POD_UID: uid},
            "annotations": {key: annotations[key] for key in PASSED_ANNOTATIONS if key in annotations}
            | {names.POD: f"{namespace}/{name}"}
            | made.files,
        },
        "spec": spec,
    }
    if (size := len(msgspec.json.encode(document))) > MOST_BYTES:
        return NotCarried(f"the pod has {size} bytes on the host; at most {MOST_BYTES} are carried")
    return HostPodPlan(document, tuple(made.without))


def with_lease(plan: HostPodPlan, lease: str, fence: int, gang: str) -> Object:
    """The document of a pod that runs within this lease."""
    metadata = plan.document["metadata"]
    annotations = metadata["annotations"] | {names.LEASE: lease, names.FENCE: str(fence)}
    labels = metadata["labels"] | {names.GANG: gang}
    return plan.document | {"metadata": metadata | {"annotations": annotations, "labels": labels}}


def asks_for_devices(container: Object) -> bool:
    """Whether a container, or a pod's sum of them, asks for GPUs or MIG instances."""
    return any(_DEVICES.fullmatch(name) for name in object_at(container, "resources.limits"))


def _refuse_annotations(pod: Object) -> None:
    for key in REFUSED_ANNOTATIONS:
        if key in object_at(pod, "metadata.annotations"):
            raise PodRefusal(f"metadata.annotations[{key}]: shares of a GPU are not carried; ask for whole GPUs or MIG")


def _spec(made: EndpointPod, target: HostTarget) -> Object:
    spec, without = object_at(made.pod, "spec"), made.without
    found = _treated(spec, POD_FIELDS, "spec", without)
    if bad := {"affinity", "topologySpreadConstraints"} & spec.keys():
        _refuse_rules(spec, without, bad)
    for field in ("initContainers", "containers"):
        if containers := objects_at(spec, field):
            found[field] = [_container(c, f"spec.{field}[{n}]", made) for n, c in enumerate(containers)]
    if volumes := objects_at(spec, "volumes"):
        found["volumes"] = [shown_volume(volume, f"spec.volumes[{n}]", made) for n, volume in enumerate(volumes)]
    if selector := _selector(spec, any(map(asks_for_devices, _containers(spec)))):
        found["nodeSelector"] = selector
    period_s = value_at(spec, "terminationGracePeriodSeconds")
    grace_s = period_s if isinstance(period_s, int) else _GRACE_S
    if any(map(asks_for_devices, _containers(spec))):
        found["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return found | {
        "schedulerName": target.scheduler_name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(0, min(grace_s, target.most_grace_s)),
        "securityContext": _security(object_at(spec, "securityContext"), POD_SECURITY_FIELDS, "spec.securityContext")
        | {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }


def _containers(spec: Object) -> list[Object]:
    return [*objects_at(spec, "initContainers"), *objects_at(spec, "containers")]


def _treated(part: Object, table: Mapping[str, Treatment], path: str, without: list[str]) -> Object:
    """The fields that are passed. Those that are dropped are noted; of others nothing is taken here."""
    found: Object = {}
    for field, value in part.items():
        treatment = table.get(field, Treatment.REFUSED)
        if treatment is Treatment.PASSED:
            found[field] = value
        elif treatment is Treatment.REFUSED and not _empty(value):
            raise PodRefusal(f"{path}.{field} is not carried to the host: remove it")
        elif treatment is Treatment.DROPPED and not _empty(value) and field not in _DEFAULTED:
            without.append(f"{path}.{field}")
    return found


_DEFAULTED = ("os", "preemptionPolicy", "priority", "schedulingGates", "schedulingGroup", "serviceAccount")
"""Fields without which every pod is carried, or that have been dealt with: not worth a word to the agent."""


def _empty(value: object) -> bool:
    return value is None or value is False or value in ("", [], {})


def _refuse_rules(spec: Object, without: list[str], present: set[str]) -> None:
    """Rules about the nodes of the host and the pods on them: hard ones are refused, soft ones dropped."""
    for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        if not _empty(value_at(spec, f"affinity.{kind}.{_REQUIRED}")):
            raise PodRefusal(
                f"spec.affinity.{kind} with required rules is not carried: the lease decides on the nodes; "
                f"for a model use spec.nodeSelector[{MODEL_LABEL}]"
            )
    for constraint in objects_at(spec, "topologySpreadConstraints"):
        if constraint.get("whenUnsatisfiable") != "ScheduleAnyway":
            raise PodRefusal("spec.topologySpreadConstraints with DoNotSchedule is not carried")
    without += [f"spec.{field}" for field in sorted(present) if not _empty(spec[field])]


def _selector(spec: Object, devices: bool) -> Object:
    """The node selector of the host's pod. The model is a part of what is negotiated, and all nodes run Linux."""
    found: Object = {}
    for key, value in object_at(spec, "nodeSelector").items():
        if key == _ARCHITECTURE:
            found[key] = value
        elif not (key == MODEL_LABEL and devices) and (key, value) != (_SYSTEM, "linux"):
            raise PodRefusal(f"spec.nodeSelector[{key}] is not carried: an agent chooses no nodes of the host")
    return found


def _container(container: Object, path: str, made: EndpointPod) -> Object:
    found = _treated(container, CONTAINER_FIELDS, path, made.without)
    resources = object_at(container, "resources")
    for part in ("limits", "requests"):
        for name in object_at(resources, part):
            if not _RESOURCES.fullmatch(name):
                raise PodRefusal(f"{path}.resources.{part}[{name}] is not carried: devices are GPUs and MIG instances")
    if not _empty(resources.get("claims")):
        raise PodRefusal(f"{path}.resources.claims is not carried to the host: remove it")
    kept = {part: resources[part] for part in ("limits", "requests") if part in resources}
    variables = [
        variable
        for n, one in enumerate(objects_at(container, "envFrom"))
        for variable in variables_from(one, f"{path}.envFrom[{n}]", made)
    ]
    variables += [
        variable
        for n, one in enumerate(objects_at(container, "env"))
        for variable in variables_of(one, f"{path}.env[{n}]", made)
    ]
    if not asks_for_devices(container):
        # Images bring the variable along, by which the runtime would give them every GPU of the node.
        variables.append({"name": _VISIBLE, "value": "void"})
    if variables:
        found["env"] = variables
    for field in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
        if field in container:
            if any(_hosts(container[field])):
                raise PodRefusal(f"{path}.{field} names a host: it would be called from the node")
            found[field] = container[field]
    if ports := objects_at(container, "ports"):
        found["ports"] = [_port(port, f"{path}.ports[{n}]") for n, port in enumerate(ports)]
    if mounts := objects_at(container, "volumeMounts"):
        if any(mount.get("mountPropagation") not in (None, "", "None") for mount in mounts):
            raise PodRefusal(f"{path}.volumeMounts with mountPropagation is not carried to the host")
        found["volumeMounts"] = mounts
    return found | {
        "resources": kept,
        "terminationMessagePolicy": text_at(container, "terminationMessagePolicy") or "FallbackToLogsOnError",
        "securityContext": _container_security(object_at(container, "securityContext"), f"{path}.securityContext"),
    }


def _container_security(context: Object, path: str) -> Object:
    added = value_at(context, "capabilities.add")
    if not _empty(added) and added != ["NET_BIND_SERVICE"]:
        raise PodRefusal(f"{path}.capabilities.add is not carried to the host: remove it")
    capabilities = {"drop": ["ALL"]} | ({"add": added} if added else {})
    found = _security(context, CONTAINER_SECURITY_FIELDS, path)
    return found | {"allowPrivilegeEscalation": False, "capabilities": capabilities, "runAsNonRoot": True}


def _security(context: Object, table: Mapping[str, Treatment], path: str) -> Object:
    found = _treated(context, table, path, [])
    if context.get("runAsUser") is not None:
        if context["runAsUser"] == 0:
            raise PodRefusal(f"{path}.runAsUser 0 is not carried: containers do not run as root")
        found["runAsUser"] = context["runAsUser"]
    if text_at(context, "seccompProfile.type") not in ("", "RuntimeDefault"):
        raise PodRefusal(f"{path}.seccompProfile is not carried to the host: it is RuntimeDefault there")
    return found


def _hosts(part: object) -> Iterator[object]:
    """The hosts that handlers of a probe or of a lifecycle name."""
    if isinstance(part, dict):
        for field, value in part.items():
            if field in ("httpGet", "tcpSocket") and isinstance(value, dict) and value.get("host"):
                yield value["host"]
            yield from _hosts(value)


def _port(port: Object, path: str) -> Object:
    for field in ("hostPort", "hostIP"):
        if not _empty(port.get(field)) and port[field] != 0:
            raise PodRefusal(f"{path}.{field} is not carried to the host: remove it")
    return {field: port[field] for field in ("containerPort", "name", "protocol") if field in port}
