# SPDX-License-Identifier: Apache-2.0
"""The host's pod that follows from a pod of an endpoint, or why there is none.

Rules
- Pure, and by the tables of `fields`. What an agent wrote is data: it decides what runs in its own containers, and
  nothing else of the host.
- The result keeps the Restricted pod security standard, has no service account token, no link to services, and only our
  own labels.
- Variables that show metadata, or come from ConfigMaps, have the values of the endpoint, as literal text. Files from
  ConfigMaps are annotations of the host's pod, shown by a downward API volume: no object beside the pod is needed. They
  stay as they were when the pod was created.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from dovetail.agentplanes import names
from dovetail.agentplanes.fields import (
    CONTAINER_FIELDS,
    CONTAINER_SECURITY_FIELDS,
    PASSED_ANNOTATIONS,
    POD_FIELDS,
    POD_SECURITY_FIELDS,
    REFUSED_ANNOTATIONS,
    REFUSED_VARIABLES,
    VOLUME_SOURCES,
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
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_OF_THE_HOST = ("spec.nodeName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


ConfigMaps = Mapping[tuple[str, str], Object]
"""The ConfigMaps of an endpoint, by namespace and name."""
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


class _Refused(Exception):
    """The message is for the agent."""

    def __init__(self, message: str, reason: str = "NotCarried") -> None:
        super().__init__(message)
        self.reason = reason


class _Pod(Struct):
    """The pod that is translated. `maps` are the ConfigMaps of the endpoint, `without` and `files` what came of it."""

    pod: Object
    maps: ConfigMaps
    without: list[str] = msgspec.field(default_factory=list)
    files: dict[str, str] = msgspec.field(default_factory=dict)
    """By annotation the text of a file."""

    def config_map(self, name: object, path: str, optional: object) -> Object | None:
        """The ConfigMap of this name; None for one that may be missing, and is."""
        found = self.maps.get((text_at(self.pod, "metadata.namespace"), str(name)))
        if found is None and optional is not True:
            raise _Refused(f"{path}: the ConfigMap {str(name)[:253]!r} is not there", "ConfigMapMissing")
        return found

    def text(self, found: Object, key: object, path: str) -> str | None:
        """The text of a key; None where there is none."""
        value = object_at(found, "data").get(str(key))
        if value is None and str(key) in object_at(found, "binaryData"):
            raise _Refused(f"{path}: binary data of ConfigMaps is not carried")
        return value if isinstance(value, str) else None


def host_pod(pod: Object, target: HostTarget, maps: ConfigMaps = _NONE) -> HostPodPlan | NotCarried:
    """The host's pod for a pod of the endpoint."""
    made = _Pod(pod, maps)
    try:
        _refuse_annotations(pod)
        spec = _spec(made, target)
    except _Refused as refusal:
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
            raise _Refused(f"metadata.annotations[{key}]: shares of a GPU are not carried; ask for whole GPUs or MIG")


def _spec(made: _Pod, target: HostTarget) -> Object:
    spec, without = object_at(made.pod, "spec"), made.without
    found = _treated(spec, POD_FIELDS, "spec", without)
    if bad := {"affinity", "topologySpreadConstraints"} & spec.keys():
        _refuse_rules(spec, without, bad)
    for field in ("initContainers", "containers"):
        if containers := objects_at(spec, field):
            found[field] = [_container(c, f"spec.{field}[{n}]", made) for n, c in enumerate(containers)]
    if volumes := objects_at(spec, "volumes"):
        found["volumes"] = [_volume(volume, f"spec.volumes[{n}]", made) for n, volume in enumerate(volumes)]
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
            raise _Refused(f"{path}.{field} is not carried to the host: remove it")
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
            raise _Refused(
                f"spec.affinity.{kind} with required rules is not carried: the lease decides on the nodes; "
                f"for a model use spec.nodeSelector[{MODEL_LABEL}]"
            )
    for constraint in objects_at(spec, "topologySpreadConstraints"):
        if constraint.get("whenUnsatisfiable") != "ScheduleAnyway":
            raise _Refused("spec.topologySpreadConstraints with DoNotSchedule is not carried")
    without += [f"spec.{field}" for field in sorted(present) if not _empty(spec[field])]


