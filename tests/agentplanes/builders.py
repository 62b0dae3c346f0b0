# SPDX-License-Identifier: Apache-2.0
"""Pods of an endpoint, leases and facts, for tests."""

from __future__ import annotations

from typing import Any

from dovetail.agentplanes.facts import CarriedLease, CarryLimits, PlaneFacts
from dovetail.agentplanes.host_pod import HostTarget
from dovetail.apiserver.objects import Object
from dovetail.apiserver.pods import born, defaulted
from dovetail.core.bargaining.types import GpuLease, Holding, LeaseAlternative

TARGET = HostTarget("agent-tuner", "plane-uid")
NOW_MS = 1_790_000_000_000
MINUTE = 60_000
LIMITS = CarryLimits()


def pod(name: str = "one", gpus: int = 0, *, owner: str = "", annotations: Object | None = None, **spec: Any) -> Object:
    """A pod as the endpoint stores it, with one container that asks for so many GPUs."""
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    metadata: Object = {
        "name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": dict(annotations or {}),
    }  # fmt: skip
    if owner:
        metadata["ownerReferences"] = [{"kind": "Job", "name": owner, "uid": owner, "controller": True}]
    containers = [{"name": "main", "image": "registry.example/none", "resources": limits}]
    found = {"metadata": metadata, "spec": {"containers": containers, "restartPolicy": "Never"} | spec}
    return born(defaulted(found), NOW_MS / 1000)


def with_container(found: Object, **fields: Any) -> Object:
    """The pod with these fields of its container."""
    (container,) = found["spec"]["containers"]
    return found | {"spec": found["spec"] | {"containers": [container | fields]}}


def lease(name: str, gang: str, per_node: int, *nodes: int, start_ms: int = NOW_MS, **fields: Any) -> CarriedLease:
    """A lease of ten minutes with so many devices on each of these nodes."""
    holdings, count = [], sum(nodes)
    for number, devices in enumerate(nodes):
        for part in range(devices // per_node):
            gpus = tuple(range(part * per_node, (part + 1) * per_node))
            holdings.append(Holding(f"lease/{name}/{number}.{part}", f"node-{number}", gpus))
    alternative = LeaseAlternative(count=count, per_node=per_node, duration_ms=10 * MINUTE)
    record = GpuLease(
        f"agent-tuner/{name}", "agent-tuner/tuner", name, alternative, tuple(holdings), start_ms,
        start_ms + 10 * MINUTE, 7, MINUTE,
    )  # fmt: skip
    return CarriedLease(record, **{"gang": gang, "end_ms": record.end_ms} | fields)


def facts(*pods: Object, now_ms: int = NOW_MS, limits: CarryLimits = LIMITS, **fields: Any) -> PlaneFacts:
    return PlaneFacts(now_ms, NOW_MS / 1000, TARGET, limits, pods, **fields)
