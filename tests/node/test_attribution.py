# SPDX-License-Identifier: Apache-2.0
"""On a real kubelet no sample of the exporter names a pod that PodResources did not list with that device at that time,
and each scrape names each pod that held a device throughout: pods come and go on shared GPUs and MIG instances.

DOVETAIL_ATTRIBUTION_PODS sets the number of pods."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dovetail.agent.kubelet.podresources import PodDevices
from tests.node.cluster import Cluster, pods, running
from tools.node.gpus import real_devices
from tools.node.node import Node

pytestmark = [pytest.mark.node, pytest.mark.slow]
PODS = int(os.environ.get("DOVETAIL_ATTRIBUTION_PODS", "10"))
SHARED, SLICE = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
CONFIG = (
    "version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true,"
    " resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n"
)
HOST = {"like": "small-2numa", "mig": {"6": [["1g.5gb", 0], ["1g.5gb", 1]], "7": [["1g.5gb", 0]]}}
APART_S = 1.2
"""More than the time for which scrapes share an answer."""
Held = tuple[str, str, str, str]
"""Namespace, pod, uuid of the GPU or MIG instance, replica."""


@pytest.fixture
def cluster(real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("attribution")
    with running(real_node, folder, folder.name, HOST) as cluster:
        yield cluster
        cluster.delete("--all")


def _listed(pods: tuple[PodDevices, ...]) -> set[Held]:
    ids = ((pod, id) for pod in pods for one in pod.containers for _, held in one.devices for id in held)
    return {(pod.namespace, pod.name, *_device(id)) for pod, id in ids}


def _device(id: str) -> tuple[str, str]:
    uuid, _, replica = id.partition("::")
    return uuid, replica


def _named(text: str) -> set[Held]:
    """What samples of devices name; those of processes have no container."""
    samples = (sample.labels for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        (labels["namespace"], labels["pod"], labels.get("mig_uuid") or labels["UUID"], labels.get("vgpu", ""))
        for labels in samples
        if "container" in labels
    }


async def _scrapes(cluster: Cluster, port: int, ended: asyncio.Event) -> tuple[int, int]:
    """Scrape until all pods have ended. Returns how many scrapes there were, and how many pods with devices they
    named."""
    count, seen = 0, set[str]()
    async with aiohttp.ClientSession() as session:
        while not ended.is_set():
            before = _listed(await cluster.node.pod_resources.list())
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                named = _named(await answer.text())
            after = _listed(await cluster.node.pod_resources.list())
            assert named <= before | after
            assert before & after <= named
            count, seen = count + 1, seen | {pod for _, pod, _, _ in named}
            await asyncio.sleep(APART_S)
    return count, len(seen)


async def test_samples_name_the_pods_that_the_kubelet_lists(cluster: Cluster, unused_tcp_port: int) -> None:
    config = cluster.folder / "config.yaml"
    config.write_text(CONFIG)
    port = unused_tcp_port
    cluster.agent(f"--config={config}", "--labels", f"--exporter=127.0.0.1:{port}")
    cluster.scheduler()
    await asyncio.to_thread(cluster.until, lambda: cluster.allocatable(SHARED) == 18, "18 replicas are allocatable")
    await asyncio.to_thread(cluster.until, lambda: cluster.allocatable(SLICE) == 3, "3 instances are allocatable")
    real_devices(cluster.standin.dev)
    chance, ended = random.Random(3), asyncio.Event()

    def unfinished() -> int:
        return sum(one["status"].get("phase") not in ("Succeeded", "Failed") for one in pods(cluster).values())

    def churn() -> None:
        for number in range(PODS):
            cluster.until(lambda: unfinished() < 16, "earlier pods end", 120)
            seconds = str(chance.randint(1, 6))
            cluster.pod(f"p{number}", {chance.choice((SHARED, SHARED, SLICE)): 1}, args=("show", seconds))
        cluster.until(lambda: not unfinished(), "all pods end", 120)

    async def all_end() -> None:
        try:
            await asyncio.to_thread(churn)
        finally:
            ended.set()

    churning = asyncio.create_task(all_end())
    scrapes, named = await _scrapes(cluster, port, ended)
    await churning
    print(f"{PODS} pods, {scrapes} scrapes, {named} pods named")
    assert named >= PODS // 2
