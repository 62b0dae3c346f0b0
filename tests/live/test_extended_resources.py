# SPDX-License-Identifier: Apache-2.0
"""Pods that ask for GPUs in their containers, on nodes that have them by DRA alone: on the playground, and on the real
API server, there also beside the stock kube-scheduler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.playground.faults import Fault
from tests.live.conftest import Cluster, eventually
from tests.live.test_claims import DRA, Devices

Document = dict[str, Any]


class Extended(Devices):
    """A class whose devices replace a resource of the test's own."""

    @property
    def resource(self) -> str:
        return f"{self.driver}/gpu"

    def containers(self, *amounts: int, init: tuple[int, ...] = ()) -> Document:
        def made(kind: str, wanted: tuple[int, ...]) -> list[Document]:
            return [
                {
                    "name": f"{kind}{i}",
                    "image": "busybox",
                    "resources": {"limits": {"cpu": "1"} | ({self.resource: str(amount)} if amount else {})},
                }
                for i, amount in enumerate(wanted)
            ]

        return {"containers": made("main", amounts), "initContainers": made("init", init)}

    async def extended_pod(self, name: str, *amounts: int, init: tuple[int, ...] = (), **spec: Any) -> Document:
        return await self.cluster.pod(name, **self.containers(*amounts, init=init), **spec)

    async def counting(self, name: str, count: int) -> str:
        """A node with a device plugin that offers the resource."""
        full = await self.cluster.node(name, gpus=0)
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", self.resource: str(count)}
        await self.cluster.patch(f"/api/v1/nodes/{full}/status", {"status": {"allocatable": amounts}})
        return full

    async def reported(self, pod: str) -> Document:
        status = (await self.cluster.get(self.cluster.pods_path(pod)))["status"]
        return dict(status.get("extendedResourceClaimStatus") or {})


@pytest.fixture
async def devices(cluster: Cluster) -> AsyncIterator[Extended]:
    devices = Extended(cluster)
    selectors = [{"cel": {"expression": f"device.driver == '{devices.driver}'"}}]
    spec = {"selectors": selectors, "extendedResourceName": devices.resource}
    await devices.create("deviceclasses", "DeviceClass", devices.driver, spec)
    yield devices
    for path in devices.made:
        await cluster.delete(path)


async def test_devices_by_claim_replace_a_resource_that_the_node_does_not_offer(
    cluster: Cluster, devices: Extended
) -> None:
    claimed, counted = await devices.node("claimed", 4), await devices.counting("counted", 4)
    async with cluster.scheduler():
        for number in range(5):
            await devices.extended_pod(f"p{number}", 2)
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 4)
        (waiting,) = {f"p{number}" for number in range(5)} - bound.keys()
        await cluster.reported(waiting, "NoNodeFits")
        assert sorted(bound.values()) == [claimed, claimed, counted, counted]
        allocated = await devices.allocated()
        assert sorted(device for _, device, _ in allocated) == [f"gpu-{i}" for i in range(4)]
        for name, node in bound.items():
            reported, own = (
                await devices.reported(name),
                [claim for *_, users in allocated for claim in users if claim == name],
            )
            assert (bool(reported), len(own)) == (node == claimed, 2 * (node == claimed))
        freed = next(name for name, node in bound.items() if node == claimed)
        await cluster.delete(cluster.pods_path(freed))
        bound = await eventually(cluster.bound, lambda bound: waiting in bound)
        assert bound[waiting] == claimed
        names = {(await devices.reported(name))["resourceClaimName"] for name in bound if bound[name] == claimed}
        kept = await eventually(devices.claims, lambda claims: len(claims) == 2)
        assert {claim["metadata"]["name"] for claim in kept} == names


@pytest.mark.slow
async def test_restarts_at_any_moment_leave_one_claim_for_each_pod(cluster: Cluster, devices: Extended) -> None:
    for name in "abcd":
        await devices.node(name, 4)
    for number in range(16):
        await devices.extended_pod(f"p{number}", 1)
    for pause_s in (0.1, 0.15, 0.2):
        async with cluster.scheduler():
            await asyncio.sleep(pause_s)
    async with cluster.scheduler():
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 16)
    allocated = await devices.allocated()
    assert len({(pool, device) for pool, device, _ in allocated}) == len(await devices.claims()) == 16
    assert {user: pool for pool, _, (user,) in allocated} == bound


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["playground"], indirect=True)
@pytest.mark.parametrize(
    ("effect", "verb", "resource"),
    [
        ("answer", "POST", "resourceclaims"), ("answer", "PATCH", "resourceclaims/status"),
        ("answer", "PATCH", "pods/status"), ("answer", "POST", "pods/binding"),
        ("drop-after", "POST", "resourceclaims"), ("drop-after", "PATCH", "resourceclaims/status"),
        ("drop-after", "PATCH", "pods/status"), ("drop-after", "POST", "pods/binding"),
    ],
)  # fmt: skip
async def test_whatever_fails_the_pod_is_bound_with_one_claim(
    cluster: Cluster, devices: Extended, effect: Any, verb: str, resource: str
) -> None:
    assert cluster.playground is not None
    node = await devices.node("a", 1)
    cluster.playground.faults.add(Fault(effect, verb, resource, status=409))
    async with cluster.scheduler():
        await devices.extended_pod("p", 1)
        await eventually(cluster.bound, lambda bound: bound == {"p": node})
    (claim,) = await devices.claims()
    assert await devices.allocated() == [(node, "gpu-0", ["p"])]
    assert (await devices.reported("p"))["resourceClaimName"] == claim["metadata"]["name"]


