# SPDX-License-Identifier: Apache-2.0
"""The search for GPUs on nodes without a label, on a playground. The test plays the kubelets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.stack import AgentSpec, GPUStack, StackMeta, StackSpec
from dovetail.operator.gpu_search import GpuSearches
from dovetail.operator.gpu_search.search_pod import FOUND, SEARCHED, search_name
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.leader_client import LeaderClient
from dovetail.operator.parts import SharedByParts
from dovetail.operator.watched.watches import SharedWatches, settled
from dovetail.playground import Playground

SYSTEM = "dovetail-system"
Document = dict[str, Any]
AGENTS: Document = {
    "kind": "DaemonSet",
    "spec": {
        "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": "dovetail-agent"}},
            "spec": {"containers": [{"name": "agent", "image": "dovetail:1"}]},
        }
    },
}


class SearchWorld:
    """Nodes, and the search among them by a clock that the test holds."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.playground = Playground(clock=lambda: 1_764_000_000.0)
        self.playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        self.leads = True
        self.searches: GpuSearches
        self.watches: SharedWatches

    def stack(self, *, find: bool = True) -> GPUStack:
        return GPUStack(StackMeta(name="gpus", uid="u-1"), StackSpec(agent=AgentSpec(find_gpus=find)))

    def node(self, name: str, *, boot: str = "a", ready: str = "True", **more: Any) -> None:
        old = self.playground.store.get("nodes", "", name)
        meta = (old or {}).get("metadata", {}) | {"name": name} | more.pop("metadata", {})
        status = {
            "nodeInfo": {"bootID": boot, "operatingSystem": "linux"},
            "conditions": [{"type": "Ready", "status": ready}],
        } | more
        self.playground.put({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})

    def pods(self) -> list[Document]:
        """Those that nobody has deleted: without a kubelet a pod that runs stays after that."""
        return [pod for pod in self.playground.store.list("pods") if "deletionTimestamp" not in pod["metadata"]]

    def end(self, node: str, report: str, phase: str = "Succeeded") -> None:
        pod = self.playground.store.get("pods", SYSTEM, search_name(node))
        assert pod is not None
        ended = {"terminated": {"exitCode": 0, "message": report}}
        head = {"apiVersion": "v1", "kind": "Pod"}
        self.playground.put(
            head | pod | {"status": {"phase": phase, "containerStatuses": [{"name": "find", "state": ended}]}}
        )

    def found(self, name: str) -> tuple[str | None, str | None]:
        node = self.playground.store.get("nodes", "", name)
        assert node is not None
        meta = node["metadata"]
        return meta.get("labels", {}).get("dovetail.dev/agent"), meta.get("annotations", {}).get(SEARCHED)

    async def settle(self) -> None:
        """Let the search do all that is due now, from what it sees then."""
        for _ in range(3):
            await self.seen()
            await self.searches.step()
        await self.seen()

    async def seen(self) -> None:
        async with asyncio.timeout(20):
            followed = (self.watches.nodes, "nodes"), (self.watches.system_pods, "pods")
            for reflector, collection in followed:
                while self._stored(collection) != {  # noqa: ASYNC110 - nothing announces it
                    one.metadata.uid: one.metadata.resource_version for one in reflector.known.values()
                }:
                    await asyncio.sleep(0.002)

    def _stored(self, collection: str) -> dict[str, str]:
        found = (one["metadata"] for one in self.playground.store.list(collection))
        return {meta["uid"]: meta["resourceVersion"] for meta in found}


@pytest.fixture
async def world() -> AsyncIterator[SearchWorld]:
    world = SearchWorld()
    await world.playground.start()
    config = ClusterConfig(server=world.playground.url)
    async with LeaderClient(config, retries=0, leads=lambda: world.leads) as client:
        world.watches = SharedWatches(client)
        world.searches = GpuSearches(
            SharedByParts(client, world.watches, OwnedObjects(client, lambda: None), lambda: None),
            clock_s=lambda: world.now_s,
        )
        world.searches.follow(world.stack())
        world.searches.adjusted((AGENTS,))
        following = asyncio.create_task(world.watches.run())
        await settled(world.watches.nodes, world.watches.system_pods)
        yield world
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    await world.playground.stop()


