# SPDX-License-Identifier: Apache-2.0
"""The changes that can be asked about, as a command reads them from its arguments and as they are sent.

Rules
- Objects are manifests, with the pods of workloads made already. Bounds on objects and nodes are those of one question.
- With a `namespace` the asker may create objects there alone: other namespaces, and what is of the whole cluster, are
  refused. Other changes are about nodes and queues, which all see.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from dovetail.core.events import (
    ClaimChanged,
    Event,
    GangChanged,
    LeaseRequestChanged,
    NodeChanged,
    PodChanged,
    VolumeClaimChanged,
)
from dovetail.core.state import State
from dovetail.kube.manifests.cluster import of_documents
from dovetail.kube.manifests.documents import Document
from dovetail.views.amounts import changed
from dovetail.views.queues import queue_named
from dovetail.views.whatif import ChangeError, Hypothesis, add_nodes, drain, like, like_of_model, quota, stop, submit
from dovetail.views.whatif_types import (
    AddNodes,
    AddNodesLike,
    Change,
    ChangeQuota,
    DrainNodes,
    ResumeQueue,
    StopQueue,
    Submit,
)

MOST_OBJECTS = 5_000
MOST_NODES = 10_000
MOST_WEIGHT = 1_000_000
MOST_PRIORITY = 2**31 - 1
_SENT = "objects"


class NotPermitted(Exception):
    """The asker may not create such objects; the message names one."""


def hypothesis_of(state: State, change: Change, now_ms: int, namespace: str = "") -> Hypothesis:
    """The change of a state. Raises ChangeError, AmountError, JobNotFound, and with a `namespace` NotPermitted."""
    match change:
        case Submit(objects):
            events = _events(objects, namespace)
            if namespace:
                _check(events, namespace)
            return submit(state, events, now_ms)
        case DrainNodes(nodes):
            return drain(state, tuple(dict.fromkeys(nodes)), now_ms)
        case AddNodes(objects):
            records = [one.node for one in _events(objects) if isinstance(one, NodeChanged)]
            if not records:
                raise ChangeError("there is no Node among the objects")
            return add_nodes(state, records)
        case AddNodesLike():
            return _like(state, change)
        case ChangeQuota():
            return _quota(state, change)
        case StopQueue(queue, evict):
            return stop(state, queue, "HoldAndDrain" if evict else "Hold")
        case ResumeQueue(queue):
            return stop(state, queue, "")


def _events(objects: Iterable[dict[str, Any]], namespace: str = "") -> tuple[Event, ...]:
    """The events of manifests. Objects without a namespace are in that of the asker."""
    objects = list(objects)
    if len(objects) > MOST_OBJECTS:
        raise ChangeError(f"there are {len(objects)} objects, and at most {MOST_OBJECTS} can be asked about")
    documents = [Document(_SENT, one, f"[{number}]") for number, one in enumerate(objects)]
    return of_documents(inside(documents, namespace) if namespace else documents, whole=False).events


def inside(documents: Iterable[Document], namespace: str) -> list[Document]:
    """The documents, those of namespaces that name none with this one."""
    return [replace(one, value=_inside(one.value, namespace)) for one in documents]


def _inside(value: Any, namespace: str) -> Any:
    meta = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(meta, dict) or meta.get("namespace") or value.get("kind") in _OF_CLUSTER:
        return value
    return value | {"metadata": meta | {"namespace": namespace}}


_OF_CLUSTER = frozenset(
    {
        *("Node", "Namespace", "PersistentVolume", "StorageClass", "CSINode", "GPUNode", "NodeResourceTopology"),
        *("DeviceClass", "DeviceTaintRule", "ResourceSlice", "Queue", "PriorityClass"),
    }
)
"""Kinds whose objects are in no namespace."""


def _check(events: Iterable[Event], namespace: str) -> None:
    for event in events:
        match event:
            case PodChanged(pod):
                found, what = pod.namespace, f"pod {pod.key}"
            case GangChanged(gang):
                found, what = gang.namespace, f"gang {gang.namespace}/{gang.name}"
            case LeaseRequestChanged(request):
                found, what = request.id.partition("/")[0], f"LeaseRequest {request.id}"
            case VolumeClaimChanged(claim) | ClaimChanged(claim):
                found, what = claim.namespace, f"claim {claim.namespace}/{claim.name}"
            case _:
                found, what = "", f"{type(event).__name__.removesuffix('Changed')}: it is of the whole cluster"
        if found != namespace:
            raise NotPermitted(
                f"only pods, gangs, claims and LeaseRequests of namespace {namespace} can be submitted, not {what}"
            )


def _like(state: State, change: AddNodesLike) -> Hypothesis:
    if not 1 <= change.count <= MOST_NODES:
        raise ChangeError(f"count must be 1 to {MOST_NODES}")
    model = change.node or like_of_model(state, change.gpus, change.model)
    return like(state, model, change.count, change.labels)


def _quota(state: State, change: ChangeQuota) -> Hypothesis:
    old = queue_named(state, change.queue)
    if change.weight is not None and not 1 <= change.weight <= MOST_WEIGHT:
        raise ChangeError(f"weight must be 1 to {MOST_WEIGHT}")
    if change.priority is not None and abs(change.priority) > MOST_PRIORITY:
        raise ChangeError(f"priority must be -{MOST_PRIORITY} to {MOST_PRIORITY}")
    # A guarantee that is asked about holds at all hours.
    new = replace(
        old,
        calendar=None if change.guarantee else old.calendar,
        guarantee=changed(old.guarantee, change.guarantee),
        limit=changed(old.limit, change.limit),
        weight=change.weight or old.weight,
        priority=old.priority if change.priority is None else change.priority,
    )
    return quota(state, new)
