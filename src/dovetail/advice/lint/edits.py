# SPDX-License-Identifier: Apache-2.0
"""Edits that fix a manifest: their records, their application to a value, and their form as an RFC 6902 patch.

`rewrite` applies the same edits to the text of a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from dovetail.advice.lint.field import Field, Path
from dovetail.kube.json_values import copied_json


class Edit(Struct, frozen=True):
    """`put` sets a field and creates missing mappings above it. `drop` removes a field. `rename` renames the last key
    of `path` to `value`, at its position. `append` adds to a list and creates it if it is missing."""

    op: Literal["put", "drop", "rename", "append"]
    path: Path
    value: Any = None


def put(field: Field, value: Any) -> Edit:
    return Edit("put", field.path, value)


def drop(field: Field) -> Edit:
    return Edit("drop", field.path)


def rename(field: Field, key: str) -> Edit:
    return Edit("rename", field.path, key)


def append(field: Field, value: Any) -> Edit:
    return Edit("append", field.path, value)


def edited(document: Any, edits: Iterable[Edit]) -> Any:
    """A copy of the document with the edits applied in order. Raises LookupError or TypeError if the path of an edit
    does not exist."""
    document = copied_json(document)
    for edit in edits:
        *above, last = edit.path
        parent = document
        for step in above:
            if isinstance(parent, dict) and parent.get(step) is None and edit.op in ("put", "append"):
                parent[step] = {}
            parent = parent[step]
        if edit.op == "put":
            parent[last] = copied_json(edit.value)
        elif edit.op == "drop":
            del parent[last]
        elif edit.op == "append":
            if isinstance(parent, dict) and parent.get(last) is None:
                parent[last] = []
            if not isinstance(parent[last], list):
                raise TypeError(f"{last} is no list")
            parent[last].append(copied_json(edit.value))
        else:
            entries = [(edit.value if key == last else key, inner) for key, inner in parent.items()]
            if last not in parent or len(dict(entries)) < len(entries):
                raise LookupError(last)
            parent.clear()
            parent.update(entries)
    return document


def json_patch(document: Any, edits: Sequence[Edit]) -> list[dict[str, Any]]:
    """The edits of the document as a JSON patch (RFC 6902)."""
    patch: list[dict[str, Any]] = []
    for at, edit in enumerate(edits):
        if at > 0:
            document = edited(document, edits[at - 1 : at])
        missing = _first_missing(document, edit.path)
        if edit.op == "rename":
            moved = (*edit.path[:-1], str(edit.value))
            patch.append({"op": "move", "from": _pointer(edit.path), "path": _pointer(moved)})
        elif edit.op == "drop":
            patch.append({"op": "remove", "path": _pointer(edit.path)})
        elif edit.op == "append" and missing is None:
            patch.append({"op": "add", "path": _pointer((*edit.path, "-")), "value": edit.value})
        elif missing is None:
            patch.append({"op": "replace", "path": _pointer(edit.path), "value": edit.value})
        else:
            value = [edit.value] if edit.op == "append" else edit.value
            for step in reversed(edit.path[missing + 1 :]):
                value = {step: value}
            patch.append({"op": "add", "path": _pointer(edit.path[: missing + 1]), "value": value})
    return patch


def _first_missing(document: Any, path: Path) -> int | None:
    """The index of the first step of the path that is missing or null; None if all of it exists."""
    for at, step in enumerate(path):
        try:
            document = document[step]
        except (LookupError, TypeError):
            return at
        if document is None:
            return at
    return None


def _pointer(path: Path) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
