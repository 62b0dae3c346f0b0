# SPDX-License-Identifier: Apache-2.0
"""Parts of a manifest, read with the path of each: what is of another type is an error with its field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

MOST_PODS = 100_000
"""Of one input. Kubernetes allows as many to an indexed Job, and 150,000 to a cluster."""


class WrongField(Exception):
    """Arguments: the path of a field that cannot be used, and why."""


class ManifestPart(Struct, frozen=True):
    """A part of a manifest, and the path of it. `inner`, `items`, `number` and `text` raise WrongField for a value of
    another type."""

    value: Mapping[str, Any]
    path: str

    def at(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field

    def has(self, field: str) -> bool:
        return field in self.value

    def inner(self, field: str, default: Mapping[str, Any] | None = None) -> ManifestPart:
        value = self.value.get(field, default)
        path = self.at(field)
        if not isinstance(value, dict):
            raise WrongField(path, "is missing" if value is None else "must be an object")
        return ManifestPart(value, path)

    def items(self, field: str) -> Iterator[ManifestPart]:
        values, path = self.value.get(field, []), f"{self.path}.{field}"
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise WrongField(path, "must be a list of objects")
        return (ManifestPart(one, f"{path}[{i}]") for i, one in enumerate(values))

    def number(self, field: str, default: int) -> int:
        found = self.value.get(field, default)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MOST_PODS:
            raise WrongField(f"{self.path}.{field}", f"{found!r} must be a whole number from 0 to {MOST_PODS}")
        return found

    def text(self, field: str, default: str = "") -> str:
        found = self.value.get(field, default)
        if not isinstance(found, str):
            raise WrongField(f"{self.path}.{field}", f"{found!r} must be a text")
        return found
