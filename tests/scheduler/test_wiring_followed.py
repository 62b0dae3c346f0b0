# SPDX-License-Identifier: Apache-2.0
"""The whole way: objects that describe a node's wiring on a server, the scheduler, and what is then written on pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.resources import EVENTS, GPU_NODES, NODES, PODS, RESOURCE_SLICES
from dovetail.playground import Playground
from dovetail.scheduler.serve import SchedulerOptions, run
from tests.paths import ROOT
from tests.patience import PATIENCE_S

DEFINITION = yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text())
ISLANDS = [[0, 0, 4, 0], [0, 0, 0, 4], [4, 0, 0, 0], [0, 4, 0, 0]]
Document = dict[str, Any]


@asynccontextmanager
async def scheduled(*definitions: Document) -> AsyncIterator[Client]:
    playground = Playground(stop_delay_s=0.0)
    config = ClusterConfig(await playground.start())
    async with Client(config) as client:
        for definition in definitions:
            playground.put(definition)
        scheduler = asyncio.create_task(run(config, SchedulerOptions(leader_elect=False, listen="")))
        try:
            yield client
        finally:
            scheduler.cancel()
            await asyncio.gather(scheduler, return_exceptions=True)
            await playground.stop()


async def node(client: Client, gpus: int = 4) -> None:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    status = {"capacity": amounts, "allocatable": amounts}
    kind = {"apiVersion": "v1", "kind": "Node"}
    await client.request("POST", NODES.path(), kind | {"metadata": {"name": "n1"}, "status": status})


async def pod(client: Client, name: str, gpus: int, **annotations: str) -> None:
    keys = {f"dovetail.dev/{key}": value for key, value in annotations.items()}
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": keys},
        "spec": {"schedulerName": "dovetail", "containers": [container]},
    }
    await client.request("POST", PODS.path("default"), document)


async def seen(client: Client, path: str, wanted: Callable[[Document], bool]) -> Document:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await client.request("GET", path, decode=Document)
            if found is not None and wanted(found):
                return found
            await asyncio.sleep(0.02)


async def written(client: Client, name: str) -> str | None:
    """The GPUs that are written on a pod once it is bound."""
    bound = await seen(client, PODS.path("default", name), lambda pod: "nodeName" in pod["spec"])
    devices: str | None = bound["metadata"]["annotations"].get("dovetail.dev/devices")
    return devices


async def gpu_node(client: Client, nvlinks: list[list[int]]) -> None:
    kind = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode"}
    await client.request("POST", GPU_NODES.path(), kind | {"metadata": {"name": "n1"}})
    gpus = [{"index": i, "uuid": f"GPU-{i}"} for i in range(len(nvlinks))]
    status = {"observedTime": "2026-01-31T12:00:00Z", "gpus": gpus, "nvlinks": nvlinks}
    await client.request(
        "PATCH", GPU_NODES.path(name="n1", subresource="status"), {"status": status}, content_type=MERGE_PATCH
    )


async def test_pods_get_the_gpus_that_nvlinks_join_and_others_wait() -> None:
    async with scheduled(DEFINITION) as client:
        await gpu_node(client, ISLANDS)
        await node(client)
        await pod(client, "first", 1)
        assert await written(client, "first") == "0"
        await pod(client, "second", 2, nvlink="required")
        assert await written(client, "second") == "1,3"
        await pod(client, "third", 3, nvlink="required")
        events = await seen(
            client, EVENTS.path("default"), lambda found: any("NVLinks" in event["note"] for event in found["items"])
        )
        notes = [event["note"] for event in events["items"] if event["regarding"]["name"] == "third"]
        assert "0/1 nodes are available: 1 node(s) had no free GPUs that NVLinks connect (3 GPUs)." in notes[0]


async def test_without_the_definition_gpus_are_counted() -> None:
    async with scheduled() as client:
        await node(client)
        await pod(client, "p", 2)
        assert await written(client, "p") is None


async def test_slices_of_the_driver_are_followed_and_those_of_others_are_not() -> None:
    def device(number: int, numa: int) -> Document:
        attributes = {
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{number}"},
            "resource.kubernetes.io/numaNode": {"int": numa},
        }
        return {"name": f"gpu-{number}", "attributes": attributes}

    async with scheduled() as client:
        for driver, numa in (("gpu.nvidia.com", [0, 1, 0, 1]), ("gpu.example.com", [0, 0, 1, 1])):
            devices = [device(number, node) for number, node in enumerate(numa)]
            pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": driver, "nodeName": "n1", "pool": pool, "devices": devices}
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
            await client.request("POST", RESOURCE_SLICES.path(), kind | {"metadata": {"name": driver}, "spec": spec})
        await node(client)
        await pod(client, "p", 2)
        assert await written(client, "p") == "0,2"


async def test_wiring_that_is_not_used_is_logged_once_and_the_node_is_used(caplog: pytest.LogCaptureFixture) -> None:
    async with scheduled(DEFINITION) as client:
        await gpu_node(client, [[0, 1], [2, 0]])
        await node(client, gpus=2)
        await pod(client, "p", 2)
        assert await written(client, "p") is None
        await client.request(
            "PATCH", NODES.path(name="n1"), {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE_PATCH
        )
        await pod(client, "q", 0)
        await written(client, "q")
    stated = [record.getMessage() for record in caplog.records if "GPUNode" in record.getMessage()]
    assert stated == ["Node n1: GPUNode n1: status.nvlinks[0][1]: is 1 one way and 2 the other"]
