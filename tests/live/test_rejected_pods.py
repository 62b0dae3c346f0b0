# SPDX-License-Identifier: Apache-2.0
"""Pods that a kubelet does not admit: whoever makes them again fails three times on a node, and then hears why not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail.cli.cluster import now_ms
from dovetail.core.cluster import rejections
from dovetail.core.policy import Policy, unhurried
from dovetail.kube.reading.state import read_cluster
from dovetail.scheduler import metrics
from dovetail.views.why import why
from dovetail.views.why_types import Why
from tests.live.conftest import Cluster, eventually, stays

REASON = "TopologyAffinityError"
TEXT = "node(s) whose kubelet rejected pods of the same owner"


@asynccontextmanager
async def rejecting(cluster: Cluster, node: str) -> AsyncIterator[None]:
    """The kubelet of the node admits no pod. Where there are no kubelets the test writes the status of one."""
    if cluster.playground is not None:
        cluster.playground.kubelets.reject(node, REASON)
        yield
        cluster.playground.kubelets.reject(node, "")
        return

    async def kubelet() -> None:
        while True:
            for pod in (await cluster.get(cluster.pods_path()))["items"]:
                if pod["spec"].get("nodeName") == node and pod["status"]["phase"] == "Pending":
                    status = {"phase": "Failed", "reason": REASON, "message": "Pod was rejected: no"}
                    await cluster.patch(cluster.pods_path(pod["metadata"]["name"]) + "/status", {"status": status})
            await asyncio.sleep(0.02)

    task = asyncio.create_task(kubelet())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Controller:
    """Makes another pod for each one that failed, as a ReplicaSet does, and as fast as it can."""

    def __init__(self, cluster: Cluster, owner: dict[str, Any]) -> None:
        self.cluster = cluster
        meta = owner["metadata"]
        self.reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]}
        self.made = 0

    async def make(self) -> None:
        document = self.cluster.pod_document(f"p{self.made}", 1)
        document["metadata"]["ownerReferences"] = [self.reference | {"controller": True}]
        await self.cluster.create(self.cluster.pods_path(), document)
        self.made += 1

    async def failed(self) -> int:
        pods = (await self.cluster.get(self.cluster.pods_path()))["items"]
        return sum(pod["status"]["phase"] == "Failed" for pod in pods)

    async def run(self) -> None:
        await self.make()
        while True:
            if await self.failed() == self.made:
                await self.make()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def controlled(cluster: Cluster) -> AsyncIterator[Controller]:
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": cluster.namespace}}
    controller = Controller(cluster, await cluster.create(path, owner))
    task = asyncio.create_task(controller.run())
    yield controller
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def explained(cluster: Cluster, pod: str) -> Why:
    state = (await read_cluster(cluster.scheduler_config, unhurried(Policy()), "dovetail")).state
    return why(state, f"{cluster.namespace}/{pod}", now_ms())


@pytest.fixture(autouse=True)
def short_back_offs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejections, "_BACKOFFS_MS", (200, 400, rejections.FOR_EVER_MS))


@pytest.mark.slow
async def test_three_pods_fail_on_a_node_until_it_changes(cluster: Cluster) -> None:
    node, counted = await cluster.node("a"), metrics.REJECTIONS.labels(REASON, cluster.namespace)._value.get()
    async with cluster.scheduler(), rejecting(cluster, node), controlled(cluster) as controller:
        await eventually(controller.failed, lambda failed: failed == 3)
        await stays(controller.failed, lambda failed: failed == 3, for_s=1.5)
        assert metrics.REJECTIONS.labels(REASON, cluster.namespace)._value.get() - counted == 3
        assert TEXT in await cluster.reported("p3", "NoNodeFits (NotYet)")
        answer = await explained(cluster, "p3")
        (rule,) = [rule for rule in answer.rules if rule.code == "KubeletRejected"]
        assert (rule.text, rule.nodes) == (f"{TEXT} ({REASON})", (node,))
        await cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"mended": "maybe"}}})
        await eventually(controller.failed, lambda failed: failed == 6)
        await stays(controller.failed, lambda failed: failed == 6, for_s=1)


async def test_the_next_pod_goes_where_it_is_admitted(cluster: Cluster) -> None:
    bad = await cluster.node("a", gpus=1)
    async with cluster.scheduler(), rejecting(cluster, bad), controlled(cluster) as controller:
        await eventually(controller.failed, lambda failed: failed == 1)
        good = await cluster.node("b")
        bound = await eventually(cluster.bound, lambda bound: good in bound.values())
        assert good in (bound.get("p1"), bound.get("p2"))
        await stays(controller.failed, lambda failed: failed <= 2, for_s=0.5)


@pytest.mark.slow
async def test_after_a_restart_one_more_fails_at_most(cluster: Cluster) -> None:
    node = await cluster.node("a")
    async with rejecting(cluster, node), controlled(cluster) as controller:
        async with cluster.scheduler():
            await eventually(controller.failed, lambda failed: failed == 3)
            await stays(controller.failed, lambda failed: failed == 3, for_s=1)
        async with cluster.scheduler():
            await eventually(controller.failed, lambda failed: failed == 4)
            await stays(controller.failed, lambda failed: failed == 4, for_s=1)
