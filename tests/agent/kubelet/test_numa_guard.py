# SPDX-License-Identifier: Apache-2.0
"""The NUMA guard: while a fence is up, the kubelet can align only the devices that were chosen."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from dovetail.agent.config import Config, Shared
from dovetail.agent.kubelet import numa_guard as module
from dovetail.agent.kubelet import settling
from dovetail.agent.kubelet.numa_guard import NumaGuard
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.kubelet.settling import Settling
from dovetail.agent.machine.host import Host
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.resources import PODS
from tests.agent.agents import GPU, NVIDIAS_BUT_CDI, Node, host, mig_uuid, running, until, uuid
from tests.agent.fake_kubelet import Pod, pod
from tests.paths import ROOT

DEFINITION = ROOT / "deploy/crds/gpunode.yaml"
SHARED = f"{GPU}.shared"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence is not removed by time."""
    monkeypatch.setattr(module, "_UP_FOR_S", 60.0)
    for name, seconds in (("_SETTLED_AFTER_S", 0.05), ("_UNSEEN_AFTER_S", 0.05), ("_LOOK_EVERY_S", 0.01)):
        monkeypatch.setattr(settling, name, seconds)


@pytest.fixture
def place() -> Iterator[Path]:
    """With a short name: the path of a socket is limited."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        yield Path(name)


class Fenced:
    """A node whose agent puts up fences, and the writes of the scheduler."""

    def __init__(self, node: Node, client: Client) -> None:
        self.node = node
        self._client = client
        self._last = 0
        self.fencing: NumaGuard
        self.settling: Settling
        node.api.put(yaml.safe_load(DEFINITION.read_text()))
        self.write()

    async def begin(self) -> list[asyncio.Task[None]]:
        """Start the NUMA guard, wait until the kubelet has settled, and return the tasks."""
        kubelet, chosen, plugins = PodResources(self.node.kubelet.pod_resources), self.node.chosen, self.node.plugins
        self.settling = Settling(chosen, kubelet, plugins)
        self.fencing = NumaGuard(self._client, "n1", chosen, kubelet, plugins, self.settling)
        tasks = [asyncio.create_task(one.run()) for one in (self.settling, self.fencing)]
        await self.node.kubelet.restart()
        await until(lambda: self.settling.settled and self.fencing.synced.is_set())
        return tasks

    def document(self) -> dict[str, object]:
        found = self.node.api.store.get("gpunodes.dovetail.dev", "", "n1")
        assert found is not None
        return dict(found)

    def write(self, **spec: object) -> None:
        meta = {"name": "n1"}
        old = self.node.api.store.get("gpunodes.dovetail.dev", "", "n1")
        status = (old or {}).get("status", {"observedTime": "2026-01-31T12:00:00Z"})
        self.node.api.put(
            {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": meta, "spec": spec, "status": status}
        )

    def request(self, uid: str, devices: str) -> str:
        """Request a fence as the scheduler does, and return its id."""
        self._last += 1
        self.write(fence={"id": f"f{self._last}", "pod": uid, "devices": devices})
        return f"f{self._last}"

    def create(self, document: Pod) -> str:
        """Create the pod unbound, and return its uid."""
        waiting = {**document, "spec": {key: value for key, value in document["spec"].items() if key != "nodeName"}}
        uid = document["metadata"]["uid"] = self.node.api.put(waiting)["metadata"]["uid"]
        return str(uid)

    async def bind(self, document: Pod) -> None:
        meta = {key: document["metadata"][key] for key in ("name", "namespace", "uid", "annotations")}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "n1"}}
        await self._client.request("POST", PODS.path(meta["namespace"], meta["name"], "binding"), body)

    async def run(self, document: Pod, mask: frozenset[int] | None = None) -> set[str]:
        """Bind the pod, have the kubelet admit it, and return the GPUs that it holds."""
        await self.bind(document)
        return (await self.node.run(document, mask))[GPU]

    def is_up(self, fence_id: str) -> bool:
        status = self.document().get("status")
        return isinstance(status, dict) and status.get("fence") == fence_id

    def numa(self, resource: str = GPU) -> dict[str, list[int]]:
        """The devices with NUMA nodes in the last list that the kubelet received."""
        document = self.node.kubelet.listed(resource).items()
        return {id: [node.ID for node in one.topology.nodes] for id, one in document if one.HasField("topology")}

    def lowest(self, size: int) -> frozenset[int]:
        """The mask of a kubelet with single-numa-node: the lowest NUMA node with `size` free devices."""
        taken = {id for ids in self.node.kubelet.held(GPU).values() for id in ids}
        counts: dict[int, int] = {}
        for id, nodes in self.numa().items():
            if id not in taken:
                counts[nodes[0]] = counts.get(nodes[0], 0) + 1
        return frozenset({min(numa for numa, count in counts.items() if count >= size)})


@contextlib.asynccontextmanager
async def fencing(place: Path, config: Config = NVIDIAS_BUT_CDI, of: Host | None = None) -> AsyncIterator[Fenced]:
    async with running(place, config, of) as node, Client(ClusterConfig(node.api.url)) as client:
        bench = Fenced(node, client)
        tasks = await bench.begin()
        yield bench
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_only_with_a_fence_the_kubelet_keeps_the_chosen_devices_when_a_pod_ends_in_between(place: Path) -> None:
    async with fencing(place) as bench:
        for i, with_fence in enumerate((False, True)):
            before, after = pod(f"before{i}", {GPU: 3}, devices="0,1,2"), pod(f"after{i}", {GPU: 2}, devices="4,5")
            await bench.node.run(before, bench.lowest(3))
            uid = bench.create(after)
            if with_fence:
                fence_id = bench.request(uid, "4,5")
                await until(lambda fence_id=fence_id: bench.is_up(fence_id))
            bench.node.end(before)
            allocated = await bench.run(after, bench.lowest(2))
            assert (allocated == {uuid(4), uuid(5)}) is with_fence
            await until(lambda: len(bench.numa()) == 8)
            bench.node.end(after)


async def test_a_fence_is_up_when_the_kubelet_shows_it_and_is_removed_when_the_pod_has_its_devices(place: Path) -> None:
    async with fencing(place) as bench:
        one = pod("a", {GPU: 2}, devices="1,6")
        fence_id = bench.request(bench.create(one), "1,6")
        await until(lambda: bench.is_up(fence_id))
        assert bench.numa() == {uuid(1): [0], uuid(6): [1]}
        assert bench.node.kubelet.capacity(GPU) == (8, 8)
        await bench.run(one)
        await until(lambda: len(bench.numa()) == 8)


async def test_a_fence_stays_until_all_containers_of_the_pod_are_served(place: Path) -> None:
    async with fencing(place) as bench:
        several = pod("a", {GPU: 2}, devices="4,5,7", containers=[{GPU: 1}])
        fence_id = bench.request(bench.create(several), "4,5,7")
        await until(lambda: bench.is_up(fence_id))
        assert await bench.run(several, frozenset({1})) == {uuid(4), uuid(5), uuid(7)}
        await until(lambda: len(bench.numa()) == 8)


@pytest.mark.parametrize("end", ["ended", "another", "time"])
@pytest.mark.slow
async def test_a_fence_is_removed_without_the_pod(place: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if end == "time":
        monkeypatch.setattr(module, "_UP_FOR_S", 0.2)
    async with fencing(place) as bench:
        one = pod("a", {GPU: 1}, devices="0")
        uid = bench.create(one)
        fence_id = bench.request(uid, "0")
        await until(lambda: bench.is_up(fence_id))
        if end == "another":
            fence_id = bench.request("b", "7")
            await until(lambda: bench.is_up(fence_id))
            assert set(bench.numa()) == {uuid(7)}
            return
        if end == "ended":
            await bench.bind(one)
            await until(lambda: bench.node.chosen.pod(uid) is not None)
            assert set(bench.numa()) == {uuid(0)}
            bench.node.api.put(one | {"status": {"phase": "Failed"}})
        await until(lambda: len(bench.numa()) == 8)


async def test_a_restarted_kubelet_sees_all_numa_nodes_until_it_has_settled(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fencing(place) as bench:
        await bench.node.run(pod("old", {GPU: 1}, devices="3"))
        fence_id = bench.request("a", "0")
        await until(lambda: bench.is_up(fence_id))
        # A kubelet lists its pods from the API server after it has asked for devices.
        kept, bench.node.kubelet.books.pods = bench.node.kubelet.books.pods, {}
        await bench.node.kubelet.restart()
        await bench.node.kubelet.devices(GPU, 8)
        assert len(bench.numa()) == 8
        too_soon = bench.request("b", "0")
        await until(lambda: "no fence for pod b: the kubelet may still admit" in caplog.text)
        await asyncio.sleep(0.3)
        assert not bench.settling.settled and len(bench.numa()) == 8 and not bench.is_up(too_soon)
        bench.node.kubelet.books.pods = kept
        await until(lambda: bench.settling.settled)
        fence_id = bench.request("b", "0")
        await until(lambda: bench.is_up(fence_id))


async def test_a_fence_requested_before_the_process_started_is_not_put_up(place: Path) -> None:
    async with running(place) as node, Client(ClusterConfig(node.api.url)) as client:
        bench = Fenced(node, client)
        old = bench.request("a", "0")
        tasks = await bench.begin()
        new = f"{old}-new"
        bench.write(fence={"id": new, "pod": "b", "devices": "7"})
        await until(lambda: bench.is_up(new))
        assert set(bench.numa()) == {uuid(7)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_status_names_no_fence_that_the_kubelet_does_not_show(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UP_WITHIN_S", 0.2)
    async with fencing(place) as bench:
        monkeypatch.setattr(bench.node.plugins, "fenced", lambda document: False)
        fence_id = bench.request("a", "0")
        await until(lambda: len(bench.numa()) == 1)
        await until(lambda: len(bench.numa()) == 8)
        assert not bench.is_up(fence_id)


async def test_a_bad_list_of_devices_puts_up_no_fence(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with fencing(place) as bench:
        fence_id = bench.request("a", "zero")
        await until(lambda: "no fence for pod a: 'zero' is not a list of devices" in caplog.text)
        assert len(bench.numa()) == 8 and not bench.is_up(fence_id)


async def test_a_fence_covers_only_the_resource_of_its_devices(place: Path) -> None:
    mig = {1: [("1g.5gb", start, 1) for start in range(4)]}
    async with fencing(place, Config(mig_strategy="mixed"), host(4, mig=mig)) as bench:
        fence_id = bench.request("a", "1/1g.5gb@2")
        await until(lambda: bench.is_up(fence_id))
        assert set(bench.numa("nvidia.com/mig-1g.5gb")) == {mig_uuid(1, 2)} and len(bench.numa()) == 3


async def test_all_replicas_of_a_chosen_gpu_keep_their_numa_node(place: Path) -> None:
    shared = Config(sharing={GPU: Shared("time-slicing", 2, False, SHARED)})
    async with fencing(place, shared, host(4)) as bench:
        fence_id = bench.request("a", "3")
        await until(lambda: bench.is_up(fence_id))
        assert bench.numa(SHARED) == {f"{uuid(3)}::{n}": [1] for n in range(2)}


async def test_the_published_devices_have_their_numa_nodes_behind_a_fence(place: Path) -> None:
    async with fencing(place) as bench:
        fence_id = bench.request("a", "0")
        await until(lambda: bench.is_up(fence_id))
        document = await PodResources(bench.node.kubelet.pod_resources).allocatable_response()
        assert sum(len(one.device_ids) for one in document.devices if one.topology.nodes) == 1
        restored = bench.node.plugins.restored(document)
        numa = {id: one.topology.nodes[0].ID for one in restored.devices for id in one.device_ids}
        assert numa == {uuid(i): i // 4 for i in range(8)}
