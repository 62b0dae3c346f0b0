# SPDX-License-Identifier: Apache-2.0
"""What the schema of a definition and a wire struct have in common: their fields, types and defaults by path."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from dovetail.kube.objects.base import Wire


def leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """(path, JSON type) of everything that has no fields below it, as the reference writes paths."""
    if "properties" in schema:
        for name, below in schema["properties"].items():
            yield from leaves(below, f"{path}.{name}" if path else name)
    elif "items" in schema:
        yield from leaves(schema["items"], f"{path}[]")
    else:
        yield path, schema["type"]


def of_struct(hint: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The same of a wire struct."""
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if isinstance(hint, type) and issubclass(hint, Wire):
        hints = get_type_hints(hint)
        for field in msgspec.structs.fields(hint):
            yield from of_struct(hints[field.name], f"{path}.{field.encode_name}" if path else field.encode_name)
    elif get_origin(hint) is tuple:
        yield from of_struct(get_args(hint)[0], f"{path}[]")
    else:
        names = {int: "integer", bool: "boolean", str: "string"}
        yield path, "object" if get_origin(hint) is dict else names.get(hint, "string")


def closed(schema: Mapping[str, Any]) -> bool:
    """Whether every struct states what is in it: the API server would otherwise keep anything that is written there."""
    below = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    declared = schema["type"] != "object" or "properties" in schema or "additionalProperties" in schema
    return declared and all(map(closed, below))


def unbounded(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The strings, lists and maps whose size the schema does not limit."""
    if "properties" in schema:
        for name, below in schema["properties"].items():
            yield from unbounded(below, f"{path}.{name}" if path else name)
    elif "items" in schema:
        if "maxItems" not in schema:
            yield path
        yield from unbounded(schema["items"], f"{path}[]")
    elif "additionalProperties" in schema:
        if "maxProperties" not in schema:
            yield path
        if (
            schema["additionalProperties"].get("type") != "integer"
            and "maxLength" not in schema["additionalProperties"]
        ):
            yield f"{path}.*"
    elif schema["type"] == "string" and not schema.keys() & {"maxLength", "enum", "format"}:
        yield path


def defaults(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, default) of everything that has no fields below it and a default."""
    if "properties" in schema:
        for name, below in schema["properties"].items():
            yield from defaults(below, f"{path}.{name}" if path else name)
    elif "items" in schema:
        yield from defaults(schema["items"], f"{path}[]")
    elif "default" in schema:
        yield path, schema["default"]


def defaults_of_struct(hint: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The same of a wire struct; what is empty or None has no default in a schema."""
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is tuple:
        yield from defaults_of_struct(get_args(hint)[0], f"{path}[]")
    if not (isinstance(hint, type) and issubclass(hint, Wire)):
        return
    hints = get_type_hints(hint)
    for field in msgspec.structs.fields(hint):
        below = f"{path}.{field.encode_name}" if path else field.encode_name
        if isinstance(field.default, bool | int | str) and field.default != "":
            yield below, field.default
        yield from defaults_of_struct(hints[field.name], below)
