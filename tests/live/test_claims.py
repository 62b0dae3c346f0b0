# SPDX-License-Identifier: Apache-2.0
"""Pods with claims of devices: allocated, reserved and bound; shared, restarted, freed. On the plane under the role
that deploy/ gives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.playground.faults import Fault
from tests.live.conftest import Cluster, eventually

DRA = "/apis/resource.k8s.io/v1"
Document = dict[str, Any]


class Devices:
    """Devices, a class and a template of a cluster; what is cluster-wide is named after it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.driver = f"{cluster.name}.example.com"
        self.made: list[str] = []

    async def create(self, plural: str, kind: str, name: str, spec: Document, *, namespaced: bool = False) -> None:
        path = f"{DRA}/namespaces/{self.cluster.namespace}/{plural}" if namespaced else f"{DRA}/{plural}"
        metadata = {"name": name} | ({"namespace": self.cluster.namespace} if namespaced else {})
        document = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
        await self.cluster.create(path, document)
        if not namespaced:
            self.made.append(f"{path}/{name}")

    async def node(self, name: str, count: int) -> str:
        full = await self.cluster.node(name, gpus=0)
        pool = {"name": full, "generation": 1, "resourceSliceCount": 1}
        devices = [
            {"name": f"gpu-{i}", "attributes": {"memory": {"int": 80 if i else 40}}, "capacity": {"m": {"value": "1"}}}
            for i in range(count)
        ]
        spec = {"driver": self.driver, "nodeName": full, "pool": pool, "devices": devices}
        await self.create("resourceslices", "ResourceSlice", full, spec)
        return full

    def request(self, **exactly: Any) -> Document:
        """The request of a claim or template."""
        return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": self.driver} | exactly}]}}

    async def claim(self, name: str, **exactly: Any) -> None:
        await self.create("resourceclaims", "ResourceClaim", name, self.request(**exactly), namespaced=True)

    async def pod(self, name: str, **claim: str) -> Document:
        return await self.cluster.pod(name, 0, resourceClaims=[{"name": "gpu"} | claim])

    async def claims(self) -> list[Document]:
        path = f"{DRA}/namespaces/{self.cluster.namespace}/resourceclaims"
        return list((await self.cluster.get(path))["items"])

    async def allocated(self) -> list[tuple[str, str, list[str]]]:
        """(pool, device, names of the consumers) of all claims that have a device."""
        return [
            (result["pool"], result["device"], [user["name"] for user in claim["status"].get("reservedFor", [])])
            for claim in await self.claims()
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        ]


@pytest.fixture
async def devices(cluster: Cluster) -> AsyncIterator[Devices]:
    devices = Devices(cluster)
    expression = f"device.driver == '{devices.driver}'"
    await devices.create(
        "deviceclasses", "DeviceClass", devices.driver, {"selectors": [{"cel": {"expression": expression}}]}
    )
    await devices.create(
        "resourceclaimtemplates", "ResourceClaimTemplate", "one", {"spec": devices.request()}, namespaced=True
    )
    yield devices
    for path in devices.made:
        await cluster.delete(path)


async def test_each_pod_gets_the_devices_of_its_own_claim(cluster: Cluster, devices: Devices) -> None:
    nodes = [await devices.node(name, 4) for name in "ab"]
    async with cluster.scheduler():
        for number in range(9):
            await devices.pod(f"p{number}", resourceClaimTemplateName="one")
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 8)
        (waiting,) = {f"p{number}" for number in range(9)} - bound.keys()
        await cluster.reported(waiting, "NoNodeFits")
        allocated = await devices.allocated()
        assert Counter(pool for pool, _, _ in allocated) == dict.fromkeys(nodes, 4)
        assert len({(pool, device) for pool, device, _ in allocated}) == 8
        assert {user: pool for pool, _, (user,) in allocated} == bound
        freed = next(name for name, node in bound.items() if node == nodes[0])
        await cluster.delete(cluster.pods_path(freed))
        bound = await eventually(cluster.bound, lambda bound: waiting in bound)
        assert bound[waiting] == nodes[0]


async def test_a_selector_leaves_only_what_it_means(cluster: Cluster, devices: Devices) -> None:
    node = await devices.node("a", 2)
    selector = f"device.attributes['{devices.driver}'].memory >= 80"
    await devices.claim("big", selectors=[{"cel": {"expression": selector}}])
    async with cluster.scheduler():
        await devices.pod("p", resourceClaimName="big")
        await eventually(cluster.bound, lambda bound: bound == {"p": node})
        assert await devices.allocated() == [(node, "gpu-1", ["p"])]


