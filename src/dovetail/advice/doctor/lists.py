# SPDX-License-Identifier: Apache-2.0
"""The lists of a cluster that the doctor needs, and the facts that it takes from them.

Rules
- One list for each field of ClusterFacts. The right to `list` these resources is all that the checks need.
- A list that could not be read leaves its field None, with the reason. An object that could not be decoded is left out,
  also with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dovetail.advice.doctor.node_objects import (
    DoctorNode,
    DoctorSlice,
    drivers_of,
    gpu_nodes_of,
    nodes_of,
    topologies_of,
)
from dovetail.advice.doctor.pod_objects import DoctorEvent, DoctorPod, pods_of, sandboxes_of
from dovetail.advice.doctor.records import ClusterFacts
from dovetail.advice.doctor.scheduler_objects import (
    DoctorLease,
    WebhookConfiguration,
    leases_of,
    queues_of,
    webhooks_of,
)
from dovetail.kube import protection
from dovetail.kube.api.lease import LEASE_LABEL
from dovetail.kube.api.resources import (
    EVENTS,
    GPU_NODES,
    LEASES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_SLICES,
    Resource,
)
from dovetail.kube.objects.queues import Queue
from dovetail.kube.objects.topology import GPUNode, NodeResourceTopology
from dovetail.kube.reading.lists import ListReply, ListRequest

_MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", False, "MutatingWebhookConfiguration"
)


class View(Struct, frozen=True):
    """How the doctor looks at the lists: `scheduler_name` is the schedulerName of our pods, `now_ms` the time of the
    lists."""

    scheduler_name: str
    now_ms: int


class ClusterList(Struct, frozen=True):
    """`facts` makes a field of ClusterFacts from the objects of the list."""

    request: ListRequest
    facts: Callable[[Sequence[Any], View], Any]


class UnreadKind(Struct, frozen=True):
    """What could not be read, as `kind/name`, and why."""

    object: str
    why: str


LISTS: Mapping[str, ClusterList] = {
    "nodes": ClusterList(ListRequest(NODES, DoctorNode), lambda objects, _: nodes_of(objects)),
    "pods": ClusterList(
        ListRequest(PODS, DoctorPod), lambda objects, view: pods_of(objects, view.scheduler_name, view.now_ms)
    ),
    "drivers": ClusterList(ListRequest(RESOURCE_SLICES, DoctorSlice), lambda objects, _: drivers_of(objects)),
    "gpu_nodes": ClusterList(ListRequest(GPU_NODES, GPUNode), lambda objects, _: gpu_nodes_of(objects)),
    "topologies": ClusterList(
        ListRequest(NODE_TOPOLOGIES, NodeResourceTopology), lambda objects, _: topologies_of(objects)
    ),
    "queues": ClusterList(ListRequest(QUEUES, Queue), lambda objects, _: queues_of(objects)),
    "webhooks": ClusterList(
        ListRequest(_MUTATING_WEBHOOKS, WebhookConfiguration), lambda objects, _: webhooks_of(objects)
    ),
    "leases": ClusterList(
        ListRequest(LEASES, DoctorLease, LEASE_LABEL), lambda objects, view: leases_of(objects, view.now_ms)
    ),
    "policies": ClusterList(
        ListRequest(protection.POLICIES, protection.ProtectionPolicy), lambda objects, _: tuple(objects)
    ),
    "bindings": ClusterList(ListRequest(protection.BINDINGS, protection.Binding), lambda objects, _: tuple(objects)),
    "sandboxes": ClusterList(
        ListRequest(EVENTS, DoctorEvent, fields={"reason": "FailedCreatePodSandBox"}),
        lambda objects, _: sandboxes_of(objects),
    ),
}
"""By the field of ClusterFacts."""


def requests() -> tuple[ListRequest, ...]:
    """What to read of a cluster; `facts_of` takes the replies in this order."""
    return tuple([one.request for one in LISTS.values()])


def facts_of(
    replies: Iterable[ListReply], view: View, fabric: tuple[str, ...]
) -> tuple[ClusterFacts, tuple[UnreadKind, ...]]:
    """The facts, and what could not be read. `fabric` is that of ClusterFacts."""
    by_field = dict(zip(LISTS, replies, strict=True))
    fields = {
        name: None if reply.objects is None else LISTS[name].facts(reply.objects, view)
        for name, reply in by_field.items()
    }
    unread = [one for name, reply in by_field.items() for one in _unread(LISTS[name].request.resource, reply)]
    return ClusterFacts(**fields, fabric=fabric), tuple(unread)


def _unread(resource: Resource, reply: ListReply) -> Iterator[UnreadKind]:
    if reply.objects is None:
        yield UnreadKind(f"list/{resource.plural}", reply.unread)
    for bad in reply.bad:
        yield UnreadKind(f"{resource.kind}/{'/'.join(bad.key or ('?',))}".lower(), bad.problem)
