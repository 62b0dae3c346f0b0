# SPDX-License-Identifier: Apache-2.0
"""`dovetail topology NODE` on a playground: the wiring and its source, the kubelet, the pods, the file for NCCL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec.structs import fields

from dovetail.cli import cli
from dovetail.playground import Playground
from dovetail.topology import nccl_xml
from dovetail.views.topology_types import NodeInside, PodGpus, Policies
from tests.bound import bound
from tests.docs.pages import page
from tests.paths import ROOT

DEFINITION = yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text())
Document = dict[str, Any]
STATUS: Document = {
    "observedTime": "2026-01-31T12:00:00Z",
    "gpus": [
        {"index": i, "uuid": f"GPU-{i}", "product": "NVIDIA A100 80GB PCIe", "numaNode": i // 2, "pciBusId": bus_id}
        for i, bus_id in enumerate(("0000:19:00.0", "0000:1A:00.0", "00000000:B3:00.0", "0000:b4:00.0"))
    ],
    "pcieLevels": [
        ["X", "PIX", "SYS", "SYS"],
        ["PIX", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "NODE"],
        ["SYS", "SYS", "NODE", "X"],
    ],
    "nvlinks": [[0, 12, 0, 0], [12, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    "nics": [
        {"name": "mlx5_0", "numaNode": 0, "speedMBps": 25000, "rdma": True, "levels": ["PXB", "PXB", "SYS", "SYS"]}
    ],
    "kubelet": {
        "version": "v1.36.2",
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": "pod",
        "memoryManagerPolicy": "None",
        "numaNodes": [{"id": 0}, {"id": 1}],
        "devices": [
            {"resource": "nvidia.com/gpu", "devices": [{"id": f"GPU-{i}", "numaNodes": [i // 2]} for i in range(4)]}
        ],
    },
}  # fmt: skip


class World:
    def __init__(self, playground: Playground, kubeconfig: Path) -> None:
        self.playground = playground
        self.kubeconfig = kubeconfig

    def node(self, name: str, gpus: int = 4, **labels: str) -> None:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        meta = {"name": name, "labels": {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}}
        self.playground.put({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": amounts}})

    def reported(self, name: str, status: Document) -> None:
        self.playground.put(DEFINITION)
        document = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
        self.playground.put(document | {"status": status})

    def pod(self, name: str, gpus: int, node: str = "gpu-1", devices: str = "") -> None:
        limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
        spec: Document = {
            "schedulerName": "dovetail",
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
        }
        meta = {"name": name, "namespace": "default"}
        spec |= {"nodeName": node} if node else {}
        kind = {"apiVersion": "v1", "kind": "Pod"}
        made = self.playground.put(kind | {"metadata": meta, "spec": spec})
        if node:
            written = {"annotations": bound(made["metadata"]["uid"], devices)}
            self.playground.put(kind | made | {"metadata": made["metadata"] | written})

    async def run(self, *arguments: str, command: str = "topology") -> Result:
        where = ["--kubeconfig", str(self.kubeconfig)]
        return await asyncio.to_thread(CliRunner().invoke, cli, [command, *arguments, *where])

    async def answer(self, *arguments: str, command: str = "topology") -> Document:
        result = await self.run(*arguments, "-o", "json", command=command)
        assert result.exit_code == 0, result.output
        found: Document = json.loads(result.stdout)
        return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    playground = Playground()
    await playground.start()
    world = World(playground, playground.kubeconfig(tmp_path / "kubeconfig"))
    world.node("gpu-1")
    yield world
    await playground.stop()


async def test_what_a_gpunode_reports_and_the_holders(world: World) -> None:
    world.reported("gpu-1", STATUS)
    world.pod("train", 2, devices="0,1")
    world.pod("unnamed", 1)
    world.pod("elsewhere", 1, node="")
    found = await world.answer("gpu-1")
    assert (found["node"], found["gpus"], found["free"], found["findings"]) == ("gpu-1", 4, 1, [])
    assert (found["topology"]["source"], found["topology"]["assumed"]) == ("GPUNode", False)
    assert found["topology"]["nvlinks"][0] == [0, 12, 0, 0]
    assert found["policies"] == {
        "topology_manager": "restricted", "topology_manager_scope": "pod", "cpu_manager": None,
        "cpu_manager_options": [], "memory_manager": "None",
    }  # fmt: skip
    assert found["pods"] == [
        {"pod": "default/train", "count": 2, "gpus": [0, 1], "mbps": 240_000, "ideal_mbps": 240_000},
        {"pod": "default/unnamed", "count": 1, "gpus": None, "mbps": None, "ideal_mbps": None},
    ]
    printed = " ".join((await world.run("gpu-1")).stdout.split())
    assert (
        "Node gpu-1 offers 4 GPUs, 1 free. Policies of its kubelet's managers: topology restricted per pod, CPU not"
        in printed
    )
    assert "default/train 2 0,1 240.0 240.0" in printed
    assert "default/unnamed 1 not known" in printed
    assert "from GPUNode." in printed


async def test_labels_are_called_an_assumption(world: World) -> None:
    world.node("gpu-1", 8, product="NVIDIA-H100-80GB-HBM3", count="8")
    found = await world.answer("gpu-1")
    assert (found["topology"]["source"], found["topology"]["assumed"]) == ("labels of the node", True)
    assert "the wiring is the usual one" in found["topology"]["notes"][0]
    assert all(not policy for policy in found["policies"].values())
    assert "topology not known, CPU not known, memory not known" in " ".join((await world.run("gpu-1")).stdout.split())


async def test_nothing_is_reported_and_findings_are(world: World, tmp_path: Path) -> None:
    world.pod("train", 2, devices="0,1")
    found = await world.answer("gpu-1")
    assert (found["topology"], found["pods"][0]["gpus"], found["pods"][0]["mbps"]) == (None, [0, 1], None)
    assert "only their number counts" in (await world.run("gpu-1")).stdout
    assert "nothing to draw" in (await world.run("gpu-1", "--plot", str(tmp_path / "a.png"))).stderr
    status = deepcopy(STATUS)
    status["nvlinks"][0][1] = 11
    world.reported("gpu-1", status)
    world.pod("odd", 1, devices="9,9")
    findings = (await world.answer("gpu-1"))["findings"]
    assert "GPUNode gpu-1: status.nvlinks[0][1]: is 11 one way and 12 the other" in findings
    assert any(
        "Pod default/odd: metadata.annotations[dovetail.dev/bound].devices: '9,9'" in finding for finding in findings
    )


async def test_a_file_wins_and_neither_is_one_clear_line(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpu-1").write_text(" GPU0 CPU Affinity NUMA Affinity\nGPU0 X 0-7 0\n")
    with monkeypatch.context() as inside:
        inside.chdir(tmp_path)
        own = await asyncio.to_thread(CliRunner().invoke, cli, ["topology", "gpu-1", "-o", "json"])
        assert json.loads(own.stdout)["source"] == "nvidia-smi topo -m"
        assert "--kubeconfig needs a NODE" in (await world.run("gpu-1")).stderr
    result = await world.run("gpu")
    assert result.exit_code == 1
    assert result.stderr == "Error: gpu: not a file, and no node is called gpu; did you mean gpu-1?\n"
    assert "not a valid name of a node" in (await world.run("Gpu_1.txt")).stderr
    world.kubeconfig.write_text("{}")
    assert "gpu-1: not a file, and " in (await world.run("gpu-1")).stderr


async def test_a_picture_of_a_node(world: World, tmp_path: Path) -> None:
    world.reported("gpu-1", STATUS)
    picture = tmp_path / "a.png"
    assert (await world.run("gpu-1", "--plot", str(picture))).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


async def test_the_xml_for_nccl_has_the_node_s_own_names(world: World, tmp_path: Path) -> None:
    world.reported("gpu-1", STATUS)
    path = tmp_path / "topo.xml"
    result = await world.run("gpu-1", "--nccl", str(path))
    assert result.exit_code == 0, result.output
    assert f"written: {path}" in result.stderr.replace("\n", "")
    tree = ElementTree.parse(path)
    devices = {gpu.get("dev"): pci.get("busid") for pci in tree.iter("pci") for gpu in pci.findall("gpu")}
    assert devices == {"0": "0000:19:00.0", "1": "0000:1a:00.0", "2": "0000:b3:00.0", "3": "0000:b4:00.0"}
    assert [net.get("name") for net in tree.iter("net")] == ["mlx5_0"]
    layout = nccl_xml.read(path.read_text(), None).layout
    assert (layout.numa, layout.nvlinks[0]) == ((0, 0, 1, 1), (0, 12, 0, 0))
    assert [nic.levels for nic in layout.nics] == [(2, 2, 5, 5)]


async def test_the_xml_of_a_pod_has_its_gpus_alone_and_counts_them_anew(world: World, tmp_path: Path) -> None:
    world.reported("gpu-1", STATUS)
    world.pod("train", 2, devices="1,3")
    path = tmp_path / "topo.xml"
    result = await world.run("gpu-1", "--nccl", str(path), "--pod", "train")
    assert result.exit_code == 0, result.output
    tree = ElementTree.parse(path)
    devices = {gpu.get("dev"): pci.get("busid") for pci in tree.iter("pci") for gpu in pci.findall("gpu")}
    assert devices == {"0": "0000:1a:00.0", "1": "0000:b4:00.0"}
    layout = nccl_xml.read(path.read_text(), None).layout
    assert (layout.numa, layout.nvlinks) == ((0, 1), ((0, 0), (0, 0)))


async def test_why_no_xml_is_written(world: World, tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    world.pod("unnamed", 1)
    world.pod("waits", 1, node="")
    assert "no GPUNode reports" in (await world.run("gpu-1", "--nccl", str(path))).stderr
    world.reported("gpu-1", STATUS)
    for pod, why in (
        ("unnamed", "it is not known which GPUs"),
        ("waits", "is not on gpu-1: it waits"),
        ("x/y", "does not exist"),
    ):
        assert why in (await world.run("gpu-1", "--nccl", str(path), "--pod", pod)).stderr
    for change, why in (
        ({"gpus": [gpu | {"pciBusId": ""} for gpu in STATUS["gpus"]]}, "status.gpus[0].pciBusId: is missing"),
        ({"rates": {"pcieMBps": 23_999}}, "pcie_mbps: 23999 is no PCIe rate"),
    ):
        world.reported("gpu-1", STATUS | change)
        assert why in (await world.run("gpu-1", "--nccl", str(path))).stderr
    del (status := deepcopy(STATUS))["nvlinks"]
    world.reported("gpu-1", status)
    assert "was assumed, and NCCL would take it for true" in (await world.run("gpu-1", "--nccl", str(path))).stderr
    assert "--pod needs --nccl" in (await world.run("gpu-1", "--pod", "train")).stderr
    assert "--product needs a FILE" in (await world.run("gpu-1", "--product", "A100")).stderr
    assert not path.exists()


async def test_why_names_the_gpus_of_a_bound_pod_and_of_one_that_goes_there(world: World) -> None:
    world.reported("gpu-1", STATUS)
    world.pod("train", 2, devices="0,1")
    world.pod("next", 2, node="")
    for pod, gpus, mbps, words in (
        ("train", [0, 1], 240_000, "is on node gpu-1 with GPUs 0,1: 240.0 of 240.0 GB/s between them."),
        ("next", [2, 3], 20_000, "binds it to node gpu-1 with GPUs 2,3: 20.0 of 240.0 GB/s between them."),
    ):
        found = await world.answer(pod, command="why")
        assert (found["gpus"], found["mbps"], found["ideal_mbps"]) == (gpus, mbps, 240_000)
        assert words in " ".join((await world.run(pod, command="why")).stdout.split())


async def test_the_reference_names_the_fields(world: World) -> None:
    own = page("docs/reference/cli.md").section("dovetail topology")
    assert [row.code[0][0] for row in own.rows("field of a node")] == [field.name for field in fields(NodeInside)]
    for name, kind in (("policies", Policies), ("pods", PodGpus)):
        (row,) = [row for row in own.rows("field of a node") if row.code[0] == [name]]
        assert [span for span in row.code[1] if span in {f.name for f in fields(kind)}] == [
            f.name for f in fields(kind)
        ]