async def test_pods_that_share_a_claim_are_where_its_device_is(cluster: Cluster, devices: Devices) -> None:
    for name in "ab":
        await devices.node(name, 1)
    await devices.claim("shared")
    async with cluster.scheduler():
        for number in range(4):
            await devices.pod(f"p{number}", resourceClaimName="shared")
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 4)
        ((pool, _, users),) = await devices.allocated()
        assert (set(bound.values()), sorted(users)) == ({pool}, ["p0", "p1", "p2", "p3"])


async def test_devices_that_failed_before_the_pod_came_are_replaced(cluster: Cluster, devices: Devices) -> None:
    node = await devices.node("a", 1)
    await devices.claim("c")
    path = f"{DRA}/namespaces/{cluster.namespace}/resourceclaims/c/status"
    device = {"driver": devices.driver, "pool": node, "device": "gpu-0"}
    own = {"request": "gpu", "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}
    broken = {
        "type": "Broken", "status": "True", "reason": "Cable", "message": "no cable",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    allocation = {
        "devices": {"results": [device | own]}, "nodeSelector": {"nodeSelectorTerms": terms},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    await cluster.patch(path, {"status": {"allocation": allocation, "devices": [device | {"conditions": [broken]}]}})
    async with cluster.scheduler():
        await devices.pod("p", resourceClaimName="c")
        await eventually(cluster.bound, lambda bound: bound == {"p": node})
        assert await devices.allocated() == [(node, "gpu-0", ["p"])]
        (claim,) = await devices.claims()
        assert "bindingConditions" not in claim["status"]["allocation"]["devices"]["results"][0]


async def test_what_was_reserved_before_a_crash_is_used_after_it(cluster: Cluster, devices: Devices) -> None:
    await devices.node("a", 1)
    node = await devices.node("b", 4)
    await devices.claim("c")
    pod = await devices.pod("p", resourceClaimName="c")
    path = f"{DRA}/namespaces/{cluster.namespace}/resourceclaims/c"
    await cluster.patch(path, {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": "gpu", "driver": devices.driver, "pool": node, "device": "gpu-2"}
    status = {
        "allocation": {
            "devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]}
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}],
    }  # fmt: skip
    await cluster.patch(f"{path}/status", {"status": status})
    async with cluster.scheduler():
        await eventually(cluster.bound, lambda bound: bound == {"p": node})
    assert await devices.allocated() == [(node, "gpu-2", ["p"])]


@pytest.mark.slow
async def test_restarts_at_any_moment_give_no_device_twice(cluster: Cluster, devices: Devices) -> None:
    for name in "abcd":
        await devices.node(name, 4)
    for number in range(16):
        await devices.pod(f"p{number}", resourceClaimTemplateName="one")
    for pause_s in (0.1, 0.15, 0.2):
        async with cluster.scheduler():
            await asyncio.sleep(pause_s)
    async with cluster.scheduler():
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 16)
    allocated = await devices.allocated()
    assert len({(pool, device) for pool, device, _ in allocated}) == 16
    assert {user: pool for pool, _, (user,) in allocated} == bound


@pytest.mark.parametrize("cluster", ["playground"], indirect=True)
async def test_a_bind_that_fails_is_tried_again_with_its_devices(cluster: Cluster, devices: Devices) -> None:
    assert cluster.playground is not None
    node = await devices.node("a", 1)
    faults = cluster.playground.faults
    for effect, verb, resource in (
        ("answer", "POST", "pods/binding"), ("answer", "PATCH", "resourceclaims/status"),
        ("drop-after", "PATCH", "resourceclaims/status"), ("drop-after", "PATCH", "resourceclaims"),
    ):  # fmt: skip
        faults.add(Fault(effect, verb, resource, status=409))  # type: ignore[arg-type]
    async with cluster.scheduler():
        await devices.pod("p", resourceClaimTemplateName="one")
        await eventually(cluster.bound, lambda bound: bound == {"p": node})
    assert await devices.allocated() == [(node, "gpu-0", ["p"])]


async def test_a_taint_rule_keeps_devices_free(cluster: Cluster, devices: Devices) -> None:
    node = await devices.node("a", 2)
    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": devices.driver, "device": "gpu-0"}, "taint": taint}
    await devices.create("devicetaintrules", "DeviceTaintRule", f"{cluster.name}-rule", spec)
    async with cluster.scheduler():
        for name in ("p", "q"):
            await devices.pod(name, resourceClaimTemplateName="one")
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 1)
        assert [allocated[:2] for allocated in await devices.allocated()] == [(node, "gpu-1")]
        await cluster.delete(devices.made.pop())
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 2)
        assert set(bound.values()) == {node}
