# SPDX-License-Identifier: Apache-2.0
"""A pod as the managers of a kubelet see it, and its QoS class.

Amounts are integers by resource name: `cpu` in millicores, `memory` and `hugepages-*` in bytes, devices in pieces.
Limits and requests are those of the pod after the API server's defaulting. A pod's name and uid are not part of it
here, so that all pods of one kind share one record. Ephemeral containers are never managed and never listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property

from msgspec import Struct

CPU = "cpu"
MEMORY = "memory"
HUGEPAGES = "hugepages-"

Amounts = tuple[tuple[str, int], ...]
"""Amounts by resource, sorted by name."""


class ManagedKind(Enum):
    INIT = "init"
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always."""
    APP = "app"


class Qos(Enum):
    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


def amounts(values: Mapping[str, int]) -> Amounts:
    return tuple(sorted(values.items()))


def pod_level(resource: str) -> bool:
    """Whether a pod may request this resource as a whole (component-helpers/resource: SupportedPodLevelResources)."""
    return managed(resource) or resource == CPU


def managed(resource: str) -> bool:
    """Whether the Memory Manager manages the resource."""
    return resource == MEMORY or resource.startswith(HUGEPAGES)


class Asked(Struct, frozen=True, dict=True):
    """The requests and limits of a container, or of a pod as a whole."""

    requests: Amounts = ()
    limits: Amounts = ()

    @cached_property
    def request(self) -> Mapping[str, int]:
        return dict(self.requests)

    @cached_property
    def limit(self) -> Mapping[str, int]:
        return dict(self.limits)

    @cached_property
    def qos(self) -> Qos:
        """The class by one set of resources: only CPU and memory count."""
        classes = {self._class(CPU), self._class(MEMORY)}
        return classes.pop() if len(classes) == 1 else Qos.BURSTABLE

    def _class(self, resource: str) -> Qos:
        request, limit = self.request.get(resource, 0), self.limit.get(resource, 0)
        if request != limit:
            return Qos.BURSTABLE
        return Qos.GUARANTEED if request else Qos.BEST_EFFORT


class ManagedContainer(Asked, frozen=True, dict=True):
    kind: ManagedKind = ManagedKind.APP
    name: str = ""
    """Only for the kubelet's messages."""

    @cached_property
    def whole_cpus(self) -> int:
        """The number of requested CPUs; 0 for a fraction."""
        count, rest = divmod(self.request.get(CPU, 0), 1000)
        return 0 if rest else count

    @cached_property
    def memory_bytes(self) -> Mapping[str, int]:
        """The requests by type, including those of 0 bytes."""
        return {name: size for name, size in self.requests if managed(name)}


class ManagedPod(Struct, frozen=True, cache_hash=True, dict=True):
    """`containers` are in the kubelet's order: init containers and sidecars as the spec lists them, then the others.

    `whole` is spec.resources, None where the pod has none. `status_qos` is status.qosClass, which the kubelet trusts.
    Raises ValueError for an init container behind an app container, and for a pod without containers."""

    containers: tuple[ManagedContainer, ...]
    whole: Asked | None = None
    status_qos: Qos | None = None
    overhead: Amounts = ()

    def __post_init__(self) -> None:
        kinds = [container.kind for container in self.containers]
        if not kinds:
            raise ValueError("containers: a pod has at least one")
        if ManagedKind.APP in kinds and any(
            kind is not ManagedKind.APP for kind in kinds[kinds.index(ManagedKind.APP) :]
        ):
            raise ValueError("containers: init containers and sidecars come before app containers")

    @cached_property
    def has_pod_level(self) -> bool:
        """Whether spec.resources names a resource that a pod may request as a whole (IsPodLevelResourcesSet)."""
        return self.whole is not None and any(pod_level(name) for name, _ in self.whole.requests + self.whole.limits)

    def qos(self, pod_level_resources: bool, fixed: bool) -> Qos:
        """The QoS class (apis/core/v1/helper/qos). `pod_level_resources` and `fixed` are the node's gates
        PodLevelResources and PodLevelResourcesFixKubeletQOSClass: without the second even an empty spec.resources
        decides."""
        if self.status_qos is not None:
            return self.status_qos
        if pod_level_resources and self.whole is not None and (self.has_pod_level or not fixed):
            return self.whole.qos
        classes = {container.qos for container in self.containers}
        return classes.pop() if len(classes) == 1 else Qos.BURSTABLE

    def total_requests(self, pod_level_resources: bool) -> dict[str, int]:
        """The pod's effective requests (component-helpers/resource: PodRequests)."""
        total = effective((container.kind, container.request) for container in self.containers)
        if pod_level_resources and self.whole is not None:
            total |= {name: value for name, value in self.whole.requests if pod_level(name)}
        for name, value in self.overhead:
            total[name] = total.get(name, 0) + value
        return total


def effective(containers: Iterable[tuple[ManagedKind, Mapping[str, int]]]) -> dict[str, int]:
    """The pod's need at its peak: the sum of the containers that run together, or the need of an init container and the
    sidecars before it (component-helpers/resource: AggregateContainerRequests, KEP-753)."""
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for kind, amount in containers:
        if kind is ManagedKind.INIT:
            for name in amount.keys() | sidecars.keys():
                peak[name] = max(peak.get(name, 0), sidecars.get(name, 0) + amount.get(name, 0))
            continue
        for name, value in amount.items():
            running[name] = running.get(name, 0) + value
            if kind is ManagedKind.SIDECAR:
                sidecars[name] = sidecars.get(name, 0) + value
                peak[name] = max(peak.get(name, 0), sidecars[name])
    return {name: max(running.get(name, 0), peak.get(name, 0)) for name in running.keys() | peak.keys()}
