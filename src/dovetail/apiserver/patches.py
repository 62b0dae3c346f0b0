# SPDX-License-Identifier: Apache-2.0
"""The four kinds of patch. Each builds a new document from the old one and the patch, and changes neither.

Merge patch is RFC 7396 and JSON patch RFC 6902. Strategic merge patch merges the lists of `_MERGE_KEYS` element by
element; upstream reads these keys from struct tags, we from the field name alone, and lists that are not in the table
are replaced. Server-side apply merges the same way (`ownership`).

Sources: k8s.io/apimachinery/pkg/util/strategicpatch/patch.go, k8s.io/api/core/v1/types.go (patchMergeKey tags).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.apiserver.failures import Failure, bad_request, unsupported_media_type
from dovetail.apiserver.objects import Object
from dovetail.apiserver.resources import ServedResource

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

# Field name -> the keys that may identify an element; the first that the elements have is used.
_MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "conditions": ("type",), "addresses": ("type",), "ownerReferences": ("uid",), "containers": ("name",),
    "initContainers": ("name",), "ephemeralContainers": ("name",), "volumes": ("name",), "env": ("name",),
    "imagePullSecrets": ("name",), "resourceClaims": ("name",), "resourceClaimStatuses": ("name",),
    "secrets": ("name",), "schedulingGates": ("name",), "reservedFor": ("uid",), "ports": ("containerPort", "port"),
    "volumeMounts": ("mountPath",), "volumeDevices": ("devicePath",), "hostAliases": ("ip",), "podIPs": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
}  # fmt: skip
_MERGED_SETS = frozenset({"finalizers"})
_ELEMENT_ORDER, _DELETE_PREFIX = "$setElementOrder/", "$deleteFromPrimitiveList/"


def patched(resource: ServedResource, old: Object, content_type: str, patch: object) -> Object:
    """The object after the patch. Raises a 400, 415 or 422 Failure."""
    if content_type == STRATEGIC and "custom" in resource.traits:
        content_type = f"{STRATEGIC} for a custom resource"
    apply = _PATCHES.get(content_type)
    if apply is None:
        accepted = ", ".join(_PATCHES)
        raise unsupported_media_type(f"cannot patch with {content_type or 'no Content-Type'}; accepted: {accepted}")
    new = apply(old, patch)
    if not isinstance(new, dict):
        raise bad_request(f"the patch makes {type(new).__name__} of the object; an object is needed")
    return new


def merge(old: object, patch: object) -> Any:
    """RFC 7396: objects merge, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    base = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = merge(base.get(name), value)
    return base


def strategic(old: object, patch: object) -> Any:
    """Merge patch with element-wise merging of known lists, and the `$patch`, `$retainKeys` and related directives."""
    if not isinstance(patch, dict):
        return patch
    base = dict(old) if isinstance(old, dict) else {}
    if patch.get("$patch") == "delete":
        return {}
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if "$retainKeys" in patch:
        base = {name: value for name, value in base.items() if name in patch["$retainKeys"]}
    for name, value in patch.items():
        if name.startswith(_DELETE_PREFIX):
            target = name.removeprefix(_DELETE_PREFIX)
            base[target] = [item for item in base.get(target) or [] if item not in value]
        elif name.startswith(_ELEMENT_ORDER) or name in ("$patch", "$retainKeys"):
            continue
        elif value is None:
            base.pop(name, None)
        elif isinstance(value, list):
            base[name] = _merge_list(name, base.get(name), value)
        else:
            base[name] = strategic(base.get(name), value)
    return base


def key_in(field: str, elements: list[Any]) -> str | None:
    """The key that identifies the elements of the list in this field; None where the list is one value."""
    keys = _MERGE_KEYS.get(field, ())
    return next((key for key in keys if all(isinstance(one, dict) and key in one for one in elements)), None)


def _merge_list(name: str, old: object, patch: list[Any]) -> list[Any]:
    items = list(old) if isinstance(old, list) else []
    directives = [item for item in patch if isinstance(item, dict) and item.get("$patch") == "replace"]
    if directives:
        return [item for item in patch if item not in directives]
    if name in _MERGED_SETS:
        return items + [item for item in patch if item not in items]
    key = key_in(name, patch)
    if key is None:
        return patch
    for item in patch:
        places = (n for n, other in enumerate(items) if isinstance(other, dict) and other.get(key) == item[key])
        place = next(places, -1)
        if item.get("$patch") == "delete":
            items = [other for n, other in enumerate(items) if n != place]
        elif place < 0:
            items.append(strategic({}, item))
        else:
            items[place] = strategic(items[place], item)
    return items


def json_patch(old: object, operations: object) -> Any:
    """RFC 6902. Raises a 422 Failure for an operation that cannot be done, as upstream."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    new: Any = old
    for number, operation in enumerate(operations):
        try:
            new = _operate(new, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: operation {number}: {error!r}"
            raise Failure(422, "Invalid", message) from error
    return new


def _operate(old: Any, operation: Object) -> Any:
    path = _steps(operation["path"])
    match operation["op"]:
        case "add":
            return _edited(old, path, operation["value"], insert=True)
        case "replace":
            # Upstream replaces a member that is not there, against the RFC.
            return _edited(old, path, operation["value"])
        case "remove":
            return _removed(old, path)
        case "move":
            source = _steps(operation["from"])
            return _edited(_removed(old, source), path, _found(old, source), insert=True)
        case "copy":
            return _edited(old, path, _found(old, _steps(operation["from"])), insert=True)
        case "test":
            if _found(old, path) != operation["value"]:
                raise ValueError(f"testing value {operation['path']} failed")
            return old
        case unknown:
            raise ValueError(f"unknown operation {unknown!r}")


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _found(doc: Any, path: list[str]) -> Any:
    for step in path:
        doc = doc[_index(step)] if isinstance(doc, list) else doc[step]
    return doc


def _index(step: str) -> int:
    if not step.isdecimal():
        raise IndexError(f"{step!r} is no index of a list")
    return int(step)


def _edited(doc: Any, path: list[str], value: Any, *, insert: bool = False) -> Any:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(doc, list):
        index = len(doc) if step == "-" else _index(step)
        if index > len(doc):
            raise IndexError(f"{step} is outside the list")
        if insert and not rest:
            return [*doc[:index], value, *doc[index:]]
        return [*doc[:index], _edited(doc[index], rest, value, insert=insert), *doc[index + 1 :]]
    return {**doc, step: _edited(doc[step] if rest else None, rest, value, insert=insert)}


def _removed(doc: Any, path: list[str]) -> Any:
    if not path:
        raise ValueError("the whole object cannot be removed")
    step, rest = path[0], path[1:]
    _found(doc, [step])
    if isinstance(doc, list):
        index = _index(step)
        return [*doc[:index], *([_removed(doc[index], rest)] if rest else []), *doc[index + 1 :]]
    kept = {name: value for name, value in doc.items() if name != step}
    return {**doc, step: _removed(doc[step], rest)} if rest else kept


_PATCHES: dict[str, Callable[[object, object], Any]] = {MERGE: merge, STRATEGIC: strategic, JSON: json_patch}
