# SPDX-License-Identifier: Apache-2.0
"""A real kubelet and containerd do what the scheduler and the agent count on."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dovetail.agent.apis import deviceplugin_pb2 as deviceplugin
from dovetail.agent.apis import podresources_pb2 as podresources
from dovetail.agent.apis.serving import call
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.node import plugin, programs
from tools.node.configuration import CDI, KubeletOptions
from tools.node.node import IMAGE, Node, NodeFailed

TIMEOUT = "--timeout=60s"


@pytest.fixture(scope="module")
def namespace(real_node: Node) -> Iterator[str]:
    real_node.plane.kubectl("create", "namespace", "real")
    yield "real"
    real_node.plane.kubectl("delete", "namespace", "real")


def pod(node: Node, namespace: str, name: str, *args: str, limits: Mapping[str, object] | None = None) -> None:
    """Create a pod that is bound from the start, as a scheduler leaves it."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": node.name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "args": list(args or ("show",)),
                    "resources": {"limits": dict(limits or {})},
                }
            ],
        },
    }
    node.plane.kubectl("create", "-f", "-", input=json.dumps(manifest))


def status(node: Node, namespace: str, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(node.plane.kubectl("get", "pod", name, f"-n={namespace}", "-o=json"))
    return answer["status"]


def await_phase(node: Node, namespace: str, name: str, phase: str) -> dict[str, Any]:
    node.plane.kubectl("wait", f"pod/{name}", f"-n={namespace}", f"--for=jsonpath={{.status.phase}}={phase}", TIMEOUT)
    return status(node, namespace, name)


def await_allocatable(node: Node, resource: str, amount: int) -> None:
    path = "{.status.allocatable." + resource.replace(".", r"\.") + "}"
    node.plane.kubectl("wait", f"node/{node.name}", f"--for=jsonpath={path}={amount}", TIMEOUT)


def members(cpus: str) -> set[int]:
    """The numbers of a list such as 0-2,5."""
    ranges = [part.partition("-")[::2] for part in cpus.strip().split(",")]
    return {number for first, last in ranges for number in range(int(first), int(last or first) + 1)}


@pytest.mark.node
def test_the_node_is_ready_and_has_two_numa_nodes(real_node: Node) -> None:
    conditions = json.loads(real_node.plane.kubectl("get", "node", real_node.name, "-o=json"))["status"]["conditions"]
    assert {"type": "Ready", "status": "True"}.items() <= next(c for c in conditions if c["type"] == "Ready").items()
    cpus = [real_node.run("cat", f"/sys/devices/system/node/node{numa}/cpulist").strip() for numa in (0, 1)]
    assert len(set(cpus)) == 2


@pytest.mark.node
def test_a_pod_runs_and_its_output_is_read_through_the_server_and_from_the_node(
    real_node: Node, namespace: str
) -> None:
    pod(real_node, namespace, "ends", "show", "1", "3")
    ended = await_phase(real_node, namespace, "ends", "Failed")
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    printed = real_node.plane.kubectl("logs", "ends", f"-n={namespace}")
    assert json.loads(printed) == real_node.resources_of(namespace, "ends")
    assert real_node.resources_of(namespace, "ends")["devices"]["/dev/null"] == "ok"


@pytest.mark.node
async def test_pods_get_whole_numa_nodes_and_one_that_fits_on_none_is_refused(real_node: Node, namespace: str) -> None:
    def story() -> list[set[str]]:
        await_allocatable(real_node, "toy.test/whole", 8)
        pod(real_node, namespace, "five", limits={"toy.test/whole": 5})
        refused = await_phase(real_node, namespace, "five", "Failed")
        assert refused["reason"] == "TopologyAffinityError"
        assert "Topology locality" in refused["message"]
        resources = []
        for name in ("four-a", "four-b"):
            pod(real_node, namespace, name, limits={"toy.test/whole": 4})
            resources.append(set(real_node.resources_of(namespace, name)["env"][plugin.VARIABLE].split(",")))
        return resources

    async with plugin.offered(real_node.device_plugins, "toy.test/whole"):
        resources = await asyncio.to_thread(story)
        assert sorted(resources, key=min) == [{f"{numa}-{number}" for number in range(4)} for numa in (0, 1)]
        for name, devices in zip(("four-a", "four-b"), resources, strict=True):
            reported = await real_node.pod_resources.get(namespace, name)
            assert reported and reported.ids("toy.test/whole") == devices


@pytest.mark.node
async def test_containerd_injects_the_devices_of_a_cdi_name(real_node: Node, namespace: str) -> None:
    specification = {
        "cdiVersion": "0.6.0",
        "kind": "toy.test/cdi",
        "devices": [
            {"name": device, "containerEdits": {"env": [f"TOY_{device.replace('-', '_')}=injected"]}}
            for device in plugin.DEVICES
        ],
    }
    real_node.outside(CDI / "toy.json").write_text(json.dumps(specification))

    def by_cdi(ids: list[str]) -> deviceplugin.ContainerAllocateResponse:
        names = [deviceplugin.CDIDevice(name=f"toy.test/cdi={device}") for device in ids]
        return deviceplugin.ContainerAllocateResponse(cdi_devices=names)

    def story() -> dict[str, str]:
        await_allocatable(real_node, "toy.test/cdi", 8)
        pod(real_node, namespace, "cdi", limits={"toy.test/cdi": 2})
        env: dict[str, str] = real_node.resources_of(namespace, "cdi")["env"]
        return env

    async with plugin.offered(real_node.device_plugins, "toy.test/cdi", by_cdi):
        injected = {name for name, value in (await asyncio.to_thread(story)).items() if value == "injected"}
        reported = await real_node.pod_resources.get(namespace, "cdi")
        assert reported and len(injected) == 2
        assert injected == {f"TOY_{device.replace('-', '_')}" for device in reported.ids("toy.test/cdi")}


@pytest.mark.node
def test_a_pod_lives_through_a_restart_of_the_kubelet(real_node: Node, namespace: str) -> None:
    pod(real_node, namespace, "stays")
    await_phase(real_node, namespace, "stays", "Running")
    before = status(real_node, namespace, "stays")["containerStatuses"][0]
    first = real_node.pids["kubelet"]
    real_node.restart_kubelet()
    assert real_node.pids["kubelet"] != first
    pod(real_node, namespace, "after")
    await_phase(real_node, namespace, "after", "Running")
    after = status(real_node, namespace, "stays")["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    assert after["state"] == before["state"]


@pytest.mark.node
def test_a_spawned_program_sees_the_nodes_paths_and_is_a_child_like_any_other(real_node: Node, tmp_path: Path) -> None:
    script = "ls /var/lib/kubelet/pod-resources; echo $MINE; cat /sys/devices/system/node/online; sleep 60"
    program = real_node.spawn(["sh", "-c", script], {"MINE": "yes"}, tmp_path / "out")
    while (text := (tmp_path / "out").read_text()).count("\n") < 3:
        time.sleep(0.05)
    assert text == "kubelet.sock\nyes\n0-1\n"
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=PATIENCE_S) == -signal.SIGTERM
    assert not Path("/var/lib/kubelet/pod-resources").exists()


@pytest.mark.node
async def test_the_static_managers_give_a_pod_cpu_and_memory_of_one_numa_node(
    real_node: Node, node_factory: Callable[..., Node]
) -> None:
    # Beside the other node, on the same plane.
    options = KubeletOptions(
        topology_manager_policy="single-numa-node",
        cpu_manager_policy="static",
        reserved_cpus="0",
        memory_manager_policy="Static",
        reserved_memory_mib=(128, 128),
    )

    def story() -> tuple[Node, dict[str, Any]]:
        node = node_factory(real_node.plane, name="static", kubelet=options)
        pod(node, "default", "pinned", limits={"cpu": 1, "memory": "64Mi"})
        return node, node.resources_of("default", "pinned")

    node, resources = await asyncio.to_thread(story)
    request = podresources.GetPodResourcesRequest(pod_name="pinned", pod_namespace="default")
    answer = await call(
        node.pod_resources.socket, "/v1.PodResourcesLister/Get", request, podresources.GetPodResourcesResponse
    )
    container = answer.pod_resources.containers[0]
    assert set(container.cpu_ids) == members(resources["cpus"])
    numa = {cell.ID for memory in container.memory for cell in memory.topology.nodes}
    assert len(numa) == 1
    cpulist = node.run("cat", f"/sys/devices/system/node/node{numa.pop()}/cpulist")
    assert members(resources["cpus"]) <= members(cpulist)


@pytest.mark.node
def test_a_kubelet_that_does_not_take_its_options_fails_the_start_with_its_own_words(
    real_node: Node, node_factory: Callable[..., Node], tmp_path: Path
) -> None:
    options = KubeletOptions(cpu_manager_policy="static")
    with pytest.raises(NodeFailed, match=r"(?s)kubelet ended with status 1.*static.*reserved"):
        node_factory(real_node.plane, name="wrong", kubelet=options, work_dir=tmp_path)
    assert "containerd" in (tmp_path / "containerd.log").read_text()


def test_where_no_overlay_can_be_mounted_containerd_copies_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status, snapshotter in ((1, "native"), (0, "overlayfs")):
        (tmp_path / "unshare").write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / "unshare").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert programs.snapshotter(tmp_path) == snapshotter
        assert [path.name for path in tmp_path.iterdir()] == ["unshare"]


