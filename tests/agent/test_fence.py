# SPDX-License-Identifier: Apache-2.0
"""A fence: the kubelet is left no other devices than those that were chosen, for as short as can be."""

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

DEFINITION = Path(__file__).parents[2] / "deploy/crds/gpunode.yaml"
SHARED = f"{GPU}.shared"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it falls for a reason."""
    monkeypatch.setattr(module, "_STANDS_S", 60.0)
    for name, seconds in (("_SETTLED_AFTER_S", 0.05), ("_UNSEEN_AFTER_S", 0.05), ("_LOOK_EVERY_S", 0.01)):
        monkeypatch.setattr(settling, name, seconds)


@pytest.fixture
def place() -> Iterator[Path]:
    """Of a short name, as paths of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        yield Path(name)


class Fenced:
    """A node whose agent puts up fences, and the scheduler's part."""

    def __init__(self, node: Node, client: Client) -> None:
        self.node = node
        self._client = client
        self._last = 0
        self.fencing: NumaGuard
        self.settling: Settling
        node.api.put(yaml.safe_load(DEFINITION.read_text()))
        self.tell()

    async def begin(self) -> list[asyncio.Task[None]]:
        """The part that puts up fences, as soon as the kubelet has settled; what it runs."""
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

    def tell(self, **spec: object) -> None:
        meta = {"name": "n1"}
        old = self.node.api.store.get("gpunodes.dovetail.dev", "", "n1")
        status = (old or {}).get("status", {"observedTime": "2026-01-31T12:00:00Z"})
        self.node.api.put(
            {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": meta, "spec": spec, "status": status}
        )

    def ask(self, uid: str, devices: str) -> str:
        """What a scheduler writes; the id."""
        self._last += 1
        self.tell(fence={"id": f"f{self._last}", "pod": uid, "devices": devices})
        return f"f{self._last}"

    def coming(self, told: Pod) -> str:
        """The pod waits; its uid."""
        waiting = {**told, "spec": {key: value for key, value in told["spec"].items() if key != "nodeName"}}
        uid = told["metadata"]["uid"] = self.node.api.put(waiting)["metadata"]["uid"]
        return str(uid)

    async def bind(self, told: Pod) -> None:
        meta = {key: told["metadata"][key] for key in ("name", "namespace", "uid", "annotations")}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "n1"}}
        await self._client.request("POST", PODS.path(meta["namespace"], meta["name"], "binding"), body)

    async def run(self, told: Pod, mask: frozenset[int] | None = None) -> set[str]:
        """Bind it and have the kubelet admit it; the GPUs that it holds."""
        await self.bind(told)
        return (await self.node.run(told, mask))[GPU]

    def stands(self, fence_id: str) -> bool:
        status = self.document().get("status")
        return isinstance(status, dict) and status.get("fence") == fence_id

    def numa(self, resource: str = GPU) -> dict[str, list[int]]:
        """The devices that have NUMA nodes, by what the kubelet was told last."""
        told = self.node.kubelet.listed(resource).items()
        return {id: [node.ID for node in one.topology.nodes] for id, one in told if one.HasField("topology")}

    def lowest(self, size: int) -> frozenset[int]:
        """The mask of a kubelet with single-numa-node: the lowest NUMA node with so many devices that nobody has."""
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
async def test_a_pod_that_ends_in_between_leads_the_kubelet_to_others_unless_there_is_a_fence(place: Path) -> None:
    async with fencing(place) as bench:
        for i, with_fence in enumerate((False, True)):
            before, after = pod(f"before{i}", {GPU: 3}, devices="0,1,2"), pod(f"after{i}", {GPU: 2}, devices="4,5")
            await bench.node.run(before, bench.lowest(3))
            uid = bench.coming(after)
            if with_fence:
                fence_id = bench.ask(uid, "4,5")
                await until(lambda fence_id=fence_id: bench.stands(fence_id))
            bench.node.end(before)
            given = await bench.run(after, bench.lowest(2))
            assert (given == {uuid(4), uuid(5)}) is with_fence
            await until(lambda: len(bench.numa()) == 8)
            bench.node.end(after)


async def test_it_stands_only_when_the_kubelet_shows_it_and_falls_when_the_pod_is_served(place: Path) -> None:
    async with fencing(place) as bench:
        one = pod("a", {GPU: 2}, devices="1,6")
        fence_id = bench.ask(bench.coming(one), "1,6")
        await until(lambda: bench.stands(fence_id))
        assert bench.numa() == {uuid(1): [0], uuid(6): [1]}
        assert bench.node.kubelet.capacity(GPU) == (8, 8)
        await bench.run(one)
        await until(lambda: len(bench.numa()) == 8)


async def test_containers_of_a_pod_are_all_served_before_it_falls(place: Path) -> None:
    async with fencing(place) as bench:
        several = pod("a", {GPU: 2}, devices="4,5,7", containers=[{GPU: 1}])
        fence_id = bench.ask(bench.coming(several), "4,5,7")
        await until(lambda: bench.stands(fence_id))
        assert await bench.run(several, frozenset({1})) == {uuid(4), uuid(5), uuid(7)}
        await until(lambda: len(bench.numa()) == 8)


