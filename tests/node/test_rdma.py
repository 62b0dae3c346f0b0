# SPDX-License-Identifier: Apache-2.0
"""RDMA devices beside GPUs on a real kubelet: both of one NUMA node, with the character devices in the container, and
the variables that name them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.cluster import GPU, NUMA_OF, Cluster, running
from tests.node.test_chosen_devices import runs
from tools.node.node import Node

pytestmark = [pytest.mark.node, pytest.mark.slow]
CONFIG = """version: v1
network: {environment: true}
rdma:
  configList:
  - {resourceName: numa0, rdmaHcaMax: 8, selectors: {ifNames: [%s, %s]}}
  - {resourceName: numa1, rdmaHcaMax: 8, selectors: {ifNames: [%s, %s]}}
"""


@pytest.fixture
def cluster(real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The HCAs of NUMA node 0 are the first two."""
    folder = tmp_path_factory.mktemp("rdma")
    with running(real_node, folder, folder.name) as cluster:
        names = [
            next((cluster.standin.sysfs / f"class/infiniband/mlx5_{i}/device/net").iterdir()).name for i in range(4)
        ]
        config = folder / "config.yaml"
        config.write_text(CONFIG % tuple(names))
        cluster.agent(f"--config={config}")
        cluster.scheduler()
        cluster.ready()
        cluster.until(lambda: cluster.allocatable("rdma/numa1") == 8, "the HCAs are allocatable")
        cluster.until(
            lambda: (
                {"rdma/numa0", "rdma/numa1"}
                <= {one["resource"] for one in cluster.gpu_node().get("kubelet", {}).get("devices", ())}
            ),
            "the scheduler can know them",
        )
        yield cluster
        cluster.delete("--all")


def test_gpus_and_hcas_are_of_one_numa_node_and_a_pod_waits_for_both(cluster: Cluster) -> None:
    for name, gpus, numa in (("one", 1, 1), ("two", 2, 0), ("three", 2, 1)):
        cluster.pod(name, {GPU: gpus, f"rdma/numa{numa}": 1})
        runs(cluster, name)
        found = cluster.node.resources_of(cluster.namespace, name)
        indices = [int(index) for index in cluster.chosen(name).split(",")]
        assert [NUMA_OF[index] for index in indices] == [numa] * gpus
        own = {f"/dev/infiniband/{kind}{i}" for kind in ("uverbs", "umad", "issm") for i in (2 * numa, 2 * numa + 1)}
        given = {path for path in (*found["devices"], *found["files"]) if "/infiniband/" in path}
        assert given == own | {"/dev/infiniband/rdma_cm"}
        assert found["env"]["NCCL_SOCKET_IFNAME"] == "=eth0" and found["env"]["NCCL_IB_HCA"].startswith("=mlx5_")
        nics = found["env"]["UCX_NET_DEVICES"].split(",")
        assert nics.pop() == "eth0" and {NUMA_OF[2 * int(nic[5])] for nic in nics} == {numa}
    # One GPU of NUMA node 1 and two of NUMA node 0 are left: the kubelet would reject the pod.
    cluster.pod("waits", {GPU: 2, "rdma/numa1": 1})
    cluster.pod("other", {GPU: 2, "rdma/numa0": 1})
    runs(cluster, "other")
    assert cluster.phase("waits") == "Pending" and not cluster.get_pod("waits")["spec"].get("nodeName")
    cluster.delete("three")
    runs(cluster, "waits")
    assert {NUMA_OF[int(index)] for index in cluster.chosen("waits").split(",")} == {1}
    pod_decides_for_its_variables(cluster)


def pod_decides_for_its_variables(cluster: Cluster) -> None:
    """Also for those that the agent cannot know."""
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"NCCL_IB_HCA": "its"}}
    cluster.node.plane.request("POST", f"/api/v1/namespaces/{cluster.namespace}/configmaps", data)
    source = {"envFrom": [{"configMapRef": {"name": "own"}}], "env": [{"name": "NCCL_SOCKET_IFNAME", "value": "ib0"}]}
    cluster.pod("own", {GPU: 1, "rdma/numa1": 1}, container=source)
    runs(cluster, "own")
    env = cluster.node.resources_of(cluster.namespace, "own")["env"]
    assert (env["NCCL_IB_HCA"], env["NCCL_SOCKET_IFNAME"]) == ("its", "ib0")
    assert "set NCCL_IB_HCA==mlx5_" in env["DOVETAIL_NETWORK_ENVIRONMENT"]
    assert {"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "UCX_NET_DEVICES"}.isdisjoint(env)

    def notes() -> dict[str, str]:
        path = f"/apis/events.k8s.io/v1/namespaces/{cluster.namespace}/events"
        events = cluster.node.plane.request("GET", path)["items"]
        return {one["regarding"]["name"]: one["note"] for one in events if "NetworkEnvironment" in one["reason"]}

    cluster.until(lambda: {"one", "two", "own"} <= notes().keys(), "the events of the agent")
    assert "NCCL_SOCKET_IFNAME=ib0 names no interface of the pod network" in notes()["own"]
