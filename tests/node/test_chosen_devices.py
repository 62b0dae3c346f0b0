# SPDX-License-Identifier: Apache-2.0
"""What the scheduler chose is what the container gets, on a real kubelet, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.agent.kubelet.podresources import PodDevices
from tests.node.cluster import GPU, NUMA_OF, Cluster, running
from tools.node.node import Node

pytestmark = [pytest.mark.node, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(real_node, tmp_path_factory.mktemp("gpus"), "gpus") as cluster:
        cluster.agent("--labels", "--topology-objects")
        cluster.scheduler()
        cluster.ready()
        yield cluster


@pytest.fixture(autouse=True)
def tidy(cluster: Cluster) -> Iterator[None]:
    """Every test begins without pods and with all GPUs well."""
    yield
    cluster.delete("--all")
    cluster.standin.clear()


def held(cluster: Cluster, name: str) -> frozenset[str]:
    """The devices of the pod, as the kubelet reports them."""
    entry: PodDevices | None = asyncio.run(cluster.node.pod_resources.get(cluster.namespace, name))
    assert entry is not None
    return entry.ids(GPU)


def runs(cluster: Cluster, *names: str) -> None:
    for name in names:
        cluster.until(lambda name=name: cluster.phase(name) == "Running", f"{name} runs")  # type: ignore[misc]


def device_files(resources: dict[str, Any]) -> set[str]:
    return {
        path
        for path in (*resources["devices"], *resources["files"])
        if path.removeprefix("/dev/nvidia")[:1].isdecimal()
    }


def test_the_very_gpus_that_were_chosen_are_in_the_container(cluster: Cluster) -> None:
    cluster.pod("one", {GPU: 1})
    cluster.pod("four", {GPU: 4})
    cluster.pod("two", {GPU: 2})
    runs(cluster, "one", "four", "two")
    for name, count in (("one", 1), ("four", 4), ("two", 2)):
        chosen = cluster.chosen(name)
        indices = [int(index) for index in chosen.split(",")]
        assert len(indices) == count
        assert len({NUMA_OF[index] for index in indices}) == 1
        assert held(cluster, name) == cluster.uuids(chosen)
        assert device_files(cluster.node.resources_of(cluster.namespace, name)) == {f"/dev/nvidia{i}" for i in indices}


def test_pods_of_one_size_go_one_by_one_and_each_gets_its_own(cluster: Cluster) -> None:
    names = [f"small-{i}" for i in range(8)]
    for name in names:
        cluster.pod(name, {GPU: 1})
    runs(cluster, *names)
    assert {name: held(cluster, name) for name in names} == {
        name: frozenset(cluster.uuids(cluster.chosen(name))) for name in names
    }
    assert cluster.gpu_node()["differences"] == []


def test_an_image_that_asks_for_all_gpus_without_a_request_sees_none(cluster: Cluster) -> None:
    cluster.pod("nosy", {"cpu": "10m"}, env={"NVIDIA_VISIBLE_DEVICES": "all"})
    runs(cluster, "nosy")
    assert device_files(cluster.node.resources_of(cluster.namespace, "nosy")) == set()


def test_a_pod_that_has_gpus_sees_no_others_whatever_its_image_states(cluster: Cluster) -> None:
    cluster.pod("nosy", {GPU: 1}, env={"NVIDIA_VISIBLE_DEVICES": "all"})
    runs(cluster, "nosy")
    assert device_files(cluster.node.resources_of(cluster.namespace, "nosy")) == {
        f"/dev/nvidia{cluster.chosen('nosy')}"
    }


def test_devices_that_were_not_chosen_are_reported_and_not_allocated_again(cluster: Cluster) -> None:
    # Bound from the start, as by another scheduler.
    cluster.pod("foreign", {GPU: 3}, scheduler="other", nodeName=cluster.node.name)
    runs(cluster, "foreign")
    cluster.until(lambda: cluster.gpu_node()["differences"], "the agent reports the pod")
    (difference,) = cluster.gpu_node()["differences"]
    assert (difference["pod"], difference.get("chosen")) == ("foreign", None)
    assert cluster.uuids(difference["given"]) == held(cluster, "foreign")
    cluster.pod("four", {GPU: 4})
    runs(cluster, "four")
    assert held(cluster, "four") == cluster.uuids(cluster.chosen("four"))
    assert not held(cluster, "four") & held(cluster, "foreign")


@pytest.mark.parametrize("fenced", [True, False])
def test_behind_a_fence_the_kubelet_gives_what_it_would_not_have_taken(cluster: Cluster, fenced: bool) -> None:
    # All GPUs are free: by itself the kubelet takes the lower NUMA node.
    cluster.pod("chosen", {GPU: 2}, scheduler="other")
    if fenced:
        cluster.fence("chosen", "5,6")
    cluster.bind("chosen", "5,6")
    runs(cluster, "chosen")
    devices = held(cluster, "chosen")
    assert devices == cluster.uuids("5,6") if fenced else devices < cluster.uuids("0,1,2,3")
    # The next pod finds all of them in their places, and so does each reader of the GPUNode.
    cluster.pod("next", {GPU: 4})
    runs(cluster, "next")
    assert held(cluster, "next") == cluster.uuids(cluster.chosen("next"))
    (listed,) = [one["devices"] for one in cluster.gpu_node()["kubelet"]["devices"] if one["resource"] == GPU]
    assert sorted(one["numaNodes"][0] for one in listed) == [0] * 4 + [1] * 4


def test_an_unhealthy_gpu_is_out_at_once_and_comes_back_when_it_is_healthy(cluster: Cluster) -> None:
    # A contained memory error: the GPU is well again when whoever uses it has ended.
    cluster.pod("user", {GPU: 3})
    runs(cluster, "user")
    assert cluster.chosen("user") == "0,1,2"
    cluster.standin.xid(2, 94)
    started_s = time.monotonic()
    cluster.until(lambda: cluster.allocatable() == 7, "the unhealthy GPU is out", timeout_s=10)
    assert time.monotonic() - started_s < 5
    cluster.until(lambda: not cluster.gpu_node()["gpus"][2]["healthy"], "the GPUNode has it")
    health = next(one for one in cluster.gpu_node()["conditions"] if one["type"] == "HealthOk")
    assert health["status"] == "False"
    assert "xid-94" in health["message"]
    cluster.delete("user")
    cluster.pod("four", {GPU: 4})
    cluster.pod("three", {GPU: 3})
    runs(cluster, "four", "three")
    chosen = cluster.chosen("four"), cluster.chosen("three")
    # The wiring of the others still counts: three are left on the one NUMA node, four on the other. Nobody uses the GPU
    # now, so it may have been well again before either pod came.
    well = chosen in (("0,1,2,3", "4,5,6"), ("4,5,6,7", "0,1,2")) and cluster.gpu_node()["gpus"][2]["healthy"]
    assert well or chosen == ("4,5,6,7", "0,1,3")
    assert held(cluster, "three") == cluster.uuids(chosen[1])
    cluster.until(lambda: cluster.allocatable() == 8, "the GPU is offered again", timeout_s=90)


def test_the_agent_and_the_kubelet_may_die_at_any_time(cluster: Cluster) -> None:
    cluster.pod("before", {GPU: 2})
    runs(cluster, "before")
    agent = next(child for child in cluster.children if "agent" in child.args)  # type: ignore[operator]
    cluster.stop(agent, signal.SIGKILL)
    cluster.agent("--labels", "--topology-objects")
    cluster.ready(gpus=cluster.allocatable() or 8)
    # The kubelet looks again at the pods that run, and must find the NUMA nodes of what they have.
    cluster.pod("coming", {GPU: 1}, scheduler="other")
    cluster.fence("coming", "7")
    cluster.node.restart_kubelet()
    cluster.until(lambda: cluster.allocatable() >= 7, "the plugin is registered again")
    cluster.pod("after", {GPU: 2})
    runs(cluster, "after")
    for name in ("before", "after"):
        assert held(cluster, name) == cluster.uuids(cluster.chosen(name))
    assert not held(cluster, "before") & held(cluster, "after")


def test_the_node_states_what_it_has(cluster: Cluster) -> None:
    node = cluster.get_node()
    labels = node["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert labels["nvidia.com/gpu.count"] == "8"
    status = cluster.gpu_node()
    assert status["kubelet"]["topologyManagerPolicy"] == "single-numa-node"
    assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "True"
    assert json.dumps(status["unread"]).count("gpus") == 0
