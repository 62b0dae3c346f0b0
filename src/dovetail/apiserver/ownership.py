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

from dovetail.apiserver.failures import Cause, Failure
from dovetail.apiserver.objects import Object, object_at, objects_at, timestamp, with_metadata
from dovetail.apiserver.patches import key_in, strategic
from dovetail.apiserver.resources import ServedResource

Path = tuple[str, ...]
"""Steps of fieldsV1: `f:NAME` a field, `k:KEYS` an element of a list by its keys, `v:VALUE` an element of a set."""
Paths = frozenset[Path]
Managers = dict[tuple[str, str, str], Object]
"""Manager, operation and subresource -> its entry."""
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
    mine, wanted = _paths(entries.get(me)), frozenset(_tracked(document))
    others = {owner: _paths(entry) for owner, entry in entries.items() if owner != me}
    clashes = {
        owner: frozenset(p for p in paths & wanted if not _is_element(p) and _at(old, p) != _at(document, p))
        for owner, paths in others.items()
    }
    if not force and any(clashes.values()):
        raise _conflict(clashes)
    others = {owner: paths - clashes[owner] for owner, paths in others.items()}
    theirs = frozenset[Path]().union(*others.values())
    new = old
    for path in sorted(mine - wanted - theirs, key=len):
        if not any(other[: len(path)] == path for other in wanted | theirs):
            new = _without(new, path)
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
    there = frozenset(_tracked(_part(resource, new, subresource)))
    changed = frozenset(p for p in there if not _is_element(p) and _at(old, p) != _at(new, p))
    me = (manager, _UPDATE, subresource)
    owned = {
        owner: frozenset(p for p in _paths(entry) if (p in there or _there(new, p)) and p not in changed)
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


def _tracked(document: Object) -> Iterator[Path]:
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
    return frozenset(_flat(object_at(entry, "fieldsV1"))) if entry else frozenset()


def _flat(nested: Mapping[str, Any]) -> Iterator[Path]:
    for step, below in nested.items():
        if step == ".":
            yield ()
        elif not below:
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


def _there(doc: Any, path: Path) -> bool:
    return _at(doc, path) is not _ABSENT


_ABSENT = object()


def _at(doc: Any, path: Path) -> Any:
    for step in path:
        kind, _, text = step.partition(":")
        if kind == "f":
            doc = doc.get(text, _ABSENT) if isinstance(doc, dict) else _ABSENT
        else:
            elements = doc if isinstance(doc, list) else []
            doc = next((one for one in elements if _named(kind, text, one)), _ABSENT)
    return doc


def _named(kind: str, text: str, element: object) -> bool:
    wanted = json.loads(text)
    if kind == "v":
        return bool(element == wanted)
    return isinstance(element, dict) and all(element.get(name) == value for name, value in wanted.items())


def _without(doc: Any, path: Path) -> Any:
    """The document without what is at the path; a map that is empty then goes too, an element of a list does not."""
    step, rest = path[0], path[1:]
    kind, _, text = step.partition(":")
    if kind == "f":
        if not isinstance(doc, dict) or text not in doc:
            return doc
        inside = _without(doc[text], rest) if rest else None
        kept = {name: value for name, value in doc.items() if name != text}
        return kept if inside is None or inside in ({}, []) else {**doc, text: inside}
    if not isinstance(doc, list):
        return doc
    if not rest:
        return [one for one in doc if not _named(kind, text, one)]
    return [_without(one, rest) if _named(kind, text, one) else one for one in doc]


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
