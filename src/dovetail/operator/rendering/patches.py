# SPDX-License-Identifier: Apache-2.0
"""Patches as kustomize applies them: JSON 6902, and strategic merge with the merge keys of Kubernetes' own kinds.

Sources: RFC 6902; x-kubernetes-patch-merge-key in api/openapi-spec of Kubernetes; kyaml/yaml/merge2, by which the items
of a patch go before those that it does not name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.kube.json_values import copied_json

Document = dict[str, Any]

_POD = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "volumes": "name",
    "imagePullSecrets": "name", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name", "env": "name", "ports": "containerPort", "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}  # fmt: skip
_KEYS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("Pod", "Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job", "CronJob"), _POD),
    "Service": {"ports": "port"},
    "ServiceAccount": {"secrets": "name", "imagePullSecrets": "name"},
}
"""By kind the lists whose items are merged, and by which field. Lists that are not named are replaced."""
_DIRECTIVE = "$patch"


class PatchError(Exception):
    """A patch that cannot be applied: the operation, and why."""


def merged(document: Document, patch: Document) -> Document:
    """The document after a strategic merge patch, without its apiVersion, kind and name; both stay as they are."""
    return _merged_map(document, patch, _KEYS.get(document["kind"], {}))


def _merged_map(original: Mapping[str, Any], patch: Mapping[str, Any], keys: Mapping[str, str]) -> Document:
    if patch.get(_DIRECTIVE) == "replace":
        return {name: copied_json(value) for name, value in patch.items() if name != _DIRECTIVE}
    result = dict(copied_json(original))
    for name, value in patch.items():
        if value is None or (isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"):
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = _merged_map(result.get(name) or {}, value, keys)
        elif isinstance(value, list) and name in keys and isinstance(result.get(name, []), list):
            result[name] = _merged_list(result.get(name) or [], value, keys[name], keys)
        else:
            result[name] = copied_json(value)
    return result


def _merged_list(original: Sequence[Any], patch: Sequence[Any], key: str, keys: Mapping[str, str]) -> list[Any]:
    if any(item == {_DIRECTIVE: "replace"} for item in patch):
        return [copied_json(item) for item in patch if _DIRECTIVE not in item]
    present = {item.get(key): item for item in original}
    named = {item[key] for item in patch}
    first = [_merged_map(present.get(item[key], {}), item, keys) for item in patch if _DIRECTIVE not in item]
    return first + [copied_json(item) for item in original if item.get(key) not in named]


def json_patched(document: Document, operations: Sequence[Mapping[str, Any]]) -> Document:
    """The document after the operations of a JSON patch (RFC 6902). Raises PatchError where one cannot be applied."""
    result = copied_json(document)
    for operation in operations:
        try:
            _apply(result, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise PatchError(f"{operation.get('op')} {operation.get('path')}: {error!r}") from error
    return result


def _apply(document: Document, operation: Mapping[str, Any]) -> None:
    op, path = operation["op"], _steps(operation["path"])
    if op in ("add", "replace"):
        value = copied_json(operation["value"])
        _set(document, path, value, op == "add")
    elif op == "remove":
        _remove(document, path)
    elif op == "test":
        if _at(document, path) != operation["value"]:
            raise ValueError(f"is {_at(document, path)!r}")
    elif op in ("move", "copy"):
        value = copied_json(_at(document, _steps(operation["from"])))
        if op == "move":
            _remove(document, _steps(operation["from"]))
        _set(document, path, value, True)
    else:
        raise ValueError("no such operation")


def _steps(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError("a path begins with /")
    return [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]


def _at(value: Any, path: Sequence[str]) -> Any:
    for step in path:
        value = value[_index(step, value)] if isinstance(value, list) else value[step]
    return value


def _index(step: str, items: Sequence[Any]) -> int:
    if not step.isdecimal() or (step != "0" and step.startswith("0")) or int(step) >= len(items):
        raise IndexError(step)
    return int(step)


def _set(document: Document, path: Sequence[str], value: Any, add: bool) -> None:
    parent, last = _at(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        if not add:
            parent[_index(last, parent)] = value
        elif last == "-" or last == str(len(parent)):
            parent.append(value)
        else:
            parent.insert(_index(last, parent), value)
    elif isinstance(parent, dict):
        if not add and last not in parent:
            raise KeyError(last)
        parent[last] = value
    else:
        raise TypeError("its parent has no fields")


def _remove(document: Document, path: Sequence[str]) -> None:
    parent, last = _at(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        del parent[_index(last, parent)]
    else:
        del parent[last]
