# SPDX-License-Identifier: Apache-2.0
"""The pods that the real controllers of LeaderWorkerSet and DisaggregatedSet make are placed: whole groups, sub-groups,
the leader first, no decode without prefill."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from dovetail.kube.manifests.documents import Document
from dovetail.kube.manifests.workloads import expanded
from tests.live.conftest import Cluster, eventually
from tests.needs import reporter, unavailable
from tools.controlplane.binaries import PlaneUnavailable
from tools.workloads.leader_worker_sets import SETS, LeaderWorkerSets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [pytest.param("plane", marks=pytest.mark.plane)], indirect=True),
]


@pytest.fixture(scope="module")
def controller(deployed_plane: Any, pytestconfig: pytest.Config) -> Iterator[LeaderWorkerSets]:
    running = LeaderWorkerSets(deployed_plane, reporter(pytestconfig))
    try:
        running.start()
    except PlaneUnavailable as error:
        # Its source is fetched once, which not every machine can, while it has the plane.
        unavailable(f"no controller of LeaderWorkerSet: {error}", hopeless=True)
    yield running
    running.stop()


async def create(cluster: Cluster, marks: dict[str, str], **both: Any) -> str:
    """A LeaderWorkerSet of one group; the path of it."""
    template = {"spec": cluster.pod_document("x", gpus=8)["spec"]}
    document = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "serve", "annotations": {f"leaderworkerset.sigs.k8s.io/{key}": one for key, one in marks.items()},
        },
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"workerTemplate": template, **both}},
    }  # fmt: skip
    path = SETS.format(namespace=cluster.namespace)
    await cluster.create(path, document)
    return f"{path}/serve"


def _without_hashes(pod: Any) -> tuple[str, str, list[tuple[str, str]], int, int]:
    """Name, controller, and labels of a pod, and how many terms its affinity and anti-affinity have."""
    meta, affinity = pod["metadata"], pod["spec"].get("affinity", {})
    labels = sorted(item for item in meta["labels"].items() if not item[0].endswith(("-key", "-hash")))
    terms = [
        len(affinity.get(side, {}).get("requiredDuringSchedulingIgnoredDuringExecution", ()))
        for side in ("podAffinity", "podAntiAffinity")
    ]
    return meta["name"], meta["ownerReferences"][0]["name"], labels, terms[0], terms[1]


async def racks(cluster: Cluster, *sizes: int) -> dict[str, str]:
    """Nodes of 8 GPUs in racks; the rack of each node."""
    found = {}
    for rack, size in zip("abc", sizes, strict=False):
        for i in range(size):
            found[await cluster.node(f"{rack}{i}", labels={"rack": rack})] = rack
    return found


async def test_sub_groups_are_each_in_one_domain(cluster: Cluster, controller: LeaderWorkerSets) -> None:
    """A leader with two sub-groups of two workers: a rack of three nodes and one of two."""
    rack_of = await racks(cluster, 2, 3)
    async with cluster.scheduler():
        marks = {"subgroup-exclusive-topology": "rack"}
        path = await create(cluster, marks, size=5, subGroupPolicy={"subGroupSize": 2})
        bound = await eventually(cluster.bound, lambda found: len(found) == 5)
        made, own = (await cluster.get(cluster.pods_path()))["items"], await cluster.get(path)
        await cluster.delete(path, at_once=False)
    del own["metadata"]["uid"]
    expected = [one.value for one in expanded([Document("f", own)]).documents if one.value["kind"] == "Pod"]
    assert sorted(map(_without_hashes, made)) == sorted(map(_without_hashes, expected))
    by_pod = {pod: rack_of[node] for pod, node in bound.items()}
    assert by_pod == {"serve-0": "b", "serve-0-1": "b", "serve-0-2": "b", "serve-0-3": "a", "serve-0-4": "a"}


async def test_a_group_without_room_holds_nothing(cluster: Cluster, controller: LeaderWorkerSets) -> None:
    await racks(cluster, 2)
    async with cluster.scheduler():
        path = await create(cluster, {}, size=3)
        for name in ("serve-0", "serve-0-1", "serve-0-2"):
            await eventually(partial(cluster.condition, name), lambda condition: condition.get("message"))
        assert await cluster.bound() == {}
        await cluster.node("more")
        await eventually(cluster.bound, lambda found: len(found) == 3)
        await cluster.delete(path, at_once=False)


async def test_with_an_exclusive_topology_the_workers_follow_their_leader(
    cluster: Cluster, controller: LeaderWorkerSets
) -> None:
    """The controller makes them once the leader is bound, and selects its rack."""
    rack_of = await racks(cluster, 3, 3)
    async with cluster.scheduler():
        path = await create(cluster, {"exclusive-topology": "rack"}, size=3)
        bound = await eventually(cluster.bound, lambda found: len(found) == 3)
        await cluster.delete(path, at_once=False)
    assert len({rack_of[node] for node in bound.values()}) == 1


async def test_decode_starts_with_prefill_and_both_in_one_clique(
    cluster: Cluster, controller: LeaderWorkerSets
) -> None:
    """A clique with one node for three pods, then with two: one of each role starts, the third waits for room there."""
    of = "nvidia.com/gpu.clique"
    await cluster.node("a0", labels={of: "a"})
    template = {"spec": cluster.pod_document("x", gpus=8)["spec"]}
    roles = [
        {"name": name, "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}}
        for name, replicas in (("decode", 2), ("prefill", 1))
    ]
    document = {
        "apiVersion": "disaggregatedset.x-k8s.io/v1", "kind": "DisaggregatedSet",
        "metadata": {"name": "pd", "annotations": {"dovetail.dev/topology-required": "clique"}},
        "spec": {"roles": roles},
    }  # fmt: skip
    path = f"/apis/disaggregatedset.x-k8s.io/v1/namespaces/{cluster.namespace}/disaggregatedsets"
    async with cluster.scheduler():
        await cluster.create(path, document)
        pods = await eventually(partial(cluster.get, cluster.pods_path()), lambda found: len(found["items"]) == 3)
        for one in pods["items"]:
            await eventually(
                partial(cluster.condition, one["metadata"]["name"]), lambda condition: condition.get("message")
            )
        assert await cluster.bound() == {}
        await cluster.node("b0", labels={of: "b"})
        await cluster.node("a1", labels={of: "a"})
        bound = await eventually(cluster.bound, lambda found: len(found) == 2)
        assert {node.rpartition("-")[2] for node in bound.values()} == {"a0", "a1"}
        assert sorted(name.split("-")[2] for name in bound) == ["decode", "prefill"]
        await cluster.node("a2", labels={of: "a"})
        await eventually(cluster.bound, lambda found: len(found) == 3)
        await cluster.delete(f"{path}/pd", at_once=False)
