# SPDX-License-Identifier: Apache-2.0
"""Changes that mend a manifest: what they are, what they make of a value, and how RFC 6902 says them.

`rewrite` makes the same changes in the text of a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from dovetail.advice.lint.field import Field, Path


class Edit(Struct, frozen=True):
    """`put` sets a field, and makes mappings above it that are not there; `drop` takes one away; `rename` gives the key
    at the end of `path` the name `value`, in its place; `append` adds to a list, which is made where there is none."""

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
    """The document with the edits made, in order; the given one stays as it is. Raises LookupError or TypeError where
    an edit has no place."""
    document = _copied(document)
    for edit in edits:
        *above, last = edit.path
        parent = document
        for step in above:
            if isinstance(parent, dict) and parent.get(step) is None and edit.op in ("put", "append"):
                parent[step] = {}
            parent = parent[step]
        if edit.op == "put":
            parent[last] = _copied(edit.value)
        elif edit.op == "drop":
            del parent[last]
        elif edit.op == "append":
            if isinstance(parent, dict) and parent.get(last) is None:
                parent[last] = []
            parent[last].append(_copied(edit.value))
        else:
            entries = [(edit.value if key == last else key, inner) for key, inner in parent.items()]
            if last not in parent or len(dict(entries)) < len(entries):
                raise LookupError(last)
            parent.clear()
            parent.update(entries)
    return document


def _copied(value: Any) -> Any:
    """A copy in which nothing is shared, as it is where anchors are."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def json_patch(document: Any, edits: Iterable[Edit]) -> list[dict[str, Any]]:
    """The edits as RFC 6902 says them, for the document as it stands."""
    patch: list[dict[str, Any]] = []
    for edit in edits:
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
        document = edited(document, (edit,))
    return patch


def _first_missing(document: Any, path: Path) -> int | None:
    """Which step of the path leads nowhere, or to null; None where all of it is there."""
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
