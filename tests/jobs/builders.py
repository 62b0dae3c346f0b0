# SPDX-License-Identifier: Apache-2.0
"""Jobs as they are read from a cluster, made by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.jobs.finding import NamedJob
from dovetail.jobs.kinds import kind_named
from dovetail.jobs.pods import JobPod, by_rank

CREATED = "2026-11-22T12:00:00Z"


def pod(name: str, phase: str = "Pending", node: str = "", **more: Any) -> JobPod:
    """A pod of ours. `more`: labels, annotations, owners, conditions, containers (states by name), deleted."""
    meta = {
        "name": name, "namespace": "team-a", "uid": f"uid-{name}", "creationTimestamp": more.pop("created", CREATED),
        "labels": more.pop("labels", {}), "annotations": more.pop("annotations", {}),
        "ownerReferences": more.pop("owners", []),
    }  # fmt: skip
    if more.pop("deleted", False):
        meta["deletionTimestamp"] = CREATED
    states = more.pop("containers", {"main": {}})
    spec = {
        "nodeName": node, "schedulerName": more.pop("scheduler", "dovetail"),
        "containers": [{"name": name} for name in states],
    }  # fmt: skip
    status = {
        "phase": phase, "conditions": more.pop("conditions", []),
        "containerStatuses": [{"name": name, "state": state} for name, state in states.items()],
    }  # fmt: skip
    assert not more
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, JobPod)


def job(kind: str = "job", name: str = "train", *pods: JobPod, **document: Any) -> NamedJob:
    """A job of this kind with these pods. `document`: spec and status."""
    found = kind_named(kind)
    assert found is not None
    meta = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", "creationTimestamp": CREATED}
    whole = {"apiVersion": found.resource.api_version, "kind": found.resource.kind, "metadata": meta, **document}
    return NamedJob("team-a", name, found, whole, tuple(sorted(pods, key=by_rank)))


def indexed(pods: int, **more: Any) -> dict[str, Any]:
    """The spec of an indexed Job of so many pods."""
    return {"completionMode": "Indexed", "completions": pods, "parallelism": pods, **more}
