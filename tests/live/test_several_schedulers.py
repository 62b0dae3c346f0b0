# SPDX-License-Identifier: Apache-2.0
"""Schedulers beside each other, clusters that lack things, and volumes that wait for a node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from dovetail.kube.api.errors import NotFound
from tests.live.conftest import NAMESPACE, Cluster, eventually, only_user, stays
from tools.controlplane.plane import Plane

ON_THE_PLANE = pytest.mark.parametrize("cluster", [pytest.param("plane", marks=pytest.mark.plane)], indirect=True)


async def test_two_schedulers_alive_never_double_book(cluster: Cluster) -> None:
    """One of them leads, so a GPU is allocated once however the two are timed."""
    await cluster.namespace_exists(NAMESPACE)
    nodes = [await cluster.node(f"n{i}") for i in range(3)]
    async with (
        cluster.scheduler(leader_elect=True, identity="one"),
        cluster.scheduler(leader_elect=True, identity="two"),
    ):
        for number in range(30):
            await cluster.pod(f"p{number}", 1)
        bound = await eventually(cluster.bound, lambda bound: len(bound) >= 24)
        await stays(cluster.bound, lambda bound: len(bound) == 24, for_s=1.0)
    assert Counter(bound.values()) == dict.fromkeys(nodes, 8)


async def test_a_podgroup_of_a_dialect_that_is_a_custom_resource(cluster: Cluster) -> None:
    node = await cluster.node("a")
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "podgroups.scheduling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins"},
        },
        "spec": {
            "group": "scheduling.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    await cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{cluster.namespace}/podgroups"
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": cluster.namespace},
        "spec": {"minMember": 2},
    }
    await eventually(lambda: cluster.get(path), bool)
    await cluster.create(path, group)
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    await cluster.pod("p0", 1, labels=labels)
    async with cluster.scheduler():
        await cluster.reported("p0", "GangIncomplete")
        await cluster.pod("p1", 1, labels=labels)
        await eventually(cluster.bound, lambda bound: bound == {"p0": node, "p1": node})
    await cluster.delete(f"{path}/g")
    await cluster.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podgroups.scheduling.x-k8s.io")


@pytest.fixture(scope="module")
def bare() -> Iterator[Plane]:
    """A plane for tests that start and end parts of it; each leaves it empty and whole."""
    with Plane(controllers=False) as plane:
        yield plane


@pytest.mark.plane
async def test_beside_kube_scheduler_its_pods_are_counted(bare: Plane) -> None:
    """Not on the plane of all tests: kube-scheduler would also place what others have left."""
    async with only_user(bare) as cluster, kube_scheduler(bare):
        node = await cluster.node("a")
        await cluster.pod("theirs", 6, schedulerName="default-scheduler")
        await eventually(cluster.bound, lambda bound: bound == {"theirs": node})
        async with cluster.scheduler():
            await cluster.pod("ours", 4)
            assert "needs 4" in await cluster.reported("ours", "NoNodeFits (NotYet)")
            await cluster.delete(cluster.pods_path("theirs"))
            await eventually(cluster.bound, lambda bound: bound == {"ours": node})
        await cluster.clean_up()


@asynccontextmanager
async def kube_scheduler(plane: Plane) -> AsyncIterator[None]:
    await asyncio.to_thread(plane.start_scheduler)
    try:
        yield
    finally:
        plane.stop_scheduler()


@ON_THE_PLANE
async def test_a_volume_that_waits_for_its_first_consumer(cluster: Cluster) -> None:
    """The scheduler reserves a volume that reaches a node with free GPUs; the volume controller binds it. (The
    playground has no volume controller.)"""
    full, free = await cluster.node("full", gpus=1), await cluster.node("free", gpus=1)
    await cluster.pod("taken", 1, nodeName=full)
    storage_class = f"{cluster.name}-local"
    await cluster.create(
        "/apis/storage.k8s.io/v1/storageclasses",
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": storage_class},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    for node in (full, free):
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        await cluster.create(
            "/api/v1/persistentvolumes",
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"disk-{node}"},
                "spec": {
                    "capacity": {"storage": "10Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": storage_class,
                    "local": {"path": "/disk"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                },
            },
        )
    claims = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": cluster.namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "5Gi"}},
        },
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    await cluster.pod("p", 1, volumes=volumes)
    async with cluster.scheduler():
        await cluster.reported("p", "VolumeClaimMissing (NotYet)")
        await cluster.create(claims, claim)
        await eventually(cluster.bound, lambda bound: bound.get("p") == free)
        bound_claim = await cluster.get(f"{claims}/data")
        assert bound_claim["spec"]["volumeName"] == f"disk-{free}"
    await cluster.delete(cluster.pods_path("p"))
    await cluster.delete(f"{claims}/data")
    for node in (full, free):
        await cluster.delete(f"/api/v1/persistentvolumes/disk-{node}")


@pytest.mark.plane
async def test_the_real_server_goes_away_and_comes_back(bare: Plane) -> None:
    async with only_user(bare) as cluster:
        node = await cluster.node("a")
        await cluster.pod("before", 1)
        async with cluster.scheduler(leader_elect=False):
            await eventually(cluster.bound, lambda bound: bound == {"before": node})
            await asyncio.to_thread(bare.stop_apiserver)
            await asyncio.sleep(2)
            await asyncio.to_thread(bare.restart_apiserver)
            await cluster.pod("after", 1)
            await eventually(cluster.bound, lambda bound: bound == {"before": node, "after": node})
        await cluster.clean_up()


@pytest.fixture
def without_workload_api(bare: Plane) -> Iterator[Plane]:
    """The same plane, which from here on serves no workload API: for the last test of it. A plane of its own would cost
    twice as much as this restart."""
    bare.options = structs.replace(bare.options, features=False)
    bare.restart_apiserver()
    yield bare


@pytest.mark.plane
async def test_a_cluster_without_the_workload_api(without_workload_api: Plane) -> None:
    """Discovery decides, not the version number."""
    async with only_user(without_workload_api) as cluster:
        with pytest.raises(NotFound):
            await cluster.get("/apis/scheduling.k8s.io/v1beta1")
        node = await cluster.node("a")
        await cluster.pod("p", 1)
        for number in range(2):
            annotations = {"dovetail.dev/gang": "g", "dovetail.dev/gang-min": "2"}
            await cluster.pod(f"g{number}", 2, annotations=annotations)
        async with cluster.scheduler():
            await eventually(cluster.bound, lambda bound: bound == {"p": node, "g0": node, "g1": node})
