# SPDX-License-Identifier: Apache-2.0
"""A value in a document with its path. Rules use it to read documents without errors on wrong types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

Path = tuple[str | int, ...]


class Field(Struct, frozen=True):
    """`value` is None if the field is missing or null. Fields below a missing field are missing too."""

    value: Any
    path: Path = ()

    def __bool__(self) -> bool:
        return self.value is not None

    def at(self, *steps: str | int) -> Field:
        """The field below at these steps: keys of mappings and indices of lists."""
        value = self.value
        for step in steps:
            if type(value) is dict:
                value = value.get(step) if type(step) is str else None
            elif type(value) is list and type(step) is int and step < len(value):
                value = value[step]
            else:
                value = None
                break
        return Field(value, self.path + steps)

    def each(self) -> Iterator[Field]:
        """The items of a list; none if the value is not a list."""
        if isinstance(self.value, list):
            for at, inner in enumerate(self.value):
                yield Field(inner, (*self.path, at))

    def entries(self) -> Iterator[tuple[str, Field]]:
        """The keys of a mapping, as text, with their fields; none if the value is not a mapping."""
        if isinstance(self.value, dict):
            for key, inner in self.value.items():
                yield str(key), Field(inner, (*self.path, str(key)))

    @property
    def text(self) -> str:
        """The value if it is a string, else ""."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def whole(self) -> int | None:
        """The value if it is an integer, else None."""
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    @property
    def name(self) -> str:
        """The last step of the path."""
        return str(self.path[-1]) if self.path else ""

    def __str__(self) -> str:
        return path_text(self.path)


def path_text(path: Path) -> str:
    """The path as text, as in `spec.containers[0].resources.limits[nvidia.com/gpu]`."""
    text = ""
    for step in path:
        if isinstance(step, int) or "." in step or "/" in step:
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