@pytest.mark.parametrize("cluster", ["playground"], indirect=True)
async def test_a_bind_that_cannot_be_leaves_no_claim(cluster: Cluster, devices: Extended) -> None:
    assert cluster.playground is not None
    await devices.node("a", 1)
    cluster.playground.faults.add(Fault("answer", "POST", "pods/binding", status=403))
    async with cluster.scheduler():
        await devices.extended_pod("p", 1)
        await eventually(lambda: cluster.events("FailedScheduling"), bool)
        assert await devices.claims() == []


@pytest.mark.parametrize("cluster", ["playground"], indirect=True)
async def test_a_kubelet_starts_the_pod_once_its_claim_is_there(cluster: Cluster, devices: Extended) -> None:
    await devices.node("a", 1)

    async def phase() -> str:
        return str((await cluster.get(cluster.pods_path("p")))["status"].get("phase"))

    async with cluster.scheduler():
        await devices.extended_pod("p", 1)
        await eventually(phase, lambda phase: phase == "Running")


@pytest.mark.parametrize("cluster", [pytest.param("plane", marks=pytest.mark.plane)], indirect=True)
async def test_what_is_written_is_what_the_stock_scheduler_writes(
    cluster: Cluster, devices: Extended, deployed_plane: Any, tmp_path: Path
) -> None:
    await devices.node("a", 16)
    pods = {"plain": ((2,), ()), "several": ((1, 0, 3), ()), "starting": ((2, 1), (1, 4, 5))}
    async with cluster.scheduler():
        for name, (amounts, init) in pods.items():
            await devices.extended_pod(name, *amounts, init=init)
        await eventually(cluster.bound, lambda bound: bound.keys() == pods.keys())
    ours = {name: await _written(cluster, devices, name) for name in pods}
    for name in pods:
        await cluster.delete(cluster.pods_path(name))
    await eventually(devices.claims, lambda claims: not claims)
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(deployed_plane.kubeconfig)},
        "leaderElection": {"leaderElect": False},
    }
    file = tmp_path / "stock.json"
    file.write_text(json.dumps(configuration))
    stock = await asyncio.create_subprocess_exec(
        str(deployed_plane.bin_dir / "kube-scheduler"), f"--config={file}", "--secure-port=0",
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for name, (amounts, init) in pods.items():
            await devices.extended_pod(name, *amounts, init=init, schedulerName="default-scheduler")
        await eventually(cluster.bound, lambda bound: bound.keys() == pods.keys())
    finally:
        stock.terminate()
        await stock.wait()
    assert ours == {name: await _written(cluster, devices, name) for name in pods}


async def _written(cluster: Cluster, devices: Extended, pod: str) -> Document:
    """The claim and the status, without what is the server's, of the moment, or a free choice."""
    status = await devices.reported(pod)
    claim = await cluster.get(f"{DRA}/namespaces/{cluster.namespace}/resourceclaims/{status.pop('resourceClaimName')}")
    metadata = claim["metadata"]
    assert metadata["name"].startswith(metadata["generateName"])
    for owner in metadata["ownerReferences"]:
        assert owner.pop("uid") == (await cluster.get(cluster.pods_path(pod)))["metadata"]["uid"]
    kept = ("generateName", "annotations", "labels", "ownerReferences", "finalizers")
    allocation = claim["status"]["allocation"]
    assert allocation.pop("allocationTimestamp")
    requests = [result.pop("request") for result in allocation["devices"].pop("results")]
    reserved = [{key: user[key] for key in user if key != "uid"} for user in claim["status"]["reservedFor"]]
    return {
        "told": status, "metadata": {key: metadata[key] for key in kept if key in metadata}, "spec": claim["spec"],
        "allocation": allocation, "requests": sorted(requests), "reserved": reserved,
    }  # fmt: skip