async def test_a_node_with_gpus_gets_the_label_and_one_without_is_left_alone(world: SearchWorld) -> None:
    world.node("bare")
    world.node("cpu")
    await world.settle()
    pods = {pod["spec"]["nodeName"]: pod for pod in world.pods()}
    assert set(pods) == {"bare", "cpu"}
    (container,) = pods["bare"]["spec"]["containers"]
    assert (container["image"], container["args"][:2]) == ("dovetail:1", ["agent", "find"])
    world.end("bare", f"{FOUND}8\n")
    world.end("cpu", f"{FOUND}0\n")
    await world.settle()
    assert world.pods() == []
    assert (world.found("bare"), world.found("cpu")) == (("true", "8 a"), (None, "0 a"))
    await world.settle()
    assert world.pods() == []


async def test_a_node_is_searched_again_after_a_boot(world: SearchWorld) -> None:
    world.node("cpu")
    await world.settle()
    world.end("cpu", f"{FOUND}0\n")
    await world.settle()
    world.node("cpu", boot="b")
    await world.settle()
    world.end("cpu", f"{FOUND}2\n")
    await world.settle()
    assert world.found("cpu") == ("true", "2 b")


@pytest.mark.parametrize(
    "node",
    [
        {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}},
        {"metadata": {"labels": {"feature.node.kubernetes.io/pci-10de.present": "true"}}},
        {"metadata": {"labels": {"dovetail.dev/agent": "false"}}},
        {"allocatable": {"nvidia.com/gpu": "8"}},
        {"allocatable": {"nvidia.com/mig-1g.5gb": "7"}},
        {"ready": "False"},
        {"boot": ""},
        {"nodeInfo": {"bootID": "a", "operatingSystem": "windows"}},
    ],
)
async def test_a_node_that_needs_no_search_or_cannot_have_one_gets_no_pod(world: SearchWorld, node: Document) -> None:
    world.node("one", **node)
    await world.settle()
    assert world.pods() == []


async def test_a_search_that_fails_is_repeated_after_growing_pauses(world: SearchWorld) -> None:
    world.node("cpu")
    began = []
    for _ in range(3 * 60):
        await world.seen()
        await world.searches.step()
        if world.pods():
            began.append(world.now_s)
            await world.settle()
            world.end("cpu", "exec format error", phase="Failed")
            await world.settle()
        world.now_s += 60
    pauses = [b - a for a, b in pairwise(began)]
    assert world.pods() == [] and world.found("cpu") == (None, None)
    assert pauses == sorted(pauses) and 600 <= pauses[0] <= 720 and pauses[-1] > 4000


async def test_at_most_ten_run_at_a_time(world: SearchWorld) -> None:
    for number in range(25):
        world.node(f"cpu-{number}")
    await world.settle()
    assert len(world.pods()) == 10


async def test_without_the_search_nothing_runs_and_what_ran_is_removed(world: SearchWorld) -> None:
    world.node("cpu")
    await world.settle()
    assert len(world.pods()) == 1
    world.searches.follow(world.stack(find=False))
    await world.settle()
    assert world.pods() == []


async def test_an_uninstallation_takes_back_what_a_search_wrote(world: SearchWorld) -> None:
    world.node("bare")
    world.node("cpu")
    world.node("other", metadata={"labels": {"dovetail.dev/agent": "true"}})
    await world.settle()
    world.end("bare", f"{FOUND}8\n")
    await world.settle()
    assert await world.searches.release(world.stack()) == ""
    assert world.pods() == []
    assert [world.found(name) for name in ("bare", "cpu", "other")] == [(None, None), (None, None), ("true", None)]


@pytest.mark.parametrize("report", ["", "NVIDIA GPUs on the PCI bus: many", f"{FOUND}99999", "8"])
async def test_a_report_without_a_number_is_a_failure(world: SearchWorld, report: str) -> None:
    world.node("cpu")
    await world.settle()
    world.end("cpu", report)
    await world.settle()
    assert world.found("cpu") == (None, None) and world.pods() == []