@pytest.mark.parametrize("end", ["ended", "another", "time"])
async def test_it_falls_also_without_the_pod(place: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if end == "time":
        monkeypatch.setattr(module, "_STANDS_S", 0.2)
    async with fencing(place) as bench:
        one = pod("a", {GPU: 1}, devices="0")
        uid = bench.coming(one)
        fence_id = bench.ask(uid, "0")
        await until(lambda: bench.stands(fence_id))
        if end == "another":
            fence_id = bench.ask("b", "7")
            await until(lambda: bench.stands(fence_id))
            assert set(bench.numa()) == {uuid(7)}
            return
        if end == "ended":
            await bench.bind(one)
            await until(lambda: bench.node.chosen.pod(uid) is not None)
            assert set(bench.numa()) == {uuid(0)}
            bench.node.api.put(one | {"status": {"phase": "Failed"}})
        await until(lambda: len(bench.numa()) == 8)


async def test_a_kubelet_that_begins_anew_is_told_everything_until_it_shows_all_pods_that_work(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fencing(place) as bench:
        await bench.node.run(pod("old", {GPU: 1}, devices="3"))
        fence_id = bench.ask("a", "0")
        await until(lambda: bench.stands(fence_id))
        # What it knows of pods it hears from the API server, later than it asks for devices.
        kept, bench.node.kubelet.books.pods = bench.node.kubelet.books.pods, {}
        await bench.node.kubelet.restart()
        await bench.node.kubelet.devices(GPU, 8)
        assert len(bench.numa()) == 8
        too_soon = bench.ask("b", "0")
        await until(lambda: "no fence for pod b: the kubelet may look again" in caplog.text)
        await asyncio.sleep(0.3)
        assert not bench.settling.settled and len(bench.numa()) == 8 and not bench.stands(too_soon)
        bench.node.kubelet.books.pods = kept
        await until(lambda: bench.settling.settled)
        fence_id = bench.ask("b", "0")
        await until(lambda: bench.stands(fence_id))


async def test_what_was_asked_before_this_process_began_stands_no_more(place: Path) -> None:
    async with running(place) as node, Client(ClusterConfig(node.api.url)) as client:
        bench = Fenced(node, client)
        old = bench.ask("a", "0")
        tasks = await bench.begin()
        new = f"{old}-new"
        bench.tell(fence={"id": new, "pod": "b", "devices": "7"})
        await until(lambda: bench.stands(new))
        assert set(bench.numa()) == {uuid(7)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_without_the_kubelet_s_word_it_is_not_said_to_stand(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UP_WITHIN_S", 0.2)
    async with fencing(place) as bench:
        monkeypatch.setattr(bench.node.plugins, "fenced", lambda told: False)
        fence_id = bench.ask("a", "0")
        await until(lambda: len(bench.numa()) == 1)
        await until(lambda: len(bench.numa()) == 8)
        assert not bench.stands(fence_id)


async def test_a_list_of_devices_that_is_none_changes_nothing(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with fencing(place) as bench:
        fence_id = bench.ask("a", "zero")
        await until(lambda: "no fence for pod a: 'zero' is no list of devices" in caplog.text)
        assert len(bench.numa()) == 8 and not bench.stands(fence_id)


async def test_only_the_resource_that_the_devices_are_of_is_fenced(place: Path) -> None:
    mig = {1: [("1g.5gb", start, 1) for start in range(4)]}
    async with fencing(place, Config(mig_strategy="mixed"), host(4, mig=mig)) as bench:
        fence_id = bench.ask("a", "1/1g.5gb@2")
        await until(lambda: bench.stands(fence_id))
        assert set(bench.numa("nvidia.com/mig-1g.5gb")) == {mig_uuid(1, 2)} and len(bench.numa()) == 3


async def test_all_replicas_of_a_chosen_card_keep_their_numa_node(place: Path) -> None:
    shared = Config(sharing={GPU: Shared("time-slicing", 2, False, SHARED)})
    async with fencing(place, shared, host(4)) as bench:
        fence_id = bench.ask("a", "3")
        await until(lambda: bench.stands(fence_id))
        assert bench.numa(SHARED) == {f"{uuid(3)}::{n}": [1] for n in range(2)}


async def test_what_is_told_of_the_kubelet_s_devices_is_not_what_the_fence_shows_it(place: Path) -> None:
    async with fencing(place) as bench:
        fence_id = bench.ask("a", "0")
        await until(lambda: bench.stands(fence_id))
        told = await PodResources(bench.node.kubelet.pod_resources).allocatable_as_told()
        assert sum(len(one.device_ids) for one in told.devices if one.topology.nodes) == 1
        restored = bench.node.plugins.restored(told)
        numa = {id: one.topology.nodes[0].ID for one in restored.devices for id in one.device_ids}
        assert numa == {uuid(i): i // 4 for i in range(8)}
