# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects as the plain JSON documents they are on the wire.

An object in the store is never changed in place: a changed object is built from copies of the parts that differ. So
lists, watch history and replies share documents freely. Reading a field never fails: tests put malformed objects into
the store, and everything that walks over objects has to survive them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]
"""A JSON object. JSON has no narrower type than this."""
Key: TypeAlias = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""
Clock: TypeAlias = Callable[[], float]
"""The wall clock, in seconds since the epoch."""


def value_at(obj: object, path: str) -> Any:
    """The value at a dotted path; None where any step is missing or is not an object."""
    for step in path.split("."):
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def object_at(obj: object, path: str) -> Object:
    """The object at a dotted path, {} where there is none."""
    value = value_at(obj, path)
    return value if isinstance(value, dict) else {}


def objects_at(obj: object, path: str) -> list[Object]:
    """The objects of the list at a dotted path, [] where there is none."""
    value = value_at(obj, path)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_at(obj: object, path: str) -> str:
    """The text at a dotted path, "" where there is none."""
    value = value_at(obj, path)
    return value if isinstance(value, str) else ""


def labels_of(obj: Object) -> dict[str, str]:
    return object_at(obj, "metadata.labels")


def key_of(obj: Object) -> Key:
    metadata = object_at(obj, "metadata")
    return text_at(metadata, "namespace"), text_at(metadata, "name")


def with_metadata(obj: Object, **fields: object) -> Object:
    """A copy whose metadata has these fields; None removes a field."""
    metadata = object_at(obj, "metadata") | fields
    return obj | {"metadata": {name: value for name, value in metadata.items() if value is not None}}


def with_status(obj: Object, **fields: object) -> Object:
    """A copy whose status has these fields; None removes a field."""
    status = object_at(obj, "status") | fields
    return obj | {"status": {name: value for name, value in status.items() if value is not None}}


def with_condition(obj: Object, kind: str, status: str, now_s: float, reason: str = "", message: str = "") -> Object:
    """A copy with this status condition; the transition time moves only where the condition's status does."""
    old = condition_of(obj, kind)
    condition = {"type": kind, "status": status, "lastTransitionTime": timestamp(now_s)}
    if old.get("status") == status and "lastTransitionTime" in old:
        condition["lastTransitionTime"] = old["lastTransitionTime"]
    condition |= {name: value for name, value in (("reason", reason), ("message", message)) if value}
    conditions = objects_at(obj, "status.conditions")
    if not old:
        return with_status(obj, conditions=[*conditions, condition])
    return with_status(obj, conditions=[condition if other is old else other for other in conditions])


def condition_of(obj: Object, kind: str) -> Object:
    """The status condition of a type, {} where there is none."""
    return next((c for c in objects_at(obj, "status.conditions") if c.get("type") == kind), {})


def timestamp(seconds: float) -> str:
    """RFC 3339 in whole seconds, as `metav1.Time` is written."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(stamp: str) -> float | None:
    """Seconds since the epoch of an RFC 3339 time, None where the text is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
