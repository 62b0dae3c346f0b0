# SPDX-License-Identifier: Apache-2.0
"""The driver between a kubelet, which calls it on its sockets, and an API server."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dovetail.agent.apis import dra_pb2 as dra
from dovetail.agent.apis import drahealth_pb2 as health
from dovetail.agent.apis import registration_pb2 as registration
from dovetail.agent.apis.serving import call, serve
from dovetail.agent.config import Config
from dovetail.agent.dra.claim_networks import ClaimNetworks
from dovetail.agent.dra.driver import DraDriver, DriverError, Folders
from dovetail.agent.dra.prepared import PreparedRecord
from dovetail.agent.dra.publishing import SlicePublisher
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.job_network import EXPLANATION, REASON, JobNetwork
from dovetail.agent.plugin.nccl_conf import NcclFiles
from dovetail.agent.publish.pod_events import PodEvent
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Playground
from dovetail.playground.faults import Fault
from tests.agent.dra.device_node import Node, gpu, host, register
from tests.agent.plugin.nics import FOUR, machine
from tests.patience import PATIENCE_S
from tests.scheduler.scripted import until

SLICES = "resourceslices.resource.k8s.io"
CLAIMS = "resourceclaims.resource.k8s.io"
DRIVER = "gpu.nvidia.com"
PLUGIN = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
SMALL = "gpu-0-mig-1g5gb-19-3"
SPEC = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
ON = Config(network_environment=True)
Json = dict[str, Any]


class Bench:
    """A node, an API server, and the driver between them. `changes` counts how often instances came or went."""

    def __init__(self, folder: Path, playground: Playground, client: Client) -> None:
        self.playground = playground
        self.client = client
        self.node = Node(folder, host(gpu(0, ()), gpu(1, ()), gpu(2), gpu(3)))
        self.folders = Folders(folder / "registry", folder / "plugin", folder / "cdi")
        self.held: set[tuple[str, str]] = set()
        self.changes = 0
        self.driver = self.made()
        playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})

    def made(self) -> DraDriver:
        async def held() -> set[tuple[str, str]]:
            return self.held

        def changed() -> None:
            self.changes += 1

        return DraDriver(
            self.client, "n1", self.node.files, self.node.silicon, held,
            folders=self.folders, partitionable=True, changed=changed,
        )  # fmt: skip

    async def update(self, *unhealthy: Unhealthy) -> None:
        await self.driver.update(self.node.silicon.seen(self.node.found), unhealthy)
        await register(self.folders.registry)
        await self.settled()

    async def settled(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.driver.settled.wait()

    async def restart(self) -> None:
        await self.driver.close()
        self.driver = self.made()
        await self.update()

    def slices(self) -> list[Json]:
        return sorted(self.playground.store.list(SLICES), key=lambda each: each["metadata"]["name"])

    def claim(self, name: str, *devices: str, pool: str = "n1", config: Sequence[Json] = ()) -> dra.Claim:
        results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": device} for device in devices]
        status = {"allocation": {"devices": {"results": results, "config": config}}} if devices else {}
        made = self.playground.put(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
             "metadata": {"name": name, "namespace": "default"}, "spec": SPEC, "status": status}
        )  # fmt: skip
        return dra.Claim(namespace="default", name=name, uid=made["metadata"]["uid"])

    @property
    def endpoint(self) -> Path:
        return self.folders.plugin / f"{DRIVER}.sock"

    async def prepare(self, *claims: dra.Claim) -> list[dra.NodePrepareResourceResponse]:
        request, method = dra.NodePrepareResourcesRequest(claims=claims), f"{PLUGIN}/NodePrepareResources"
        reply = await call(self.endpoint, method, request, dra.NodePrepareResourcesResponse)
        return [reply.claims[claim.uid] for claim in claims]

    async def unprepare(self, *claims: dra.Claim) -> list[str]:
        request, method = dra.NodeUnprepareResourcesRequest(claims=claims), f"{PLUGIN}/NodeUnprepareResources"
        reply = await call(self.endpoint, method, request, dra.NodeUnprepareResourcesResponse)
        return [reply.claims[claim.uid].error for claim in claims]

    def records(self) -> set[str]:
        return {record.name for record in self.driver._prepared.records.values()}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    # Not in pytest's folder, whose name is too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="dra"))
    playground = Playground(start_delay_s=3600)
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        await playground.start()
        stack.push_async_callback(playground.stop)
        client = await stack.enter_async_context(Client(ClusterConfig(playground.url), jitter=lambda: 0.0))
        made = Bench(folder, playground, client)
        yield made
        await made.driver.close()


async def test_claims_of_one_call_are_known_to_what_their_containers_get_for_their_network(bench: Bench) -> None:
    pods = Allocations(bench.client, "n1")
    events: list[PodEvent] = []
    config = ON

    def network() -> JobNetwork:
        return JobNetwork(NcclFiles(bench.folders.plugin), lambda: machine(*FOUR), lambda: config, events.append)

    bench.driver.join(ClaimNetworks(network(), pods))
    await bench.update()
    calls = [bench.claim(name, device) for name, device in (("left", "gpu-2"), ("right", "gpu-3"))]
    names = [{"name": name, "resourceClaimName": name} for name in ("left", "right")]
    container = {"name": "c", "resources": {"claims": [{"name": "left"}, {"name": "right"}]}}
    spec = {"nodeName": "n1", "containers": [container], "resourceClaims": names}
    meta = {"namespace": "default", "name": "p", "uid": "uid-p"}
    bench.playground.store.put_raw("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    for one in bench.playground.store.list(CLAIMS):
        consumers = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
        owned = one | {"metadata": one["metadata"] | {"ownerReferences": [owner]}}
        bench.playground.store.put_raw(CLAIMS, owned | {"status": one["status"] | {"reservedFor": consumers}})
    assert [one.error for one in await bench.prepare(*calls)] == ["", ""]
    for record in bench.driver._prepared.records.values():
        (device,) = record.devices
        explained = dict(device.network.env)[EXPLANATION]
        assert "NCCL_SOCKET_IFNAME==eth0" in explained
    assert {one.reason for one in events} == {REASON}
    # Prepared without, and again by a kubelet that has restarted: containers get nothing, and no Event reports it.
    assert await bench.unprepare(*calls) == ["", ""]
    events.clear()
    config = Config()
    assert [one.error for one in await bench.prepare(*calls)] == ["", ""]
    config, before = ON, bench.driver._prepared.records
    await bench.restart()
    bench.driver.join(ClaimNetworks(network(), pods))
    assert [one.error for one in await bench.prepare(*calls)] == ["", ""]
    assert (events, bench.driver._prepared.records) == ([], before)


async def test_the_kubelet_finds_the_driver_and_what_it_serves(bench: Bench) -> None:
    await bench.update()
    (socket,) = bench.folders.registry.iterdir()
    request = registration.InfoRequest()
    info = await call(socket, "/pluginregistration.Registration/GetInfo", request, registration.PluginInfo)
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(bench.endpoint))
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1.DRAResourceHealth"]


async def test_devices_are_published_once_the_kubelet_has_registered_the_driver(bench: Bench) -> None:
    await bench.driver.update(bench.node.silicon.seen(bench.node.found))
    await asyncio.sleep(0.2)
    assert bench.slices() == []
    await register(bench.folders.registry, error="version not supported")
    await asyncio.sleep(0.2)
    assert bench.slices() == []
    await register(bench.folders.registry)
    await bench.settled()
    assert bench.slices() != []


async def test_what_was_published_stays_until_it_is_known_what_there_is(bench: Bench) -> None:
    await bench.update()
    before, claim = bench.slices(), bench.claim("ended", "gpu-3")
    assert [one.error for one in await bench.prepare(claim)] == [""]
    await bench.driver.close()
    bench.driver = bench.made()
    await bench.driver.update(Host(sight="none"))
    await register(bench.folders.registry)
    assert await bench.unprepare(claim) == [""], "its pod can end"
    await asyncio.sleep(0.2)
    assert bench.slices() == before
    await bench.update()
    assert bench.slices() == before
    await bench.driver.update(Host())
    await bench.settled()
    assert bench.slices() == []


async def test_another_driver_of_the_same_name_is_refused(bench: Bench) -> None:
    other = await serve(bench.folders.registry / f"{DRIVER}-reg.sock")
    with pytest.raises(DriverError, match=r"another driver serves gpu\.nvidia\.com .*-reg\.sock"):
        await bench.update()
    await other.stop(None)
    # What it left behind is no driver.
    (bench.folders.registry / f"{DRIVER}-reg.sock").touch()
    await bench.update()


async def test_slices_belong_to_the_node_and_are_one_pool(bench: Bench) -> None:
    await bench.update()
    found = bench.slices()
    node = bench.playground.store.get("nodes", "", "n1")
    assert [each["metadata"]["name"] for each in found] == [f"0000{i}-{DRIVER}-n1" for i in range(2)]
    for each in found:
        assert each["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 2}
        assert each["spec"]["nodeName"] == "n1"
        assert each["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


async def test_what_did_not_change_is_not_written(bench: Bench) -> None:
    await bench.update()
    before = bench.slices()
    await bench.update()
    await bench.restart()
    assert bench.slices() == before


async def test_a_change_of_one_slice_is_one_write(bench: Bench) -> None:
    await bench.update()
    before = bench.slices()
    await bench.update(Unhealthy("GPU-2", "xid-48", "double-bit ECC error", 1_790_000_000_000))
    after = bench.slices()
    assert after[0] == before[0]
    assert after[1]["spec"]["pool"] == before[1]["spec"]["pool"]
    taints = {device["name"]: device.get("taints") for device in after[1]["spec"]["devices"]}
    assert [name for name, found in taints.items() if found] == ["gpu-2"]
    await bench.update()
    assert [each["spec"] for each in bench.slices()] == [each["spec"] for each in before]


async def test_another_number_of_slices_is_a_new_generation(bench: Bench) -> None:
    await bench.update()
    bench.node.found = host(gpu(2), gpu(3))
    await bench.update()
    (only,) = bench.slices()
    assert only["spec"]["pool"] == {"name": "n1", "generation": 2, "resourceSliceCount": 1}
    bench.node.found = host(gpu(0, ()), gpu(2))
    await bench.update()
    assert {each["spec"]["pool"]["generation"] for each in bench.slices()} == {3}


async def test_deleted_or_changed_slices_are_restored(bench: Bench) -> None:
    await bench.update()
    before = [each["spec"]["devices" if i else "sharedCounters"] for i, each in enumerate(bench.slices())]
    name = bench.slices()[1]["metadata"]["name"]
    await bench.client.request("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{name}")
    await until(lambda: len(bench.slices()) == 2)
    await bench.settled()
    kept = bench.slices()[1]
    meant = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    changed = {**meant, **kept, "spec": {**kept["spec"], "devices": []}}
    await bench.client.request("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{name}", changed)
    await until(lambda: bench.slices()[1]["spec"].get("devices"))
    await bench.settled()
    assert [each["spec"]["devices" if i else "sharedCounters"] for i, each in enumerate(bench.slices())] == before
    assert len({each["spec"]["pool"]["generation"] for each in bench.slices()}) == 1


async def test_slices_of_an_earlier_driver_are_taken_away_and_those_of_other_nodes_stay(bench: Bench) -> None:
    for name, node in (("00000-gpu.nvidia.com-n1-x7k2p", "n1"), ("00000-gpu.nvidia.com-n2-abcde", "n2")):
        pool = {"name": node, "generation": 7, "resourceSliceCount": 1}
        bench.playground.put(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
             "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": []}}
        )  # fmt: skip
    await bench.update()
    found = {each["metadata"]["name"]: each["spec"]["pool"]["generation"] for each in bench.slices()}
    assert found.pop("00000-gpu.nvidia.com-n2-abcde") == 7
    assert found == {f"0000{i}-{DRIVER}-n1": 8 for i in range(2)}


@pytest.mark.slow
async def test_an_api_server_that_fails_is_asked_again(bench: Bench) -> None:
    bench.playground.faults.add(Fault("answer", "POST", "resourceslices", times=2, status=500))
    bench.playground.faults.add(Fault("answer", "GET", "nodes", times=1, status=403))
    await bench.update()
    assert [each["spec"]["pool"]["resourceSliceCount"] for each in bench.slices()] == [2, 2]
    assert len({each["spec"]["pool"]["generation"] for each in bench.slices()}) == 1


async def test_withdrawn_is_what_was_published_here(bench: Bench) -> None:
    await bench.update()
    await bench.driver.close()
    assert len(bench.slices()) == 2
    await SlicePublisher(bench.client, DRIVER, "n1").withdraw()
    assert bench.slices() == []


async def test_what_the_server_cannot_keep_is_not_published(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Client.fetch

    async def drop(self: Client, method: str, path: str, body: Any = None, **options: Any) -> bytes:
        """A server whose feature gates for taints and partitions are off."""
        if method in ("POST", "PUT") and "resourceslices" in path:
            devices = [
                {name: part for name, part in device.items() if name not in ("taints", "consumesCounters")}
                for device in body["spec"].get("devices", ())
            ]
            spec = {name: part for name, part in body["spec"].items() if name != "sharedCounters"}
            body = {**body, "spec": {**spec, "devices": devices}}
        return await keep(self, method, path, body, **options)

    monkeypatch.setattr(Client, "fetch", drop)
    await bench.update(Unhealthy("GPU-2", "xid-48", "", 1_790_000_000_000))
    assert [device["name"] for each in bench.slices() for device in each["spec"]["devices"]] == ["gpu-3"]


async def test_a_claim_is_prepared_answered_and_unprepared(bench: Bench) -> None:
    await bench.update()
    claim = bench.claim("c", SMALL, "gpu-2")
    for _ in range(2):
        (answer,) = await bench.prepare(claim)
        assert answer.error == ""
        assert [(d.pool_name, d.device_name, list(d.request_names)) for d in answer.devices] == [
            ("n1", SMALL, ["r"]),
            ("n1", "gpu-2", ["r"]),
        ]
        assert list(answer.devices[0].cdi_device_ids) == [f"dovetail.dev/claim={claim.uid}-{SMALL}"]
    assert bench.changes == 1
    assert bench.driver.in_use == {"GPU-0", "MIG-1", "GPU-2"}
    assert await bench.unprepare(claim) == [""]
    assert await bench.unprepare(claim) == [""]
    assert bench.changes == 2
    assert bench.driver.in_use == frozenset()
    assert bench.node.silicon.live() == {}


async def test_the_slices_stay_as_they_are_while_instances_come_and_go(bench: Bench) -> None:
    await bench.update()
    before = bench.slices()
    claim = bench.claim("c", SMALL)
    await bench.prepare(claim)
    await bench.update()
    assert bench.slices() == before
    await bench.unprepare(claim)
    await bench.update()
    assert bench.slices() == before


async def test_failures_are_of_one_claim_alone(bench: Bench) -> None:
    await bench.update()
    good, gone, bare = (
        bench.claim("good", "gpu-2"),
        dra.Claim(namespace="default", name="gone", uid="u"),
        bench.claim("b"),
    )
    old = dra.Claim(namespace="default", name="good", uid="older")
    shared = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
    mps = bench.claim(
        "mps", "gpu-3", config=[{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": shared}}]
    )
    answers = await bench.prepare(
        good, gone, bare, old, mps, bench.claim("typo", "gpu-7"), bench.claim("far", "gpu-3", pool="n2")
    )
    messages = [
        "",
        "does not exist any more",
        "has no allocation",
        "was created again",
        "config[0].opaque.parameters.sharing: MPS is not supported",
        "results[0].device: 'gpu-7' is not offered by this node now; nearest device: gpu-",
        "results[0].pool: 'n2' is not the pool of this node, 'n1'",
    ]
    assert len(answers[0].devices) == 1
    for answer, expected in zip(answers, messages, strict=True):
        assert expected in answer.error and bool(expected) == bool(answer.error)
    assert bench.records() == {"good"}


async def test_a_device_is_not_prepared_for_a_second_claim(bench: Bench) -> None:
    await bench.update()
    first, second = bench.claim("first", "gpu-2"), bench.claim("second", "gpu-2")
    await bench.prepare(first)
    (answer,) = await bench.prepare(second)
    assert "still prepared for the claim default/first" in answer.error
    await bench.unprepare(first)
    (answer,) = await bench.prepare(second)
    assert answer.error == ""


async def test_a_claim_that_is_gone_makes_way_unless_a_pod_has_it(bench: Bench) -> None:
    await bench.update()
    first, second = bench.claim("first", SMALL), bench.claim("second", SMALL)
    await bench.prepare(first)
    await bench.client.request("DELETE", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/first")
    bench.held = {("default", "first")}
    (answer,) = await bench.prepare(second)
    assert "still prepared" in answer.error
    bench.held = set()
    (answer,) = await bench.prepare(second)
    assert answer.error == ""
    assert bench.records() == {"second"}


async def test_claims_that_ended_while_the_driver_was_down_are_unprepared_at_the_start(bench: Bench) -> None:
    await bench.update()
    claims = [bench.claim(name, device) for name, device in (("gone", SMALL), ("held", "gpu-2"), ("there", "gpu-3"))]
    await bench.prepare(*claims)
    await bench.driver.close()
    for name in ("gone", "held"):
        await bench.client.request("DELETE", f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}")
    bench.held = {("default", "held")}
    bench.driver = bench.made()
    await bench.update()
    await until(lambda: bench.records() == {"held", "there"})
    assert bench.node.silicon.live() == {}


@pytest.mark.slow
async def test_without_the_api_server_claims_wait_and_can_end(bench: Bench) -> None:
    await bench.update()
    claim, later = bench.claim("c", "gpu-2"), bench.claim("later", "gpu-3")
    await bench.prepare(claim)
    await bench.playground.stop()
    assert await bench.unprepare(claim) == [""]
    request = dra.NodePrepareResourcesRequest(claims=[later])
    reply = await call(
        bench.endpoint, f"{PLUGIN}/NodePrepareResources", request, dra.NodePrepareResourcesResponse, timeout_s=40
    )
    assert "NotConnected" in reply.claims[later.uid].error


async def test_the_kubelet_hears_of_health_at_once_and_at_every_change(bench: Bench) -> None:
    await bench.update()
    async with grpc.aio.insecure_channel(f"unix:{bench.endpoint}") as channel:
        ask = channel.unary_stream(
            "/v1.DRAResourceHealth/NodeWatchResources",
            request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health.NodeWatchResourcesResponse.FromString,
        )
        heard = ask(health.NodeWatchResourcesRequest())
        first = await heard.read()
        assert len(first.devices) == 52
        assert {each.health for each in first.devices} == {health.HEALTHY}
        assert first.devices[0].device.pool_name == "n1"
        assert first.devices[0].health_check_timeout_seconds > 60
        await bench.update(Unhealthy("GPU-3", "lost", "the GPU is gone", 1_790_000_000_000))
        second = await heard.read()
        unhealthy = [each for each in second.devices if each.health == health.UNHEALTHY]
        assert [(each.device.device_name, each.message) for each in unhealthy] == [("gpu-3", "the GPU is gone")]
        heard.cancel()


async def test_a_claim_is_prepared_after_the_work_of_an_update_that_was_cancelled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.update()
    prepared, begun, may_end = bench.driver._prepared, threading.Event(), threading.Event()
    prepare, order = prepared.prepare, list[str]()

    def finish() -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        order.append("finished")

    def noted(*arguments: Any) -> PreparedRecord:
        order.append("prepares")
        return prepare(*arguments)

    monkeypatch.setattr(prepared, "finish", finish)
    monkeypatch.setattr(prepared, "prepare", noted)
    updating = asyncio.create_task(bench.driver.update(bench.node.silicon.seen(bench.node.found)))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    updating.cancel()
    preparing = asyncio.create_task(bench.prepare(bench.claim("c", "gpu-2")))
    try:
        await asyncio.sleep(0.2)
        assert order == []
    finally:
        may_end.set()
    (answer,) = await preparing
    assert (answer.error, order) == ("", ["finished", "prepares"])
    with pytest.raises(asyncio.CancelledError):
        await updating