def _selector(spec: Object, devices: bool) -> Object:
    """The node selector of the host's pod. The model is a part of what is negotiated, and all nodes run Linux."""
    found: Object = {}
    for key, value in object_at(spec, "nodeSelector").items():
        if key == _ARCHITECTURE:
            found[key] = value
        elif not (key == MODEL_LABEL and devices) and (key, value) != (_SYSTEM, "linux"):
            raise _Refused(f"spec.nodeSelector[{key}] is not carried: an agent chooses no nodes of the host")
    return found


def _container(container: Object, path: str, made: _Pod) -> Object:
    found = _treated(container, CONTAINER_FIELDS, path, made.without)
    resources = object_at(container, "resources")
    for part in ("limits", "requests"):
        for name in object_at(resources, part):
            if not _RESOURCES.fullmatch(name):
                raise _Refused(f"{path}.resources.{part}[{name}] is not carried: devices are GPUs and MIG instances")
    if not _empty(resources.get("claims")):
        raise _Refused(f"{path}.resources.claims is not carried to the host: remove it")
    kept = {part: resources[part] for part in ("limits", "requests") if part in resources}
    variables = [
        variable
        for n, one in enumerate(objects_at(container, "envFrom"))
        for variable in _variables_of(one, f"{path}.envFrom[{n}]", made)
    ]
    variables += [
        variable
        for n, one in enumerate(objects_at(container, "env"))
        for variable in _variable(one, f"{path}.env[{n}]", made)
    ]
    if not asks_for_devices(container):
        # Images bring the variable along, by which the runtime would give them every GPU of the node.
        variables.append({"name": _VISIBLE, "value": "void"})
    if variables:
        found["env"] = variables
    for field in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
        if field in container:
            if any(_hosts(container[field])):
                raise _Refused(f"{path}.{field} names a host: it would be called from the node")
            found[field] = container[field]
    if ports := objects_at(container, "ports"):
        found["ports"] = [_port(port, f"{path}.ports[{n}]") for n, port in enumerate(ports)]
    if mounts := objects_at(container, "volumeMounts"):
        if any(mount.get("mountPropagation") not in (None, "", "None") for mount in mounts):
            raise _Refused(f"{path}.volumeMounts with mountPropagation is not carried to the host")
        found["volumeMounts"] = mounts
    return found | {
        "resources": kept,
        "terminationMessagePolicy": text_at(container, "terminationMessagePolicy") or "FallbackToLogsOnError",
        "securityContext": _container_security(object_at(container, "securityContext"), f"{path}.securityContext"),
    }


def _container_security(context: Object, path: str) -> Object:
    added = value_at(context, "capabilities.add")
    if not _empty(added) and added != ["NET_BIND_SERVICE"]:
        raise _Refused(f"{path}.capabilities.add is not carried to the host: remove it")
    capabilities = {"drop": ["ALL"]} | ({"add": added} if added else {})
    found = _security(context, CONTAINER_SECURITY_FIELDS, path)
    return found | {"allowPrivilegeEscalation": False, "capabilities": capabilities, "runAsNonRoot": True}


def _security(context: Object, table: Mapping[str, Treatment], path: str) -> Object:
    found = _treated(context, table, path, [])
    if context.get("runAsUser") is not None:
        if context["runAsUser"] == 0:
            raise _Refused(f"{path}.runAsUser 0 is not carried: containers do not run as root")
        found["runAsUser"] = context["runAsUser"]
    if text_at(context, "seccompProfile.type") not in ("", "RuntimeDefault"):
        raise _Refused(f"{path}.seccompProfile is not carried to the host: it is RuntimeDefault there")
    return found


def _variables_of(source: Object, path: str, made: _Pod) -> list[Object]:
    """The variables of a whole ConfigMap."""
    if not source.keys() <= {"configMapRef", "prefix"} or "configMapRef" not in source:
        raise _Refused(f"{path} is not carried but from ConfigMaps: Secrets of an endpoint stay there")
    found = made.config_map(
        text_at(source, "configMapRef.name"), path, value_at(source, "configMapRef.optional")
    )  # fmt: skip
    prefix, variables = str(source.get("prefix") or ""), list[Object]()
    for key in sorted(object_at(found, "data")):
        name, text = f"{prefix}{key}", made.text(found or {}, key, path)
        if _VARIABLE.fullmatch(name) and text is not None:
            _refuse_variable(name, path)
            variables.append({"name": name, "value": _literal(text)})
    return variables


