# SPDX-License-Identifier: Apache-2.0
"""`dovetail scheduler` beside a real kube-controller-manager: with `--consolidate` Jobs and Deployments make anew what
is moved, the disruption controller works out what may be evicted, and the API server refuses what may not. Of a
Deployment that is scaled down the pods end first that free a node.

No kubelet runs: `kubelets` do for the pods of a test what kubelets would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dovetail.core.policy import Policy
from dovetail.kube.api.errors import ApiError, NotFound
from dovetail.scheduler import deletion_costs
from tests.forked import Forked
from tests.live.conftest import NAMESPACE, Cluster, Document, eventually, stays

ON_THE_PLANE = pytest.mark.parametrize(
    "cluster", [pytest.param("plane", marks=pytest.mark.plane)], indirect=True
)  # fmt: skip
LOOK_EVERY_S = 0.25
"""Each look is a list, which costs the server and the test some milliseconds."""
READY = {
    "phase": "Running",
    "conditions": [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady")],
}


async def _tend(cluster: Cluster) -> None:
    for pod in (await cluster.get(cluster.pods_path()))["items"]:
        name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase")
        path = f"{cluster.pods_path(name)}/status"
        with suppress(ApiError):
            if pod["metadata"].get("deletionTimestamp"):
                if phase == "Running":
                    await cluster.patch(path, {"status": {"phase": "Failed"}})
                await cluster.delete(cluster.pods_path(name))
            elif pod["spec"].get("nodeName") and phase == "Pending":
                await cluster.patch(path, {"status": READY})


@asynccontextmanager
async def kubelets(cluster: Cluster) -> AsyncIterator[None]:
    """Pods that are bound run and are ready; pods that are deleted end."""

    async def tend() -> None:
        while True:
            await _tend(cluster)
            await asyncio.sleep(LOOK_EVERY_S)

    task = asyncio.create_task(tend())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def command(request: pytest.FixtureRequest, *flags: str) -> AsyncIterator[None]:
    """The scheduler as a user starts it, under the role that deploy/ gives it."""
    plane = request.getfixturevalue("deployed_plane")
    role = str(plane.service_account_kubeconfig(NAMESPACE, "dovetail-scheduler"))
    fixed = ["scheduler", "--kubeconfig", role, "--no-leader-elect", "--listen", "", "--no-recording"]
    process = Forked(*fixed, *flags)
    try:
        yield
    finally:
        process.terminate()
        await process.ended()


def workload(cluster: Cluster, kind: str, name: str, gpus: int, **annotations: str) -> tuple[str, Document]:
    """The path and the object of a Job or Deployment of one pod."""
    spec = cluster.pod_document("x", gpus)["spec"] | {"terminationGracePeriodSeconds": 1}
    labels = {"app": name}
    meta = {"labels": labels, "annotations": {f"dovetail.dev/{key}": value for key, value in annotations.items()}}
    template = {"metadata": meta, "spec": spec}
    if kind == "Job":
        path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
        own = {"template": template | {"spec": spec | {"restartPolicy": "Never"}}, "backoffLimit": 100}
    else:
        path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments"
        own = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    version = path.removeprefix("/apis/").partition("/namespaces")[0]
    return path, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": own}


def of(bound: dict[str, str], name: str) -> set[str]:
    """The nodes of the pods of a workload."""
    return {node for pod, node in bound.items() if pod.startswith(f"{name}-")}


async def half_used(cluster: Cluster, kinds: dict[str, str], *movable: str) -> list[str]:
    """As many nodes of four GPUs as there are workloads, each half used by one of them. `kinds` by name."""
    nodes = [await cluster.node(f"n{number}", gpus=4) for number in range(len(kinds))]
    for name, kind in kinds.items():
        path, document = workload(cluster, kind, name, 2, movable="true" if name in movable else "false")
        await cluster.create(path, document)
        await eventually(cluster.bound, lambda bound, name=name: bool(of(bound, name)))
        await cluster.pod(f"fill-{name}", 2)
        await eventually(cluster.bound, lambda bound, name=name: f"fill-{name}" in bound)
    for name in kinds:
        await cluster.delete(cluster.pods_path(f"fill-{name}"))
    bound = await eventually(cluster.bound, lambda bound: len(bound) == len(kinds))
    assert sorted(bound.values()) == sorted(nodes)
    return nodes


async def alive(cluster: Cluster) -> dict[str, str]:
    """What is bound and not about to end."""
    pods = (await cluster.get(cluster.pods_path()))["items"]
    staying = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in staying if pod["spec"].get("nodeName")}


async def beside_big(cluster: Cluster, before: dict[str, str]) -> dict[str, str]:
    """The bound pods, once `big` is bound and one of the earlier pods was made again; empty until then."""
    bound = await alive(cluster)
    there = "big" in bound and len(bound) == len(before) + 1 and len(before.keys() - bound.keys()) == 1
    return bound if there else {}


async def remove(cluster: Cluster) -> None:
    """Delete the workloads, so that their controllers make no pods again."""
    for path in (
        f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs",
        f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments",
    ):
        body = {"propagationPolicy": "Background"}
        for item in (await cluster.get(path))["items"]:
            with suppress(NotFound):
                await cluster.client.request("DELETE", f"{path}/{item['metadata']['name']}", body)
    for _ in range(8):
        await _tend(cluster)
        await asyncio.sleep(LOOK_EVERY_S)


@ON_THE_PLANE
@pytest.mark.parametrize("movable", ["job", "deployment"])
async def test_pods_that_their_owner_makes_again_are_moved(
    cluster: Cluster, request: pytest.FixtureRequest, movable: str
) -> None:
    async with kubelets(cluster), command(request, "--consolidate", "4"):
        await half_used(cluster, {"job": "Job", "deployment": "Deployment"}, movable)
        before = await cluster.bound()
        await cluster.pod("big", 4)
        bound = await eventually(lambda: beside_big(cluster, before), bool)
        assert of(bound, "job") == of(bound, "deployment") != {bound["big"]}
        (gone,) = before.keys() - bound.keys()
        assert gone.startswith(f"{movable}-")
        (moved,) = await eventually(lambda: cluster.events("Moved"), bool)
        assert (moved["regarding"]["name"], moved["related"]["name"]) == (gone, "big")
        await stays(lambda: alive(cluster), lambda now: now == bound, for_s=5)
        await remove(cluster)


@ON_THE_PLANE
async def test_a_disruption_budget_that_forbids_is_kept(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """Until it allows one: then it is moved."""
    path = f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets"
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }

    async def allowed() -> Any:
        return (await cluster.get(f"{path}/web")).get("status", {})

    async with kubelets(cluster), command(request, "--consolidate", "4"):
        await cluster.create(path, budget)
        await half_used(cluster, {"web": "Deployment", "job": "Job"}, "web")
        await eventually(allowed, lambda status: status.get("currentHealthy") == 1)
        assert (await allowed())["disruptionsAllowed"] == 0
        before = await cluster.bound()
        await cluster.pod("big", 4)
        assert "NoNodeFits" in await cluster.reported("big", "NoNodeFits")
        await stays(cluster.bound, lambda now: now == before, for_s=10)
        assert await cluster.events("Moved") == []
        await cluster.patch(f"{path}/web", {"spec": {"minAvailable": 0}})
        bound = await eventually(lambda: beside_big(cluster, before), bool, within_s=40)
        assert of(bound, "web") == of(bound, "job")
        await remove(cluster)


@ON_THE_PLANE
async def test_nothing_goes_to_and_fro(cluster: Cluster) -> None:
    """Jobs may be moved again after a second, and large pods come and go. No pod moves but for the first of them, none
    is lost, and nothing moves while none waits."""
    policy = Policy(moves_per_hour=1000, move_again_ms=1_000, tell_again_ms=500, eviction_deadline_ms=10_000)
    kinds = {"j0": "Job", "d0": "Deployment", "j1": "Job", "d1": "Deployment"}
    async with kubelets(cluster), cluster.scheduler(policy=policy):
        await half_used(cluster, kinds, *kinds)
        for number in range(4):
            big = f"big{number}"
            await cluster.pod(big, 4)
            before = await eventually(lambda: alive(cluster), lambda now, big=big: big in now and len(now) == 5)
            # One node is freed at first, and it stays free for those that come later.
            await eventually(lambda: cluster.events("Moved"), lambda moved: len(moved) == 1)
            await stays(lambda: alive(cluster), lambda now, before=before: now == before, for_s=2.5)
            assert len(await cluster.events("Moved")) == 1
            await cluster.delete(cluster.pods_path(big))
            await eventually(lambda: alive(cluster), lambda now: len(now) == 4)
        await remove(cluster)


@ON_THE_PLANE
async def test_a_deployment_is_scaled_down_from_the_pod_that_frees_a_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of three replicas is alone on its node. Without the cost another would end."""
    monkeypatch.setattr(deletion_costs, "LOOK_EVERY_S", 0.2)
    path, document = workload(cluster, "Deployment", "web", 2)
    async with kubelets(cluster), cluster.scheduler():
        nodes = [await cluster.node("n0", gpus=2)]
        await cluster.create(path, document)
        (first,) = await eventually(cluster.bound, lambda bound: len(bound) == 1)
        nodes.append(await cluster.node("n1", gpus=8))
        await cluster.pod("beside", 2)
        await cluster.patch(f"{path}/web", {"spec": {"replicas": 3}})
        await eventually(cluster.bound, lambda bound: len(of(bound, "web")) == 2 and len(bound) == 4)

        async def marks() -> dict[str, str]:
            return (await cluster.get(cluster.pods_path(first)))["metadata"]["annotations"]

        async def ready() -> int:
            return (await cluster.get(f"{path}/web")).get("status", {}).get("readyReplicas", 0)  # type: ignore[no-any-return]

        # One that is not ready would end first, whatever the costs.
        await eventually(ready, lambda count: count == 3)
        found = await eventually(marks, lambda found: "dovetail.dev/deletion-cost" in found)
        cost = found["controller.kubernetes.io/pod-deletion-cost"]
        assert found["dovetail.dev/deletion-cost"].startswith(
            f"{cost}: its end leaves node {nodes[0]} with 2 GPUs to others; at "
        )
        await cluster.patch(f"{path}/web", {"spec": {"replicas": 2}})
        bound = await eventually(lambda: alive(cluster), lambda bound: len(bound) == 3)
        assert first not in bound and "beside" in bound
        await remove(cluster)
