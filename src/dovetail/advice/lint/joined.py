# SPDX-License-Identifier: Apache-2.0
"""Mappings and lists whose parts are from several places of a document: each part keeps its own place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.advice.lint.field import Field

_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath",
    "ports": "containerPort",
}  # fmt: skip
"""By list of a pod, what distinguishes its items. Source: the patchMergeKey of k8s.io/api/core/v1/types.go."""


class Joined(Field, frozen=True):
    """A mapping or a list whose parts are fields from other places. What is missing is missing at `path`."""

    parts: Mapping[Any, Field] = {}

    def at(self, *steps: str | int) -> Field:
        if not steps:
            return self
        found = self.parts.get(steps[0])
        return found.at(*steps[1:]) if found is not None else Field(None, self.path + steps)

    def each(self) -> Iterator[Field]:
        yield from self.parts.values() if isinstance(self.value, list) else ()

    def entries(self) -> Iterator[tuple[str, Field]]:
        yield from ((str(key), part) for key, part in self.parts.items()) if isinstance(self.value, dict) else ()


def mapping_with(place: Field, **parts: Field) -> Joined:
    """The fields of a mapping, with these in the place of its own."""
    return mapping_of({**dict(place.entries()), **{key: part for key, part in parts.items() if part}}, place)


def mapping_of(parts: Mapping[str, Field], place: Field) -> Joined:
    return Joined({key: part.value for key, part in parts.items()}, place.path, parts)


def list_of(place: Field, parts: Sequence[Field]) -> Joined:
    return Joined([part.value for part in parts], place.path, dict(enumerate(parts)))


def patched(base: Field, patch: Field, name: str = "") -> Field:
    """The field `name` with a strategic merge patch over it. A list without a merge key is replaced."""
    if not (base and patch):
        return patch or base
    if isinstance(base.value, dict) and isinstance(patch.value, dict):
        parts = dict(base.entries())
        for key, one in patch.entries():
            parts[key] = patched(parts.get(key, Field(None)), one, key)
        return mapping_of(parts, patch)
    if isinstance(base.value, list) and isinstance(patch.value, list) and name in _MERGE_KEYS:
        items: dict[str, Field] = {}
        for one in (*base.each(), *patch.each()):
            key = str(one.at(_MERGE_KEYS[name]).value)
            items[key] = patched(items.get(key, Field(None)), one)
        return list_of(patch, list(items.values()))
    return patch
