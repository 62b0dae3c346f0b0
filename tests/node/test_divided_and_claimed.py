# SPDX-License-Identifier: Apache-2.0
"""MIG instances and claimed devices reach the container on a real kubelet, and cards are repartitioned for waiting
pods."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.node.cluster import Cluster, running
from tests.node.test_chosen_devices import device_files, runs
from tools.node.gpus import real_devices
from tools.node.node import Node

pytestmark = [pytest.mark.node, pytest.mark.slow]
SLICE = "nvidia.com/mig-1g.5gb"
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}


@pytest.fixture
def cluster(real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("parts")
    with running(real_node, folder, folder.name) as cluster:
        yield cluster
        cluster.delete("--all")


def test_a_layout_is_applied_by_label_and_its_instances_reach_containers(cluster: Cluster) -> None:
    config = cluster.folder / "config.yaml"
    config.write_text("version: v1\nflags: {migStrategy: mixed}\n")
    cluster.agent("--mig", f"--config={config}", "--labels")
    cluster.scheduler("--divide-mig")
    cluster.ready()
    node = cluster.node
    node.plane.kubectl("label", "node", node.name, "nvidia.com/mig.config=all-1g.5gb")
    cluster.until(lambda: cluster.allocatable(SLICE) == 56, "56 instances are allocatable", 120)
    real_devices(cluster.standin.dev)
    labels = cluster.get_node()["metadata"]["labels"]
    assert labels["nvidia.com/mig.config.state"] == "success"
    cluster.pod("part", {SLICE: 1})
    runs(cluster, "part")
    card = cluster.chosen("part").partition("/")[0]
    resources = node.resources_of(cluster.namespace, "part")
    assert device_files(resources) == {f"/dev/nvidia{card}"}
    node.plane.kubectl("label", "node", node.name, "nvidia.com/mig.config-")
    # No label names a layout any more: the scheduler may repartition cards for waiting pods.
    cluster.pod("large", {"nvidia.com/mig-3g.20gb": 1})
    cluster.until(lambda: cluster.allocatable("nvidia.com/mig-3g.20gb"), "the cards are divided anew")
    real_devices(cluster.standin.dev)
    runs(cluster, "large")
    # The kubelet may show the instance before the agent reports which it is: then it is bound by its number alone.
    assert cluster.chosen("large").partition("/")[2].partition("@")[0] in ("3g.20gb", "")
    cluster.until(lambda: cluster.gpu_node()["mig"]["state"] == "applied", "the decision is applied")
    assert cluster.phase("part") == "Running"


def test_a_claimed_gpu_is_in_the_container_and_released_afterwards(cluster: Cluster) -> None:
    plane = cluster.node.plane
    plane.kubectl("apply", "-f", "-", input=json.dumps(CLASS))
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "two", "namespace": cluster.namespace},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]
                }
            }
        },
    }
    plane.kubectl("apply", "-f", "-", input=json.dumps(template))
    config = cluster.folder / "config.yaml"
    config.write_text("version: v1\nnetwork: {environment: true}\n")
    cluster.agent("--claims", "--no-device-plugin", f"--config={config}")
    cluster.scheduler()
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    cluster.until(lambda: plane.request("GET", slices)["items"], "slices are published")
    # A kubelet that does not know the driver yet tries a pod again only after a minute or more.
    log = cluster.folder / "agent.log"
    cluster.until(lambda: "has registered the DRA driver" in log.read_text(), "the kubelet knows the driver")
    claims = [{"name": "gpus", "resourceClaimTemplateName": "two"}]
    for name, env in (("first", []), ("second", [{"name": "NCCL_SOCKET_IFNAME", "value": "lo"}])):
        container = {"resources": {"claims": [{"name": "gpus"}]}, "env": env}
        cluster.pod(name, {"cpu": "10m"}, resourceClaims=claims, container=container)
    runs(cluster, "first", "second")
    for name, interface in (("first", "=eth0"), ("second", "lo")):
        env = cluster.node.resources_of(cluster.namespace, name)["env"]
        assert env["NCCL_SOCKET_IFNAME"] == interface
        for other in ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "DOVETAIL_NETWORK_ENVIRONMENT"):
            assert (other in env) is (name == "first")
    seen = [device_files(cluster.node.resources_of(cluster.namespace, name)) for name in ("first", "second")]
    assert [len(files) for files in seen] == [2, 2]
    assert not seen[0] & seen[1]
    files = cluster.node.outside("/var/run/cdi")
    assert len(list(files.glob("dovetail.dev-claim_*.json"))) == 2
    cluster.delete("first", "second")
    cluster.until(lambda: not list(files.glob("dovetail.dev-claim_*.json")), "nothing is left of the claims")