def _refuse_variable(name: str, path: str) -> None:
    if name in REFUSED_VARIABLES:
        raise _Refused(f"{path}: {name} is not carried: devices come from the lease alone")


def _literal(text: str) -> str:
    """The value of a variable in which nothing is replaced: `$$` is read as `$`."""
    return text.replace("$", "$$")


def _variable(variable: Object, path: str, made: _Pod) -> list[Object]:
    """The variable; none where it comes from an optional key that is not there."""
    name = variable.get("name")
    _refuse_variable(text_at(variable, "name"), path)
    source = object_at(variable, "valueFrom")
    if not source:
        return [{"name": name, "value": variable.get("value", "")}]
    if source.keys() == {"resourceFieldRef"}:
        return [{"name": name, "valueFrom": source}]
    if source.keys() == {"configMapKeyRef"}:
        reference = object_at(source, "configMapKeyRef")
        found = made.config_map(reference.get("name"), path, reference.get("optional"))
        text = made.text(found, reference.get("key"), path) if found is not None else None
        if text is None and reference.get("optional") is not True:
            missing = f"{path}: the ConfigMap has no key {str(reference.get('key'))[:253]!r}"
            raise _Refused(missing, "ConfigMapMissing")
        return [{"name": name, "value": _literal(text)}] if text is not None else []
    if source.keys() != {"fieldRef"}:
        kinds = ", ".join(sorted(source))
        raise _Refused(f"{path}.valueFrom.{kinds[:200]} is not carried: Secrets of an endpoint stay there")
    field = text_at(source, "fieldRef.fieldPath")
    if field in _OF_THE_HOST:
        return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}]
    return [{"name": name, "value": _literal(_metadata(made.pod, field, path))}]


def _metadata(pod: Object, field: str, path: str) -> str:
    keyed = _KEYED.fullmatch(field)
    if keyed is not None:
        value = str(object_at(pod, f"metadata.{keyed[1]}").get(keyed[2], ""))
    elif field in ("metadata.name", "metadata.namespace", "metadata.uid"):
        value = text_at(pod, field)
    elif field == "spec.serviceAccountName":
        value = "default"
    else:
        raise _Refused(f"{path}.valueFrom.fieldRef: {field[:100]} is not carried to the host")
    return value


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
            raise _Refused(f"{path}.{field} is not carried to the host: remove it")
    return {field: port[field] for field in ("containerPort", "name", "protocol") if field in port}


def _volume(volume: Object, path: str, made: _Pod) -> Object:
    sources = volume.keys() - {"name"}
    if not sources <= set(VOLUME_SOURCES) or len(sources) != 1:
        kinds = ", ".join(sorted(sources)) or "no source"
        raise _Refused(f"{path}: {kinds[:200]} is not carried; volumes are {', '.join(VOLUME_SOURCES)}")
    if "configMap" not in sources:
        return volume
    source = object_at(volume, "configMap")
    found = made.config_map(source.get("name"), path, source.get("optional"))
    items = objects_at(source, "items") or [{"key": key, "path": key} for key in sorted(_keys(found))]
    files: list[Object] = []
    for item in items:
        text = made.text(found, item.get("key"), path) if found is not None else None
        if text is None:
            if source.get("optional") is True:
                continue
            raise _Refused(f"{path}: the ConfigMap has no key {str(item.get('key'))[:253]!r}", "ConfigMapMissing")
        annotation = f"{names.FILE}{len(made.files)}"
        made.files[annotation] = text
        shown = {"path": item.get("path"), "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
        files.append(shown | ({"mode": item["mode"]} if "mode" in item else {}))
    mode = {"defaultMode": source["defaultMode"]} if "defaultMode" in source else {}
    return {"name": volume.get("name"), "downwardAPI": {"items": files} | mode}


def _keys(found: Object | None) -> set[str]:
    """The keys of a ConfigMap."""
    return {*object_at(found, "data"), *object_at(found, "binaryData")}