@pytest.mark.node
def test_nothing_of_a_node_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    script = """
import sys, time
from tools.controlplane.plane import Plane
from tools.node.node import Node
with Plane(controllers=False) as plane, Node(plane) as node:
    print(node.work_dir, *node.pids.values(), flush=True)
    time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as holder:
        assert holder.stdout
        folder, *pids = holder.stdout.readline().split()
        cgroups = list(Path("/sys/fs/cgroup").glob(f"**/{Path(folder).name}"))
        assert cgroups and Path(folder).exists() and pids
        holder.kill()
    left = [Path(folder), *cgroups, *(Path(f"/proc/{pid}") for pid in pids)]
    deadline = time.monotonic() + PATIENCE_S
    while remaining := [path for path in left if path.exists()]:
        assert time.monotonic() < deadline, remaining
        time.sleep(0.1)


@pytest.mark.slow
def test_a_machine_that_cannot_carry_a_node_skips_its_tests_and_states_what_it_lacks_even_in_ci(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("without root the missing commands are not reported")
    (tmp_path / "ls").symlink_to("/bin/ls")
    environment = os.environ | {"PATH": str(tmp_path), "CI": "true"}
    test = "tests/node/test_real_node.py::test_the_node_is_ready_and_has_two_numa_nodes"
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]
    printed = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout
    assert "1 skipped" in printed
    assert "REAL NODE TESTS DID NOT RUN" in printed
    assert "This machine lacks the commands unshare, nsenter, mount" in printed
