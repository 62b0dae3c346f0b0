# SPDX-License-Identifier: Apache-2.0
"""What `kubectl get` prints: the columns of pods, nodes, jobs, queues, events and resources that are defined; for the
rest name and age.

Source: k8s.io/kubernetes/pkg/printers/internalversion/printers.go, of which only these columns are known. A cell of a
custom resource is the value at its JSONPath if that is a plain path of names or a field of a condition, else empty.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from msgspec import Struct

from dovetail.apiserver.objects import (
    Object,
    condition_of,
    labels_of,
    object_at,
    objects_at,
    seconds_of,
    text_at,
    value_at,
)
from dovetail.apiserver.resources import ServedResource

_ROLE = "node-role.kubernetes.io/"
_OF_CONDITION = re.compile(r"status\.conditions\[\?\(@\.type==['\"](\w+)['\"]\)\]\.(\w+)")
_AGE_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class _Cell(Struct, frozen=True):
    """A column and its contents; columns of priority 1 show with `-o wide`."""

    name: str
    of: Callable[[Object], object]
    priority: int = 0
    kind: str = "string"
    format: str = ""


def _age(stamp: str) -> str:
    start = seconds_of(stamp)
    if start is None:
        return "<unknown>"
    age_s = max(0, int(time.time() - start))
    size, unit = next((step for step in _AGE_UNITS if age_s >= 2 * step[0]), (1, "s"))
    return f"{age_s // size}{unit}"


def _at(path: str) -> Callable[[Object], object]:
    return lambda obj: text_at(obj, path) or "<none>"


def _pod_ready(pod: Object) -> str:
    ready = sum(status.get("ready") is True for status in objects_at(pod, "status.containerStatuses"))
    return f"{ready}/{len(objects_at(pod, 'spec.containers'))}"


def _pod_restarts(pod: Object) -> int:
    counts = [status.get("restartCount") for status in objects_at(pod, "status.containerStatuses")]
    return sum(count for count in counts if isinstance(count, int))


def _pod_status(pod: Object) -> str:
    if text_at(pod, "metadata.deletionTimestamp"):
        return "Terminating"
    gated = objects_at(pod, "spec.schedulingGates") and "SchedulingGated"
    phase = text_at(pod, "status.phase")
    return text_at(pod, "status.reason") or gated or ("Completed" if phase == "Succeeded" else phase)


def _node_status(node: Object) -> str:
    ready = next((c for c in objects_at(node, "status.conditions") if c.get("type") == "Ready"), {})
    status = {"True": "Ready", "False": "NotReady"}.get(text_at(ready, "status"), "Unknown")
    return status + (",SchedulingDisabled" if value_at(node, "spec.unschedulable") is True else "")


def _node_roles(node: Object) -> str:
    return ",".join(sorted(key.removeprefix(_ROLE) for key in labels_of(node) if key.startswith(_ROLE))) or "<none>"


def _job_status(job: Object) -> str:
    conditions = (c for c in objects_at(job, "status.conditions") if c.get("status") == "True")
    return next((text_at(condition, "type") for condition in conditions), "Running")


def _job_completions(job: Object) -> str:
    wanted = value_at(job, "spec.completions") or value_at(job, "spec.parallelism") or 1
    return f"{value_at(job, 'status.succeeded') or 0}/{wanted}"


def _event_object(event: Object) -> str:
    return f"{text_at(event, 'involvedObject.kind').lower()}/{text_at(event, 'involvedObject.name')}"


def _event_seen(event: Object) -> str:
    return _age(text_at(event, "lastTimestamp") or text_at(event, "eventTime"))


def _custom(path: str, kind: str = "string") -> Callable[[Object], object]:
    match = _OF_CONDITION.fullmatch(path)

    def cell(obj: Object) -> object:
        value = value_at(obj, path) if match is None else condition_of(obj, match[1]).get(match[2])
        if kind == "date" and isinstance(value, str):
            return _age(value)
        return value if isinstance(value, (str, int, float, bool)) else ""

    return cell


_NAME = _Cell("Name", _at("metadata.name"), format="name")
_CREATED = _Cell("Age", lambda obj: _age(text_at(obj, "metadata.creationTimestamp")))
_CELLS: dict[str, tuple[_Cell, ...]] = {
    "pods": (
        _NAME,
        _Cell("Ready", _pod_ready),
        _Cell("Status", _pod_status),
        _Cell("Restarts", _pod_restarts, kind="integer"),
        _CREATED,
        _Cell("IP", _at("status.podIP"), 1),
        _Cell("Node", _at("spec.nodeName"), 1),
    ),
    "nodes": (
        _NAME,
        _Cell("Status", _node_status),
        _Cell("Roles", _node_roles),
        _CREATED,
        _Cell("Version", _at("status.nodeInfo.kubeletVersion")),
    ),
    "jobs.batch": (
        _NAME,
        _Cell("Status", _job_status),
        _Cell("Completions", _job_completions),
        _CREATED,
    ),
    "queues.dovetail.dev": (
        _NAME,
        _Cell("Parent", _custom("spec.parent")),
        _Cell("Weight", _custom("spec.weight"), kind="integer"),
        _Cell("GPUs", _custom("status.allocated.gpu")),
        _Cell("Due", _custom("status.due.gpu")),
        _Cell("Guaranteed", _custom("status.guaranteed.gpu")),
        _Cell("Pending", _custom("status.pendingJobs"), kind="integer"),
        _Cell("Ready", _custom("status.conditions[?(@.type=='Ready')].status")),
    ),
    "events": (
        _Cell("Last Seen", _event_seen),
        _Cell("Type", _at("type")),
        _Cell("Reason", _at("reason")),
        _Cell("Object", _event_object),
        _Cell("Message", lambda event: text_at(event, "message").strip()),
    ),
}


def _cells(resource: ServedResource) -> tuple[_Cell, ...]:
    declared = (_Cell(c.name, _custom(c.path, c.kind), c.priority, c.kind) for c in resource.columns)
    return (_NAME, *declared) if resource.columns else _CELLS.get(resource.collection, (_NAME, _CREATED))


def table(resource: ServedResource, objects: list[Object], metadata: Object, include: str) -> Object:
    """A meta.k8s.io/v1 Table of stored objects. `include` is what each row carries: Object, Metadata or None."""
    cells = _cells(resource)
    return {
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": [
            {"name": c.name, "type": c.kind, "format": c.format, "description": c.name, "priority": c.priority}
            for c in cells
        ],
        "rows": [{"cells": [c.of(obj) for c in cells], **_carried(resource, obj, include)} for obj in objects],
    }  # fmt: skip


def _carried(resource: ServedResource, obj: Object, include: str) -> Object:
    if include == "None":
        return {}
    return {"object": resource.served(obj) if include == "Object" else metadata_only(obj)}


def metadata_only(obj: Object) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object_at(obj, "metadata"),
    }
