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

import msgspec

from dovetail.apiserver.failures import Failure, bad_request, too_large, unsupported_media_type
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
MOST_OPERATIONS = 10_000
"""Of a JSON patch. Source of this bound and of the next one: k8s.io/apiserver/pkg/endpoints/handlers/patch.go."""
MOST_COPIED = 3 << 20
"""Bytes as JSON that its copy operations may add."""
MOST_TOUCHED = 5_000_000
"""Members of lists and objects that its operations may copy: an operation in a long list copies the list."""
LONGEST_POINTER = 200
"""Steps of a JSON pointer; no object that is stored is as deep."""
_MERGED_SETS = frozenset({"finalizers"})
_ELEMENT_ORDER, _DELETE_PREFIX = "$setElementOrder/", "$deleteFromPrimitiveList/"


KEYS = frozenset(key for keys in _MERGE_KEYS.values() for key in keys)


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
        kept = {as_key(name) for name in patch["$retainKeys"]} if isinstance(patch["$retainKeys"], list) else set()
        base = {name: value for name, value in base.items() if as_key(name) in kept}
    for name, value in patch.items():
        if name.startswith(_DELETE_PREFIX):
            target = name.removeprefix(_DELETE_PREFIX)
            if not isinstance(value, list) or not isinstance(base.get(target) or [], list):
                raise bad_request(f"{name} needs lists")
            base[target] = _without(base.get(target) or [], value)
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
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and item.get("$patch") == "replace")]
    if name in _MERGED_SETS:
        return items + _without(patch, items)
    key = key_in(name, patch)
    if key is None:
        return patch
    places: dict[str, int] = {}
    for place, item in enumerate(items):
        if isinstance(item, dict) and key in item:
            places.setdefault(as_key(item[key]), place)
    deleted: set[int] = set()
    for item in patch:
        identity = as_key(item[key])
        place = places.get(identity, -1)
        if item.get("$patch") == "delete":
            deleted.add(places.pop(identity, -1))
        elif place < 0:
            places[identity] = len(items)
            items.append(strategic({}, item))
        else:
            items[place] = strategic(items[place], item)
    return [item for place, item in enumerate(items) if place not in deleted]


def as_key(value: object) -> str:
    """A text that equal values have and others do not, so that lists are merged in one pass."""
    return f"s{value}" if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


def _without(items: list[Any], unwanted: list[Any]) -> list[Any]:
    keys = {as_key(item) for item in unwanted}
    return [item for item in items if as_key(item) not in keys]


def json_patch(old: object, operations: object) -> Any:
    """RFC 6902. Raises a 422 Failure for an operation that cannot be done, as upstream, a 413 for too much work."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > MOST_OPERATIONS:
        raise too_large(f"the JSON patch has {len(operations)} operations; at most {MOST_OPERATIONS} are carried out")
    patch, new = _JsonPatch(), old
    for number, operation in enumerate(operations):
        try:
            new = patch.operate(new, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: operation {number}: {error!r}"
            raise Failure(422, "Invalid", message) from error
    return new


class _JsonPatch:
    """Carries out the operations of one patch, within bounds: copies of copies double with each operation."""

    def __init__(self) -> None:
        self._copied = 0
        self._touched = 0

    def operate(self, old: Any, operation: Object) -> Any:
        """The document after one operation."""
        path = _steps(operation["path"])
        match operation["op"]:
            case "add":
                return self._edited(old, path, operation["value"], insert=True)
            case "replace":
                # Upstream replaces a member that is not there, against the RFC.
                return self._edited(old, path, operation["value"])
            case "remove":
                return self._removed(old, path)
            case "move":
                source = _steps(operation["from"])
                return self._edited(self._removed(old, source), path, _found(old, source), insert=True)
            case "copy":
                value = _found(old, _steps(operation["from"]))
                self._copied += len(msgspec.json.encode(value))
                if self._copied > MOST_COPIED:
                    raise too_large(f"the JSON patch copies more than {MOST_COPIED} bytes")
                return self._edited(old, path, value, insert=True)
            case "test":
                if _found(old, path) != operation["value"]:
                    raise ValueError(f"testing value {operation['path']} failed")
                return old
            case unknown:
                raise ValueError(f"unknown operation {unknown!r}")

    def _touch(self, doc: Any) -> None:
        self._touched += len(doc)
        if self._touched > MOST_TOUCHED:
            raise too_large(f"the JSON patch changes lists and objects of more than {MOST_TOUCHED} members")

    def _edited(self, doc: Any, path: list[str], value: Any, *, insert: bool = False) -> Any:
        if not path:
            return value
        self._touch(doc)
        step, rest = path[0], path[1:]
        if isinstance(doc, list):
            index = len(doc) if step == "-" else _index(step)
            if index > len(doc):
                raise IndexError(f"{step} is outside the list")
            if insert and not rest:
                return [*doc[:index], value, *doc[index:]]
            return [*doc[:index], self._edited(doc[index], rest, value, insert=insert), *doc[index + 1 :]]
        return {**doc, step: self._edited(doc[step] if rest else None, rest, value, insert=insert)}

    def _removed(self, doc: Any, path: list[str]) -> Any:
        if not path:
            raise ValueError("the whole object cannot be removed")
        step, rest = path[0], path[1:]
        _found(doc, [step])
        self._touch(doc)
        if isinstance(doc, list):
            index = _index(step)
            return [*doc[:index], *([self._removed(doc[index], rest)] if rest else []), *doc[index + 1 :]]
        kept = {name: value for name, value in doc.items() if name != step}
        return {**doc, step: self._removed(doc[step], rest)} if rest else kept


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON pointer")
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    if len(steps) > LONGEST_POINTER:
        raise ValueError(f"a JSON pointer of more than {LONGEST_POINTER} steps")
    return steps


def _found(doc: Any, path: list[str]) -> Any:
    for step in path:
        doc = doc[_index(step)] if isinstance(doc, list) else doc[step]
    return doc


def _index(step: str) -> int:
    if not step.isdecimal() or len(step) > 9:
        raise IndexError(f"{step[:20]!r} is no index of a list")
    return int(step)


_PATCHES: dict[str, Callable[[object, object], Any]] = {MERGE: merge, STRATEGIC: strategic, JSON: json_patch}
