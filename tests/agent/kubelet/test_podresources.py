# SPDX-License-Identifier: Apache-2.0
"""The kubelet's PodResources service is read: devices of pods, and allocatable devices."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dovetail.agent.apis import podresources_pb2 as wire
from dovetail.agent.apis.serving import SocketError, serve, service
from dovetail.agent.kubelet.podresources import ContainerDevices, PodDevices, PodResources
from tests.agent.fake_kubelet import left_behind

GPU, NIC = "nvidia.com/gpu", "rdma/hca"


def wire_pod() -> wire.PodResources:
    pod = wire.PodResources(name="a", namespace="team")
    main = pod.containers.add(name="main")
    # A kubelet writes an entry for each device and NUMA node.
    for id, node in (("GPU-b", 0), ("GPU-a", 0), ("GPU-a", 1)):
        main.devices.add(resource_name=GPU, device_ids=[id]).topology.nodes.add(ID=node)
    main.devices.add(resource_name=NIC, device_ids=["mlx5_0"])
    pod.containers.add(name="side")
    return pod


READ = PodDevices(
    "team",
    "a",
    (ContainerDevices("main", ((GPU, ("GPU-a", "GPU-b")), (NIC, ("mlx5_0",)))), ContainerDevices("side", ())),
)


@pytest.fixture
async def kubelet() -> AsyncIterator[PodResources]:
    async def listed(request: object, context: object) -> wire.ListPodResourcesResponse:
        return wire.ListPodResourcesResponse(pod_resources=[wire_pod(), wire.PodResources(name="b", namespace="team")])

    async def got(request: wire.GetPodResourcesRequest, context: object) -> wire.GetPodResourcesResponse:
        if (request.pod_namespace, request.pod_name) != ("team", "a"):
            # The kubelet's server returns an unspecific error, too.
            raise ValueError(f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        return wire.GetPodResourcesResponse(pod_resources=wire_pod())

    async def allocatable(request: object, context: object) -> wire.AllocatableResourcesResponse:
        answer = wire.AllocatableResourcesResponse()
        for id in ("GPU-a", "GPU-b", "GPU-a"):
            answer.devices.add(resource_name=GPU, device_ids=[id])
        return answer

    methods = {
        "List": (wire.ListPodResourcesRequest, listed),
        "Get": (wire.GetPodResourcesRequest, got),
        "GetAllocatableResources": (wire.AllocatableResourcesRequest, allocatable),
    }
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        path = Path(folder) / "kubelet.sock"
        server = await serve(path, service("v1.PodResourcesLister", methods))
        yield PodResources(path)
        await server.stop(grace=0)


async def test_pods_have_the_ids_of_each_container(kubelet: PodResources) -> None:
    assert await kubelet.list() == (READ, PodDevices("team", "b", ()))
    assert READ.ids(GPU) == {"GPU-a", "GPU-b"} and READ.ids("nvidia.com/gpu.shared") == frozenset()


async def test_get_returns_one_pod_or_none(kubelet: PodResources) -> None:
    assert await kubelet.get("team", "a") == READ
    assert await kubelet.get("team", "gone") is None


async def test_allocatable_has_each_healthy_device_once(kubelet: PodResources) -> None:
    assert await kubelet.allocatable() == {GPU: {"GPU-a", "GPU-b"}}


@pytest.mark.parametrize("stale", [False, True], ids=["missing", "stale"])
async def test_an_error_names_the_socket_that_does_not_answer(stale: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        path = Path(folder) / "kubelet.sock"
        if stale:
            left_behind(path)
        with pytest.raises(SocketError, match=str(path)):
            await PodResources(path).list()
