# SPDX-License-Identifier: Apache-2.0
"""A pod of an endpoint that is carried to the host: what its variables and volumes show of metadata and ConfigMaps.

Rules: variables that show metadata, or come from ConfigMaps, have the values of the endpoint, as literal text. Files
from ConfigMaps are annotations of the host's pod, shown by a downward API volume: no object beside the pod is needed.
They stay as they were when the pod was created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from dovetail.agentplanes import names
from dovetail.agentplanes.fields import REFUSED_VARIABLES, VOLUME_SOURCES
from dovetail.apiserver.objects import Object, object_at, objects_at, text_at, value_at

_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_OF_THE_HOST = ("spec.nodeName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
ConfigMaps = Mapping[tuple[str, str], Object]
"""The ConfigMaps of an endpoint, by namespace and name."""


class PodRefusal(Exception):
    """Why a pod is not carried. The message is for the agent."""

    def __init__(self, message: str, reason: str = "NotCarried") -> None:
        super().__init__(message)
        self.reason = reason


class EndpointPod(Struct):
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
            raise PodRefusal(f"{path}: the ConfigMap {str(name)[:253]!r} is not there", "ConfigMapMissing")
        return found

    def text(self, found: Object, key: object, path: str) -> str | None:
        """The text of a key; None where there is none."""
        value = object_at(found, "data").get(str(key))
        if value is None and str(key) in object_at(found, "binaryData"):
            raise PodRefusal(f"{path}: binary data of ConfigMaps is not carried")
        return value if isinstance(value, str) else None


def variables_from(source: Object, path: str, made: EndpointPod) -> list[Object]:
    """The variables of a whole ConfigMap."""
    if not source.keys() <= {"configMapRef", "prefix"} or "configMapRef" not in source:
        raise PodRefusal(f"{path} is not carried but from ConfigMaps: Secrets of an endpoint stay there")
    found = made.config_map(text_at(source, "configMapRef.name"), path, value_at(source, "configMapRef.optional"))
    prefix, variables = str(source.get("prefix") or ""), list[Object]()
    for key in sorted(object_at(found, "data")):
        name, text = f"{prefix}{key}", made.text(found or {}, key, path)
        if _VARIABLE.fullmatch(name) and text is not None:
            _refuse_variable(name, path)
            variables.append({"name": name, "value": _literal(text)})
    return variables


def _refuse_variable(name: str, path: str) -> None:
    if name in REFUSED_VARIABLES:
        raise PodRefusal(f"{path}: {name} is not carried: devices come from the lease alone")


def _literal(text: str) -> str:
    """The value of a variable in which nothing is replaced: `$$` is read as `$`."""
    return text.replace("$", "$$")


def variables_of(variable: Object, path: str, made: EndpointPod) -> list[Object]:
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
            raise PodRefusal(missing, "ConfigMapMissing")
        return [{"name": name, "value": _literal(text)}] if text is not None else []
    if source.keys() != {"fieldRef"}:
        kinds = ", ".join(sorted(source))
        raise PodRefusal(f"{path}.valueFrom.{kinds[:200]} is not carried: Secrets of an endpoint stay there")
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
        raise PodRefusal(f"{path}.valueFrom.fieldRef: {field[:100]} is not carried to the host")
    return value


def shown_volume(volume: Object, path: str, made: EndpointPod) -> Object:
    """The volume; one from a ConfigMap is shown by annotations, which are put into `made.files`."""
    sources = volume.keys() - {"name"}
    if not sources <= set(VOLUME_SOURCES) or len(sources) != 1:
        kinds = ", ".join(sorted(sources)) or "no source"
        raise PodRefusal(f"{path}: {kinds[:200]} is not carried; volumes are {', '.join(VOLUME_SOURCES)}")
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
            raise PodRefusal(f"{path}: the ConfigMap has no key {str(item.get('key'))[:253]!r}", "ConfigMapMissing")
        annotation = f"{names.FILE}{len(made.files)}"
        made.files[annotation] = text
        shown = {"path": item.get("path"), "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
        files.append(shown | ({"mode": item["mode"]} if "mode" in item else {}))
    mode = {"defaultMode": source["defaultMode"]} if "defaultMode" in source else {}
    return {"name": volume.get("name"), "downwardAPI": {"items": files} | mode}


def _keys(found: Object | None) -> set[str]:
    """The keys of a ConfigMap."""
    return {*object_at(found, "data"), *object_at(found, "binaryData")}
