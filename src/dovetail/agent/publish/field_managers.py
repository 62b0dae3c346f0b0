# SPDX-License-Identifier: Apache-2.0
"""Who writes what of an object, so that two agents never write the same: by metadata.managedFields.

Rules: the API server notes every writer under its field manager with the fields that are its own; a field that another
one has taken over is no longer noted. What a writer noted stays its own after it is gone, until somebody removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import field

from dovetail.kube.objects.base import Wire


class ManagedFields(Wire, frozen=True):
    manager: str = ""
    operation: str = ""
    fields_v1: dict[str, Any] = field(default_factory=dict, name="fieldsV1")


class ManagedMetadata(Wire, frozen=True):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    managed_fields: tuple[ManagedFields, ...] = ()


class FieldsWritten(Wire, frozen=True):
    """An object as far as it matters who wrote it."""

    metadata: ManagedMetadata = ManagedMetadata()


def writers(obj: FieldsWritten, *path: str) -> dict[str, tuple[str, ...]]:
    """By manager the fields below a path (`metadata`, `labels`) that are its own, sorted."""
    found: dict[str, set[str]] = {}
    for entry in obj.metadata.managed_fields:
        found.setdefault(entry.manager, set()).update(_below(entry.fields_v1, path))
    return {manager: tuple(sorted(own)) for manager, own in found.items() if own}


def _below(fields: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for step in path:
        inner = fields.get(f"f:{step}")
        if not isinstance(inner, Mapping):
            return
        fields = inner
    for name in fields:
        if name.startswith("f:"):
            yield name[2:]
