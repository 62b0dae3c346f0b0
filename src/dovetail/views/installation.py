# SPDX-License-Identifier: Apache-2.0
"""The objects of an installation: what is listed for its status, and the lists by their kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from dovetail.kube.api.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    GPU_NODES,
    GPU_STACKS,
    LEASES,
    PODS,
    STATEFUL_SETS,
    Resource,
)
from dovetail.kube.objects.installed import HeldLease, InstalledDefinition, InstalledPod, InstalledWorkload
from dovetail.kube.objects.stack import GPUStack
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.reading.lists import ListReply, ListRequest

OPERATOR, SCHEDULER, AGENT = "dovetail-operator", "dovetail-scheduler", "dovetail-agent"
AGENT_PLANES, COLLECTOR = "dovetail-agent-planes", "dovetail-collector"
CUSTOM_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", False, "CustomResourceDefinition"
)
_NAME, _MANAGER = "app.kubernetes.io/name", "app.kubernetes.io/managed-by"
_PART = {"app.kubernetes.io/part-of": "dovetail"}
_REQUESTS = {
    "stacks": (ListRequest(GPU_STACKS, GPUStack),),
    "deployments": (
        ListRequest(DEPLOYMENTS, InstalledWorkload, {_NAME: OPERATOR}),
        ListRequest(DEPLOYMENTS, InstalledWorkload, {_NAME: SCHEDULER}),
    ),
    # Those of the operator, and those that were applied without it.
    "daemon_sets": (
        ListRequest(DAEMON_SETS, InstalledWorkload, {_MANAGER: OPERATOR}),
        ListRequest(DAEMON_SETS, InstalledWorkload, {_NAME: AGENT}),
    ),
    "stateful_sets": (
        ListRequest(STATEFUL_SETS, InstalledWorkload, {_NAME: AGENT_PLANES}),
        ListRequest(STATEFUL_SETS, InstalledWorkload, {_NAME: COLLECTOR}),
    ),
    "pods": (
        ListRequest(PODS, InstalledPod, {_NAME: OPERATOR}),
        ListRequest(PODS, InstalledPod, {_NAME: SCHEDULER}),
        ListRequest(PODS, InstalledPod, {_NAME: AGENT_PLANES}),
        ListRequest(PODS, InstalledPod, {_NAME: COLLECTOR}),
    ),
    "leases": (
        ListRequest(LEASES, HeldLease, {_NAME: OPERATOR}),
        ListRequest(LEASES, HeldLease, {_NAME: SCHEDULER}),
    ),
    "gpu_nodes": (ListRequest(GPU_NODES, GPUNode),),
    "definitions": (ListRequest(CUSTOM_DEFINITIONS, InstalledDefinition, _PART),),
}


class InstallationFacts(Struct, frozen=True):
    """The objects of an installation. `unread`: why lists are missing; `absent` are the kinds of these lists."""

    stacks: tuple[GPUStack, ...] = ()
    deployments: tuple[InstalledWorkload, ...] = ()
    daemon_sets: tuple[InstalledWorkload, ...] = ()
    stateful_sets: tuple[InstalledWorkload, ...] = ()
    pods: tuple[InstalledPod, ...] = ()
    leases: tuple[HeldLease, ...] = ()
    gpu_nodes: tuple[GPUNode, ...] = ()
    definitions: tuple[InstalledDefinition, ...] = ()
    unread: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()


def requests() -> tuple[ListRequest, ...]:
    """The lists that `facts_of` takes."""
    return tuple(one for requests in _REQUESTS.values() for one in requests)


def facts_of(replies: Sequence[ListReply]) -> InstallationFacts:
    """The replies to `requests`, in their order."""
    each = iter(replies)
    by_field = {field: [next(each) for _ in asked] for field, asked in _REQUESTS.items()}
    unread = tuple(dict.fromkeys(reply.unread for reply in replies if reply.objects is None))
    absent = frozenset(field for field, found in by_field.items() if any(one.objects is None for one in found))
    return InstallationFacts(
        **{field: tuple(_once(found)) for field, found in by_field.items()}, unread=unread, absent=absent
    )


def _once(replies: Sequence[ListReply]) -> Iterator[Any]:
    """The objects of several lists, each once."""
    seen: set[tuple[str, str]] = set()
    for reply in replies:
        for one in reply.objects or ():
            key = (one.metadata.namespace, one.metadata.name)
            if key not in seen:
                seen.add(key)
                yield one
