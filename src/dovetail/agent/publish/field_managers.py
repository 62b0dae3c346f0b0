# SPDX-License-Identifier: Apache-2.0
"""The fields of an object that each field manager owns (metadata.managedFields), so that two never write the same.

Rules: the API server records for every field manager the fields that it owns; a field that another manager has taken
over is no longer recorded. A manager owns its fields even after it is gone, until they are removed.
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
    """An object reduced to its managed fields and labels."""

    metadata: ManagedMetadata = ManagedMetadata()


def writers(obj: FieldsWritten, *path: str) -> dict[str, tuple[str, ...]]:
    """By manager the fields below a path (`metadata`, `labels`) that it owns, sorted."""
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
