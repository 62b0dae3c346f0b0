# SPDX-License-Identifier: Apache-2.0
"""The kubelet's PodResources service: the devices that it allocated to containers, and those that it can allocate.

Rules: pods are named by namespace and name, without a uid. Init containers that end are not listed, nor are their
devices. Older kubelets also list pods that have ended. Device ids are those of the device plugins.
Source: k8s.io/kubelet/pkg/apis/podresources/v1, pkg/kubelet/apis/podresources.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from dovetail.agent.apis import podresources_pb2 as wire
from dovetail.agent.apis.serving import SocketError, call

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
_SERVICE = "/v1.PodResourcesLister"


class ClaimedDevice(Struct, frozen=True):
    """A device that a container has by a ResourceClaim, named by its driver, pool and name."""

    namespace: str
    claim: str
    driver: str
    pool: str
    device: str


class ContainerDevices(Struct, frozen=True):
    """`devices` are (resource, sorted ids)."""

    name: str
    devices: tuple[tuple[str, tuple[str, ...]], ...]
    claimed: tuple[ClaimedDevice, ...] = ()

    def ids(self, resource: str) -> tuple[str, ...]:
        return dict(self.devices).get(resource, ())


class PodDevices(Struct, frozen=True):
    namespace: str
    name: str
    containers: tuple[ContainerDevices, ...]
    claims: frozenset[tuple[str, str]] = frozenset()
    """(namespace, name) of the claims whose devices it has."""

    def ids(self, resource: str) -> frozenset[str]:
        """The ids of a resource that all its containers have."""
        return frozenset(one for container in self.containers for one in container.ids(resource))


class PodResources:
    """The service at `socket`. Every call raises SocketError if there is no answer within `timeout_s`."""

    def __init__(self, socket: Path = SOCKET, timeout_s: float = 10.0) -> None:
        self.socket = socket
        self._timeout_s = timeout_s

    async def list(self) -> tuple[PodDevices, ...]:
        """All pods of the kubelet, also those without devices."""
        return tuple([_pod(pod) for pod in (await self.list_response()).pod_resources])

    async def list_response(self) -> wire.ListPodResourcesResponse:
        request = wire.ListPodResourcesRequest()
        return await call(
            self.socket, f"{_SERVICE}/List", request, wire.ListPodResourcesResponse, timeout_s=self._timeout_s
        )

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        """One pod; None if the kubelet does not have it."""
        request = wire.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            answer = await call(
                self.socket, f"{_SERVICE}/Get", request, wire.GetPodResourcesResponse, timeout_s=self._timeout_s
            )
        except SocketError as error:
            if "not found" in str(error):
                return None
            raise
        return _pod(answer.pod_resources)

    async def allocatable(self) -> dict[str, frozenset[str]]:
        """By resource the ids of all healthy devices that device plugins offer, allocated or free."""
        found: dict[str, frozenset[str]] = {}
        # The kubelet writes an entry for each NUMA node, or for each device.
        for entry in (await self.allocatable_response()).devices:
            found[entry.resource_name] = found.get(entry.resource_name, frozenset()) | {*entry.device_ids}
        return found

    async def allocatable_response(self) -> wire.AllocatableResourcesResponse:
        request = wire.AllocatableResourcesRequest()
        return await call(
            self.socket,
            f"{_SERVICE}/GetAllocatableResources",
            request,
            wire.AllocatableResourcesResponse,
            timeout_s=self._timeout_s,
        )


def _pod(pod: wire.PodResources) -> PodDevices:
    claims = [claim for one in pod.containers for claim in one.dynamic_resources]
    named = frozenset((claim.claim_namespace, claim.claim_name) for claim in claims)
    return PodDevices(pod.namespace, pod.name, tuple([_container(one) for one in pod.containers]), named)


def _container(container: wire.ContainerResources) -> ContainerDevices:
    ids: dict[str, set[str]] = {}
    for entry in container.devices:
        ids.setdefault(entry.resource_name, set()).update(entry.device_ids)
    claimed = tuple(
        [
            ClaimedDevice(one.claim_namespace, one.claim_name, each.driver_name, each.pool_name, each.device_name)
            for one in container.dynamic_resources
            for each in one.claim_resources
        ]
    )
    devices = tuple((name, tuple(sorted(found))) for name, found in sorted(ids.items()))
    return ContainerDevices(container.name, devices, claimed)
