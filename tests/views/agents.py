# SPDX-License-Identifier: Apache-2.0
"""A cluster with software agents as manifests: two nodes with 8 GPUs each, three control planes below the queue
`agents`, their leases and requests, and a job."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

Document = dict[str, Any]
AT = "2026-01-31T12:00:00Z"
NOW = int(datetime.fromisoformat(AT).timestamp() * 1000)
START = "2026-01-31T11:50:00Z"
FENCE = 1769860200000
GROUP = "dovetail.dev/v1alpha1"


def document(kind: str, name: str, namespace: str = "", status: Document | None = None, **spec: Any) -> Document:
    meta = {"name": name, "uid": f"{kind}-{namespace}-{name}", "creationTimestamp": START, "generation": 1}
    if namespace:
        meta["namespace"] = namespace
    version = "v1" if kind in ("Node", "Pod", "Namespace") else GROUP
    found = {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}
    return found | ({"status": status} if status else {})


def node(name: str) -> Document:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return document("Node", name, status={"allocatable": amounts})


def plane(name: str, phase: str = "Ready", **spec: Any) -> Document:
    status = {"phase": phase, "lastHeartbeat": "2026-01-31T11:59:50Z", "leases": 1, "requests": 2}
    return document("AgentControlPlane", name, name, status, queue="agents", grace="1m", **spec)


def request(agent: str, name: str, *alternatives: Document, status: Document | None = None, **spec: Any) -> Document:
    alternatives = alternatives or ({},)
    status = status and {"observedGeneration": 1} | status
    return document("LeaseRequest", name, agent, status, plane=agent, alternatives=list(alternatives), **spec)


def lease(
    agent: str, name: str, on: str, gpus: tuple[int, ...], status: Document | None = None, **alternative: Any
) -> Document:
    """A lease with its devices on one node, in one part."""
    whole = {"count": len(gpus), "perNode": len(gpus), "duration": "30m"} | alternative
    written = {"state": "Active", "end": "2026-01-31T12:20:00Z"} | (status or {})
    devices = [{"part": "0.0/0", "node": on, "gpu": gpu} for gpu in gpus]
    return document(
        "GPULease", name, agent, written, plane=agent, requestUid="r", alternative=whole, devices=devices, start=START,
        fence=FENCE, grace="1m", checkpointInterval="0s", startup="0s",
    )  # fmt: skip


def pod(
    namespace: str, name: str, gpus: int, on: str = "", lease: str = "", devices: str = "", fence: int = FENCE
) -> Document:
    """A pod of Dovetail's; one that is bound has the record that its bind wrote."""
    annotations = {"dovetail.dev/lease": lease, "dovetail.dev/lease-fence": str(fence)} if lease else {}
    if on:
        queue = f"planes/{namespace}/{namespace}" if lease else ""
        record = {"version": 1, "uid": f"Pod-{namespace}-{name}", "queue": queue, "devices": devices}
        record |= {"lease": lease, "fence": fence} if lease else {}
        annotations |= {"dovetail.dev/devices": devices, "dovetail.dev/bound": json.dumps(record)}
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec: Document = {"schedulerName": "dovetail", "containers": [container]}
    status: Document = {}
    if on:
        spec["nodeName"] = on
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": START}
        status = {"phase": "Running", "conditions": [scheduled]}
    found = document("Pod", name, namespace, status, **spec)
    found["metadata"]["annotations"] = annotations
    return found


REVOKED = {"cause": "NodeMaintenance", "deadline": "2026-01-31T12:00:40Z", "message": "its node has to get empty"}
ONE = {"count": 1, "duration": "1h"}
OFFER = {"id": "bob/many.1.0", "now": True, "start": AT, "alternative": ONE, "why": "1 is free"}
CLUSTER = (
    node("n1"),
    node("n2"),
    document("Queue", "agents", planes=True),
    *(document("Namespace", name) for name in ("ada", "bob", "cy")),
    *(plane(name, limit={"gpu": 16}) for name in ("ada", "bob")),
    plane("cy", "Silent"),
    lease("ada", "train", "n1", (0, 1, 2, 3, 4, 5, 6, 7)),
    lease("bob", "small", "n2", (0, 1), {"state": "Revoking", "revocation": REVOKED, "renewals": 2}, perNode=2),
    request("bob", "many", {"count": 8, "perNode": 8, "duration": "1h"}, ONE,
            status={"state": "Offered", "offers": [OFFER], "offersUntil": "2026-01-31T12:00:10Z"}),
    request("bob", "train", {"count": 16, "perNode": 8, "duration": "1h"}, firm=True,
            status={"state": "Reserved", "reason": "GangDoesNotFit", "message": "it waits",
                    "expectedStart": "2026-01-31T12:20:00Z"}),
    request("cy", "one", status={"state": "Pending", "reason": "PlaneSilent", "message": "no heartbeat"}),
    pod("ada", "worker", 2, "n1", "train", "0,1"),
    pod("ada", "stale", 1, lease="train", fence=5),
    pod("ada", "full", 7, lease="train"),
    pod("cy", "stray", 1),
    pod("default", "job", 8),
)  # fmt: skip
