# SPDX-License-Identifier: Apache-2.0
"""A pod that is bound to this node: what it requests of device plugins, and what was chosen for it.

Rules
- The chosen devices are in the annotation dovetail.dev/devices: indices of GPUs ("0,1"), or MIG instances
  ("0/1g.5gb@6"). An entry is called a part, and is kept as written. A value that is not such a list is a fault; the pod
  then counts as one without chosen devices. The choice is `recorded` if the scheduler's record of the pod
  (`kube.translate.bound`) has the same value: only then the scheduler's accounting has it.
- A resource that a container has through a claim (`extendedResourceClaimStatus`) is not requested here.
- Inside a pod the kubelet serves the init containers first, in the order of the spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct, field

from dovetail.agent.kubelet.container_networks import ContainerNetwork, networks_of
from dovetail.kube.nodes import instances
from dovetail.kube.objects.base import Quantity
from dovetail.kube.objects.pods import SIDECAR, Container
from dovetail.kube.objects.pods_on_node import PodOnNode
from dovetail.kube.translate.annotations import DEVICES
from dovetail.kube.translate.bound import read

_CARD = re.compile(r"0|[1-9][0-9]?")


class ContainerRequest(Struct, frozen=True):
    """How many devices of a resource a container requests. `listed`: PodResources lists the container; it does not list
    init containers that end."""

    container: str
    size: int
    listed: bool


class BoundPod(Struct):
    """A pod of this node.

    written, parts: the annotation dovetail.dev/devices, and its parts; None if no devices were chosen.
    fault: what is wrong with the annotation, "" if nothing is.
    recorded: the scheduler's record of the pod has the same choice.
    requests, open: all requests by resource, and those that are not served yet.
    started: the kubelet has started it.
    fresh: it was bound after the kubelet had registered this process.
    networks: by the name of a container what it can use of the network.
    allocated: by resource the parts that Allocate returned.
    held: by resource the ids that PodResources lists."""

    namespace: str
    name: str
    uid: str
    written: str
    parts: tuple[str, ...] | None
    fault: str
    recorded: bool
    requests: dict[str, tuple[ContainerRequest, ...]]
    open: dict[str, list[ContainerRequest]]
    started: bool
    fresh: bool
    networks: dict[str, ContainerNetwork] = field(default_factory=dict)
    allocated: dict[str, set[str]] = field(default_factory=dict)
    held: dict[str, frozenset[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def wants(self, resource: str, size: int) -> bool:
        return any(request.size == size for request in self.open.get(resource, ()))

    def serve(self, resource: str, size: int) -> None:
        """Remove one open request of this size: it is being served."""
        self.open[resource].remove(next(request for request in self.open[resource] if request.size == size))

    def unconfirmed(self, resource: str) -> bool:
        """Whether it must have devices of the resource that PodResources has not shown yet."""
        served = self.started or resource in self.allocated
        listed = any(request.listed for request in self.requests.get(resource, ()))
        return served and listed and resource not in self.held

    def passing(self, resource: str) -> bool:
        """Whether an init container that ends, and is then no longer listed, has devices of the resource."""
        return not all(request.listed for request in self.requests.get(resource, ()))


def started(pod: PodOnNode) -> bool:
    statuses = pod.status.container_statuses or pod.status.init_container_statuses
    return pod.status.phase == "Running" or bool(statuses)


def bound_pod(pod: PodOnNode, *, fresh: bool) -> BoundPod:
    meta, claims = pod.metadata, pod.status.extended_resource_claim_status
    mapped = {(one.container_name, one.resource_name) for one in (claims.request_mappings or () if claims else ())}
    requests: dict[str, list[ContainerRequest]] = {}
    # The kubelet serves init containers first.
    for containers, init in ((pod.spec.init_containers, True), (pod.spec.containers, False)):
        for one in containers:
            listed = not init or one.restart_policy == SIDECAR
            for resource, size in _amounts(one):
                if (one.name, resource) not in mapped:
                    requests.setdefault(resource, []).append(ContainerRequest(one.name, size, listed))
    written = meta.annotations.get(DEVICES, "")
    parts = parts_of(written) if written else None
    fault = f"{written!r} is not a list of devices such as 0,1 or 0/1g.5gb@6" if written and parts is None else ""
    frozen = {resource: tuple(found) for resource, found in requests.items()}
    recorded = read(pod).bound.devices == written
    return BoundPod(
        meta.namespace, meta.name, meta.uid, written, parts, fault, recorded, frozen, requests, started(pod), fresh,
        networks_of(pod),
    )  # fmt: skip


def _amounts(container: Container) -> Iterable[tuple[str, int]]:
    """(resource, number) of each extended resource. The API server refuses amounts that are not whole numbers."""
    for resource, amount in container.resources.limits.items():
        size = _whole(amount)
        if "/" in resource and size > 0:
            yield resource, size


def _whole(amount: Quantity) -> int:
    text = str(amount)
    return int(text) if text.isdecimal() else 0


def parts_of(written: str) -> tuple[str, ...] | None:
    """The parts that the annotation lists; None if it is not a list of different devices."""
    parts = tuple(written.split(","))
    named = [part for part in parts if "/" in part]
    valid = all(_CARD.fullmatch(part) for part in parts if "/" not in part)
    return parts if valid and len({*parts}) == len(parts) and all(map(instances.written, named)) else None
