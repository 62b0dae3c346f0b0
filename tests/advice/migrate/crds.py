# SPDX-License-Identifier: Apache-2.0
"""CustomResourceDefinitions made from the table schemas.yaml. They are the tests' own: the table was made by hand from
the published definitions that it names, and has the names and types of their fields, not their further rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

KINDS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "schemas.yaml").read_text())
_PLAIN = ("string", "integer", "number", "boolean")


def schema(field: Any) -> dict[str, Any]:
    """The structural schema of a field of the table."""
    if isinstance(field, list):
        return {"type": "array", "items": schema(field[0])}
    if isinstance(field, dict) and "*" in field:
        return {"type": "object", "additionalProperties": schema(field["*"])}
    if isinstance(field, dict):
        needed = [name[:-1] for name in field if name.endswith("!")]
        made = {"type": "object", "properties": {name.rstrip("!"): schema(inner) for name, inner in field.items()}}
        return made | ({"required": needed} if needed else {})
    if field == "object":
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if field == "quantity":
        return {"x-kubernetes-int-or-string": True}
    return {"type": field} if field in _PLAIN else {"type": "string", "enum": field.split("|")}


def definitions() -> list[dict[str, Any]]:
    return [_definition(kind) for kind in KINDS]


def _definition(kind: dict[str, Any]) -> dict[str, Any]:
    group, _, version = kind["apiVersion"].partition("/")
    whole = {"type": "object", "properties": {"spec": schema(kind["spec"])}}
    protected = {"api-approved.kubernetes.io": "unapproved, of a test"} if group.endswith("k8s.io") else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind['plural']}.{group}", "annotations": protected},
        "spec": {
            "group": group,
            "scope": kind.get("scope", "Namespaced"),
            "names": {"plural": kind["plural"], "kind": kind["kind"]},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": whole}},
            ],
        },
    }
