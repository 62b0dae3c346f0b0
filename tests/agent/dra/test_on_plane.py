# SPDX-License-Identifier: Apache-2.0
"""The driver on a real API server: what it publishes is taken as it is, and what our scheduler allocates of it is
prepared."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.agent.apis import dra_pb2 as dra
from dovetail.agent.apis.serving import call
from dovetail.agent.dra.driver import DraDriver, Folders
from dovetail.agent.dra.publishing import SlicePublisher
from dovetail.agent.health.health import Unhealthy
from dovetail.core.dra.types import DeviceClass
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.errors import AlreadyExists
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import NAMESPACES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dovetail.kube.objects.claims import ResourceSlice
from dovetail.kube.translate.pools import Pools
from tests.agent.dra.device_node import Node, gpu, host, register
from tests.core.dra.device_worlds import World, ask, claim
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane
DRIVER = "gpu.nvidia.com"
UNHEALTHY = Unhealthy("GPU-2", "xid-79", "fallen off the bus", 1_790_000_000_000)
DEVICE_CLASS = DeviceClass(DRIVER)
Json = dict[str, Any]


class Bench:
    def __init__(self, client: Client, name: str, folder: Path) -> None:
        self.client = client
        self.name = name
        self.folder = folder
        self.node = Node(folder, host(*(gpu(i, ()) for i in range(2)), *(gpu(i) for i in range(2, 4))))
        self.folders = Folders(folder / "registry", folder / "plugin", folder / "cdi")
        self.driver = self.made()

    def made(self) -> DraDriver:
        async def held() -> tuple[()]:
            return ()

        node = self.node
        return DraDriver(
            self.client, self.name, node.files, node.silicon, held, folders=self.folders, partitionable=True
        )

    async def update(self, *unhealthy: Unhealthy) -> None:
        await self.driver.update(self.node.silicon.seen(self.node.found), unhealthy)
        await register(self.folders.registry)
        await self.driver.settled.wait()

    async def slices(self) -> list[ResourceSlice]:
        params = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={self.name}"}
        listing = await list_all(self.client, RESOURCE_SLICES, ResourceSlice, params=params)
        return list(listing.objects.values())

    async def world(self) -> World:
        """The scheduler's books of what the server has."""
        problems: list[object] = []
        pools, made = Pools(lambda _, findings: problems.extend(findings)), World()
        made.node(self.name)
        made.claims.put_class(DEVICE_CLASS)
        for obj in await self.slices():
            for event in pools.put_slice(obj, False):
                made.claims.put_slice(event.slice)
        assert problems == []
        return made


@pytest.fixture
async def bench(plane: Plane) -> AsyncIterator[Bench]:
    name = f"gpus-{uuid.uuid4().hex[:10]}"
    # Not in pytest's folder, whose name is too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="dra"))
    async with Client(load_kubeconfig([plane.kubeconfig])) as client:
        await client.request("POST", NODES.path(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        made = Bench(client, name, folder)
        yield made
        await made.driver.close()
        await SlicePublisher(client, DRIVER, name).withdraw()
        await client.request("DELETE", NODES.path(name=name))
    shutil.rmtree(folder)


async def test_slices_are_kept_as_they_were_written(bench: Bench) -> None:
    await bench.update(UNHEALTHY)
    found = await bench.slices()
    assert [len(each.spec.devices) for each in found] == [0, 52]
    assert [len(each.spec.shared_counters) for each in found] == [2, 0]
    assert sum(bool(device.consumes_counters) for device in found[1].spec.devices) == 50
    assert [device.name for device in found[1].spec.devices if device.taints] == ["gpu-2"]
    await bench.update(UNHEALTHY)
    # The same is not written again, by this process or the next.
    await bench.driver.close()
    bench.driver = bench.made()
    await bench.update(UNHEALTHY)
    again = await bench.slices()
    assert [each.metadata.resource_version for each in again] == [each.metadata.resource_version for each in found]
    await bench.update()
    healed = await bench.slices()
    assert not any(device.taints for device in healed[1].spec.devices)
    assert {each.spec.pool.generation for each in healed} == {1}


async def test_slices_that_were_deleted_are_put_back(bench: Bench) -> None:
    await bench.update()
    before = [each.spec.devices for each in await bench.slices()]
    bench.driver.settled.clear()
    await bench.client.request("DELETE", RESOURCE_SLICES.path(name=(await bench.slices())[0].metadata.name))
    await bench.driver.settled.wait()
    assert [each.spec.devices for each in await bench.slices()] == before


async def test_what_our_scheduler_allocates_is_prepared(bench: Bench) -> None:
    await bench.update(UNHEALTHY)
    made = await bench.world()
    spec = claim(
        ask(2, f"{DRIVER}/profile~3g.20gb", name="parts", device_class=DEVICE_CLASS.name),
        ask(1, f"{DRIVER}/type=gpu", name="whole", device_class=DEVICE_CLASS.name),
    )
    grants = made.hold(bench.name, made.pod(spec))
    assert grants is not None
    results = [
        {"request": one.request, "driver": one.driver, "pool": one.pool, "device": one.device}
        for one in grants[0].allocation.grants
    ]
    assert results[-1]["device"] == "gpu-3", "the other whole GPU is unhealthy"
    asked = await allocated(bench, results)
    reply = await call(
        bench.folders.plugin / f"{DRIVER}.sock",
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        dra.NodePrepareResourcesRequest(claims=[asked]),
        dra.NodePrepareResourcesResponse,
    )
    answer = reply.claims[asked.uid]
    assert answer.error == ""
    assert [device.device_name for device in answer.devices] == [each["device"] for each in results]
    assert [profile for _, profile, _ in bench.node.silicon.live().values()] == ["3g.20gb"] * 2
    bench.node.prepared = bench.driver._prepared
    assert bench.node.troubles() == []


async def allocated(bench: Bench, results: list[Json]) -> dra.Claim:
    """A claim on the server that has these devices."""
    with contextlib.suppress(AlreadyExists):
        named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": bench.name}}
        await bench.client.request("POST", NAMESPACES.path(), named)
    requests = [
        {
            "name": name,
            "exactly": {"deviceClassName": DRIVER, "count": sum(each["request"] == name for each in results)},
        }
        for name in dict.fromkeys(each["request"] for each in results)
    ]
    body: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": requests}},
    }
    path = RESOURCE_CLAIMS.path(bench.name)
    stored = await bench.client.request("POST", path, body, decode=Json)
    status = {"allocation": {"devices": {"results": results}}}
    await bench.client.request("PUT", f"{path}/c/status", {**stored, "status": status})
    return dra.Claim(namespace=bench.name, name="c", uid=stored["metadata"]["uid"])
