# SPDX-License-Identifier: Apache-2.0
"""RDMA devices beside GPUs on a real kubelet: both of one NUMA node, with the character devices in the container."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.cluster import GPU, NUMA_OF, Cluster, running
from tests.node.test_chosen_devices import runs
from tools.node.node import Node

pytestmark = [pytest.mark.node, pytest.mark.slow]
CONFIG = """version: v1
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
        indices = [int(index) for index in cluster.chosen(name).split(",")]
        assert [NUMA_OF[index] for index in indices] == [numa] * gpus
        found = cluster.node.resources_of(cluster.namespace, name)
        own = {f"/dev/infiniband/{kind}{i}" for kind in ("uverbs", "umad", "issm") for i in (2 * numa, 2 * numa + 1)}
        given = {path for path in (*found["devices"], *found["files"]) if "/infiniband/" in path}
        assert given == own | {"/dev/infiniband/rdma_cm"}
    # One GPU of NUMA node 1 and two of NUMA node 0 are left: the kubelet would reject the pod.
    cluster.pod("waits", {GPU: 2, "rdma/numa1": 1})
    cluster.pod("other", {GPU: 2, "rdma/numa0": 1})
    runs(cluster, "other")
    assert cluster.phase("waits") == "Pending" and not cluster.get_pod("waits")["spec"].get("nodeName")
    cluster.delete("three")
    runs(cluster, "waits")
    assert {NUMA_OF[int(index)] for index in cluster.chosen("waits").split(",")} == {1}
