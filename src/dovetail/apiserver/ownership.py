# SPDX-License-Identifier: Apache-2.0
"""Server-side apply: which manager owns which fields (metadata.managedFields), and what an apply does with that.

A manager that applies owns the fields of its document, at their values. A field that it applied before and leaves out
now is removed, unless another manager owns it too. A field that another manager owns at another value is a conflict;
with force it changes its owner. A write that is no apply makes its manager the owner of what it changes.

Simplified: the fields of an object are tracked from its first apply on, and have no owner before that. Which lists have
keys is known by the name of the field (`patches`), not by a schema.

Sources: sigs.k8s.io/structured-merge-diff/v6/fieldpath (fieldsV1), k8s.io/apimachinery/pkg/util/managedfields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dovetail.apiserver.failures import Cause, Failure, too_large
from dovetail.apiserver.objects import Object, object_at, objects_at, timestamp, with_metadata
from dovetail.apiserver.patches import KEYS, as_key, key_in, strategic
from dovetail.apiserver.resources import ServedResource
from dovetail.core.json_text import JsonError, decode_json

Path = tuple[str, ...]
"""Steps of fieldsV1: `f:NAME` a field, `k:KEYS` an element of a list by its keys, `v:VALUE` an element of a set."""
Paths = frozenset[Path]
Managers = dict[tuple[str, str, str], Object]
"""Manager, operation and subresource -> its entry."""
MOST_STEPS = 500_000
"""Of the paths of all fields of an object together."""
_APPLY, _UPDATE = "Apply", "Update"
_UNTRACKED = frozenset({"apiVersion", "kind"})
_UNTRACKED_METADATA = frozenset(
    {
        *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"),
        *("generateName", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"),
    }
)


def applied(
    resource: ServedResource, old: Object, document: Object, manager: str, *, force: bool, subresource: str,
    now_s: float,
) -> Object:  # fmt: skip
    """The object after an apply. Raises a 409 Failure for conflicts."""
    document = _part(resource, document, subresource)
    me = (manager, _APPLY, subresource)
    entries = _entries(old)
    mine, wanted = _paths(entries.get(me)), _tracked(document)
    others = {owner: _paths(entry) for owner, entry in entries.items() if owner != me}
    before, sent = _Fields(old), _Fields(document)
    clashes = {
        owner: frozenset(p for p in paths & wanted if not _is_element(p) and before.at(p) != sent.at(p))
        for owner, paths in others.items()
    }
    if not force and any(clashes.values()):
        raise _conflict(clashes)
    others = {owner: paths - clashes[owner] for owner, paths in others.items()}
    theirs = frozenset[Path]().union(*others.values())
    kept = {path[:length] for path in wanted | theirs for length in range(1, len(path) + 1)}
    new = _without(old, _tree(mine - kept))
    metadata = {name: value for name, value in object_at(document, "metadata").items() if name != "managedFields"}
    new = strategic(new, document | {"metadata": metadata})
    return _with_entries(resource, old, new, {me: wanted, **others}, now_s)


def updated(
    resource: ServedResource, old: Object, new: Object, manager: str, *, subresource: str, now_s: float
) -> Object:
    """The object after another write, with its owners, if it has any."""
    entries = _entries(old)
    if not any(operation == _APPLY for _, operation, _ in entries):
        return new
    there = _tracked(_part(resource, new, subresource))
    before, after = _Fields(old), _Fields(new)
    changed = frozenset(p for p in there if not _is_element(p) and before.at(p) != after.at(p))
    me = (manager, _UPDATE, subresource)
    owned = {
        owner: frozenset(p for p in _paths(entry) if (p in there or after.at(p) is not _ABSENT) and p not in changed)
        for owner, entry in entries.items()
    }
    owned[me] = owned.get(me, frozenset()) | changed
    return _with_entries(resource, old, new, owned, now_s)


def _part(resource: ServedResource, document: Object, subresource: str) -> Object:
    """The part of the document that such a write writes."""
    if "status" not in resource.traits:
        return document
    return {
        name: value for name, value in document.items() if name == "metadata" or (name == "status") == bool(subresource)
    }


def _entries(obj: Object) -> Managers:
    return {
        (str(e.get("manager", "")), str(e.get("operation", "")), str(e.get("subresource", ""))): e
        for e in objects_at(obj, "metadata.managedFields")
    }


def _with_entries(
    resource: ServedResource, old: Object, new: Object, owned: Mapping[tuple[str, str, str], Paths], now_s: float
) -> Object:
    """The new object with these owners; the time of an entry changes only with what it lists or with the object."""
    before, found = _entries(old), []
    for (manager, operation, subresource), paths in sorted(owned.items()):
        if not paths:
            continue
        was = before.get((manager, operation, subresource))
        if was is not None and _paths(was) == paths:
            found.append(was)
            continue
        entry = {
            "manager": manager, "operation": operation, "apiVersion": resource.api_version, "time": timestamp(now_s),
            "fieldsType": "FieldsV1", "fieldsV1": _nested(paths),
        }  # fmt: skip
        found.append(entry | ({"subresource": subresource} if subresource else {}))
    return with_metadata(new, managedFields=found or None)


def _tracked(document: Object) -> Paths:
    """The fields of the document. Raises a 413 Failure for more than can be tracked."""
    found, steps = set(), 0
    for path in _all_fields(document):
        steps += len(path)
        if steps > MOST_STEPS:
            raise too_large(f"the object has too many fields to be applied: more than {MOST_STEPS} steps to them")
        found.add(path)
    return frozenset(found)


def _all_fields(document: Object) -> Iterator[Path]:
    for name, value in document.items():
        if name == "metadata" and isinstance(value, dict):
            for field, inside in value.items():
                if field not in _UNTRACKED_METADATA:
                    yield from (("f:metadata", f"f:{field}", *rest) for rest in _leaves(field, inside))
        elif name not in _UNTRACKED:
            yield from ((f"f:{name}", *rest) for rest in _leaves(name, value))


def _leaves(field: str, value: object) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for name, inside in value.items():
            yield from ((f"f:{name}", *rest) for rest in _leaves(name, inside))
    elif isinstance(value, list) and (key := key_in(field, value)):
        for one in value:
            step = "k:" + json.dumps({key: one[key]}, separators=(",", ":"))
            yield (step,)
            yield from ((step, *rest) for rest in _leaves("", one))
    elif isinstance(value, list) and field == "finalizers":
        yield from ((f"v:{json.dumps(one)}",) for one in value)
    else:
        yield ()


def _paths(entry: Object | None) -> Paths:
    return frozenset(filter(None, _flat(object_at(entry, "fieldsV1")))) if entry else frozenset()


def _flat(nested: Mapping[str, Any]) -> Iterator[Path]:
    for step, below in nested.items():
        if step == ".":
            yield ()
        elif not below or not isinstance(below, dict):
            yield (step,)
        else:
            yield from ((step, *rest) for rest in _flat(below))


def _nested(paths: Iterable[Path]) -> Object:
    found: Object = {}
    for path in sorted(paths):
        place = found
        for step in path:
            place = place.setdefault(step, {})
        if _is_element(path):
            place["."] = {}
    return found


def _is_element(path: Path) -> bool:
    """Whether the path is an element of a list, as far as its existence."""
    return path[-1].startswith(("k:", "v:"))


_ABSENT = object()


class _Fields:
    """The fields of one document, by their paths. The elements of a list are found by an index of it."""

    def __init__(self, document: object) -> None:
        self._document = document
        self._indexes: dict[tuple[int, str], dict[str, object]] = {}

    def at(self, path: Path) -> object:
        """The value, _ABSENT where there is none."""
        place = self._document
        for step in path:
            kind, _, text = step.partition(":")
            if kind == "f":
                place = place.get(text, _ABSENT) if isinstance(place, dict) else _ABSENT
            elif isinstance(place, list):
                key, value = _identity(step)
                place = self._index(place, key).get(value, _ABSENT)
            else:
                return _ABSENT
        return place

    def _index(self, elements: list[Any], key: str) -> dict[str, object]:
        """The elements by their value of a key, or by themselves where the key is ""."""
        found = self._indexes.get((id(elements), key))
        if found is None:
            found = self._indexes[id(elements), key] = {}
            for one in elements:
                identity = _value_of(one, key)
                if identity is not None:
                    found.setdefault(identity, one)
        return found


def _value_of(element: object, key: str) -> str | None:
    if not key:
        return as_key(element)
    return as_key(element[key]) if isinstance(element, dict) and key in element else None


def _identity(step: str) -> tuple[str, str]:
    """Key and value of an element, as `_value_of`; what is no step of ours names none."""
    kind, _, text = step.partition(":")
    try:
        named = decode_json(text, object)
    except JsonError:
        return "", "none"
    if kind == "v":
        return "", as_key(named)
    if kind == "k" and isinstance(named, dict) and len(named) == 1:
        ((key, value),) = named.items()
        if key in KEYS:
            return key, as_key(value)
    return "", "none"


def _tree(paths: Paths) -> Object:
    """The paths as nested steps; the end of a path is None, whatever is below it."""
    found: Object = {}
    for path in sorted(paths, key=len):
        place = found
        for step in path[:-1]:
            below = place.setdefault(step, {})
            if below is None:
                break
            place = below
        else:
            place[path[-1]] = None
    return found


def _without(doc: Any, tree: Object) -> Any:
    """The document without what is at the ends of the tree; a map that is empty then goes too, an element of a list
    does not."""
    if isinstance(doc, dict):
        kept = {}
        for name, value in doc.items():
            step = f"f:{name}"
            if step not in tree:
                kept[name] = value
            elif tree[step] is not None and (inside := _without(value, tree[step])) not in ({}, []):
                kept[name] = inside
        return kept
    if not isinstance(doc, list):
        return doc
    wanted: dict[tuple[str, str], Object | None] = {
        _identity(step): below for step, below in tree.items() if not step.startswith("f:")
    }
    keys = dict.fromkeys(key for key, _ in wanted)
    left = []
    for one in doc:
        named = ((key, identity) for key in keys if (identity := _value_of(one, key)) is not None)
        place = next((place for place in named if place in wanted), None)
        if place is None:
            left.append(one)
        elif (below := wanted[place]) is not None:
            left.append(_without(one, below))
    return left


def _conflict(clashes: Mapping[tuple[str, str, str], Paths]) -> Failure:
    causes = [
        Cause("FieldManagerConflict", _shown(path), f'conflict with "{owner[0]}"')
        for owner, paths in sorted(clashes.items())
        for path in sorted(paths)
    ]
    plural = "conflict" if len(causes) == 1 else "conflicts"
    listed = "\n".join(f"- {cause.field}" for cause in causes)
    managers = ", ".join(sorted({f'"{owner[0]}"' for owner, paths in clashes.items() if paths}))
    why = f"Apply failed with {len(causes)} {plural}: {plural} with {managers}:\n{listed}"
    return Failure(409, "Conflict", why, causes=causes)


def _shown(path: Path) -> str:
    return "".join(f".{step[2:]}" if step[0] == "f" else f"[{step[2:]}]" for step in path)
