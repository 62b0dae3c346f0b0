# SPDX-License-Identifier: Apache-2.0
"""The request bodies that the scheduler writes about pods, groups and volumes, Events excepted (`events`). Encoded once
each; pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dovetail.core.decisions import Bind
from dovetail.core.dra.extended import ExtendedUse
from dovetail.kube.api.texts import MESSAGE_BYTES, clipped
from dovetail.kube.nodes.instances import shown
from dovetail.kube.objects.base import time_text
from dovetail.kube.translate.annotations import BOUND, DECISION, DELETION_COST, DEVICES, POD_DELETION_COST, RANK

SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
_encode = msgspec.json.Encoder().encode


def devices(bind: Bind) -> str:
    """The chosen devices in the format of the annotation dovetail.dev/devices; "" for none."""
    if not bind.devices and not bind.instances:
        return ""
    return ",".join([*map(str, bind.devices), *map(shown, bind.instances)])


def decision_id(run_id: str, step: int) -> str:
    """The id of the decisions of one step of one run; `dovetail replay` takes it."""
    return f"{run_id}-{step}"


def binding(namespace: str, name: str, uid: str, bind: Bind, run_id: str, record: str) -> bytes:
    """A Binding. The uid is a precondition: a pod that was deleted and recreated under the name is not bound by
    mistake. The API server copies the annotations to the pod, so the decision and the `record` of the bound pod reach
    the node together with the pod."""
    annotations = {BOUND: record, DECISION: decision_id(run_id, bind.step)}
    if chosen := devices(bind):
        annotations[DEVICES] = chosen
    if bind.rank >= 0:
        annotations[RANK] = str(bind.rank)
    return _encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "annotations": annotations},
            "target": {"kind": "Node", "name": bind.node},
        }
    )


def unschedulable(uid: str, reason: str, message: str, now_ms: int) -> bytes:
    """A strategic merge patch of a pod's status (conditions merge by type); it fails if the uid differs."""
    return _pod_condition(uid, "PodScheduled", "False", reason, message, now_ms)


def disruption_target(uid: str, reason: str, message: str, now_ms: int) -> bytes:
    """The same for an evicted pod; its owner may act on the condition (a Job's podFailurePolicy)."""
    return _pod_condition(uid, "DisruptionTarget", "True", reason, message, now_ms)


def _pod_condition(uid: str, kind: str, status: str, reason: str, message: str, now_ms: int) -> bytes:
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": clipped(message, MESSAGE_BYTES),
        "lastProbeTime": None,
        "lastTransitionTime": time_text(now_ms),
    }
    return _encode({"metadata": {"uid": uid}, "status": {"conditions": [condition]}})


def nomination(uid: str, node: str | None, decision: str = "") -> bytes:
    """A strategic merge patch of a pod's status: the node with capacity held for it, and the id of the decision; None
    clears the node. It fails if the uid differs."""
    annotations = {"annotations": {DECISION: decision}} if decision else {}
    return _encode({"metadata": {"uid": uid} | annotations, "status": {"nominatedNodeName": node}})


def deletion_cost(uid: str, version: str, cost: int | None, why: str) -> bytes:
    """A strategic merge patch of a pod: what its deletion costs, and why that is so; None removes both. It fails if the
    pod has changed since `version`: its user may have written a cost meanwhile."""
    value, reason = (None, None) if cost is None else (str(cost), f"{cost}: {why}")
    annotations = {POD_DELETION_COST: value, DELETION_COST: reason}
    return _encode({"metadata": {"uid": uid, "resourceVersion": version, "annotations": annotations}})


def extended_claim(uid: str, claim: str, uses: Iterable[ExtendedUse]) -> bytes:
    """A strategic merge patch of a pod's status: the request of the claim behind each container's extended resource.
    It fails if the uid differs."""
    mappings = [{"containerName": u.container, "resourceName": u.resource, "requestName": u.request} for u in uses]
    status = {"requestMappings": mappings, "resourceClaimName": claim}
    return _encode({"metadata": {"uid": uid}, "status": {"extendedResourceClaimStatus": status}})


def group_condition(kind: str, status: bool, reason: str, message: str, now_ms: int) -> bytes:
    """A strategic merge patch of a group's status (conditions merge by type)."""
    return _encode(
        {
            "status": {
                "conditions": [
                    {
                        "type": kind,
                        "status": "True" if status else "False",
                        "reason": reason,
                        "message": clipped(message, MESSAGE_BYTES),
                        "lastTransitionTime": time_text(now_ms),
                    }
                ]
            }
        }
    )


def claim_of_volume(namespace: str, name: str, uid: str, version: str) -> bytes:
    """A merge patch that reserves a PersistentVolume for a claim; the volume controller completes the binding. It fails
    if the volume has changed since `version`: another claim may have it."""
    ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name, "uid": uid}
    return _encode({"metadata": {"resourceVersion": version}, "spec": {"claimRef": ref}})


def node_of_claim(node: str, version: str) -> bytes:
    """A merge patch that requests a volume reachable from a node from the claim's provisioner. It fails if the claim
    has changed since `version`: another pod may have selected another node."""
    return _encode({"metadata": {"resourceVersion": version, "annotations": {SELECTED_NODE_ANNOTATION: node}}})


def eviction(namespace: str, name: str, uid: str) -> bytes:
    return _encode(
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
    )
