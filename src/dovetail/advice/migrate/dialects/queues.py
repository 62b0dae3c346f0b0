# SPDX-License-Identifier: Apache-2.0
"""Queues of other schedulers, migrated to Dovetail's Queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dovetail.advice.lint.edits import put
from dovetail.advice.lint.field import Field
from dovetail.advice.migrate.step import Left, MigrationStep, without_status
from dovetail.core.model import GPU

VERSION = "dovetail.dev/v1alpha1"
CLASSES = {"cpu": "cpu", "memory": "memory", GPU: "gpu"}
"""Dovetail's names of the resources in queues."""


def queue_document(name: str, **spec: Any) -> dict[str, Any]:
    """A Queue object."""
    return {"apiVersion": VERSION, "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def amounts(listed: Field, lost: list[Left]) -> dict[str, Any]:
    """The quantities by Dovetail's resource names. Other resources are added to `lost`."""
    found = {}
    for name, amount in listed.entries():
        if name in CLASSES:
            found[CLASSES[name]] = amount.value
        else:
            lost.append(Left(amount, f"Dovetail's queues count cpu, memory and GPUs, not {name}: drop it"))
    return found


def became(
    whole: Field, spec: dict[str, Any], lost: Iterable[Left], adds: Iterable[dict[str, Any]] = ()
) -> MigrationStep:
    """The step that replaces the object with a Queue."""
    version, kind = whole.at("apiVersion"), whole.at("kind")
    spec = {name: value for name, value in spec.items() if value not in (None, "", {})}
    edits = (*without_status(whole), put(whole.at("spec"), spec), put(kind, "Queue"), put(version, VERSION))
    return MigrationStep(version, f"{kind.text} is a Queue of {VERSION}", edits, tuple(adds), tuple(lost))


def not_read(fields: Iterable[Field], why: str) -> list[Left]:
    """The fields that exist, as lost for the reason `why`."""
    return [Left(field, why) for field in fields if field]
