# SPDX-License-Identifier: Apache-2.0
"""What `dovetail fabric import` writes is applied, and what a later import no longer has is removed; what `dovetail
fabric measure` finds is marked, and used last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.fabric import measurement
from dovetail.kube.api.config import load_config
from dovetail.kube.fabric_changes import write_measured
from dovetail.topology.fabric_measured import SlowResult
from tests.live.conftest import Cluster, eventually
from tests.live.log_kubelet import LogKubelet
from tests.paths import ROOT
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane
NODE = "fabric-labels"


def test_labels_are_set_and_taken_away(plane: Plane, tmp_path: Path) -> None:
    plane.kubectl(
        "create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    )
    try:
        nodes = tmp_path / "nodes.json"
        nodes.write_text(plane.kubectl("get", "nodes", "-o", "json"))
        for header, row in (("block,rack", "b,r"), ("rack", "r2")):
            table = tmp_path / "racks.csv"
            table.write_text(f"node,{header}\n{NODE},{row}\n")
            made = CliRunner().invoke(cli, ["fabric", "import", str(table), "--nodes", str(nodes), "-o", "yaml"])
            plane.kubectl("apply", "--server-side", "--field-manager=dovetail-fabric", "-f", "-", input=made.stdout)
        labels = json.loads(plane.kubectl("get", "node", NODE, "-o", "json"))["metadata"]["labels"]
        assert {key: value for key, value in labels.items() if "dovetail" in key} == {"dovetail.dev/rack": "r2"}
    finally:
        plane.kubectl("delete", "node", NODE)


def test_an_import_writes_labels_and_fabric_and_leaves_those_of_others(plane: Plane, tmp_path: Path) -> None:
    names = [f"{NODE}-{i}" for i in range(3)]
    table = tmp_path / "racks.csv"

    def imported(text: str, *more: str) -> str:
        table.write_text(text)
        on = ("--kubeconfig", str(plane.kubeconfig))
        made = CliRunner().invoke(cli, ["fabric", "import", str(table), "--apply", *on, *more])
        return made.stdout + made.stderr

    def racks() -> list[str]:
        found = json.loads(plane.kubectl("get", "nodes", *names, "-o", "json"))["items"]
        return [one["metadata"].get("labels", {}).get("dovetail.dev/rack", "") for one in found]

    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/crds/fabric.yaml"))
    plane.kubectl("wait", "--for=condition=Established", "crd/fabrics.dovetail.dev", "--timeout=60s")
    try:
        for name in names:
            # The server writes down no manager of an object in which nobody ever set a field.
            meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            plane.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": meta}))
        both = f"node,rack\n{names[0]},a\n{names[1]},b\n"
        assert "labels of 2 nodes would be written" in imported(both, "--dry-run")
        assert racks() == ["", "", ""]
        assert "labels of 2 nodes written" in imported(both)
        assert racks() == ["a", "b", ""]
        plane.kubectl("label", "node", names[2], "dovetail.dev/rack=by-hand")
        assert "1 nodes have labels of another writer" in imported(f"{both}{names[2]},c\n")
        assert racks() == ["a", "b", "by-hand"]
        assert "1 node without them now" in imported(f"node,rack\n{names[0]},z\n")
        assert racks() == ["z", "", "by-hand"]
        status = json.loads(plane.kubectl("get", "fabric", "cluster", "-o", "json"))["status"]
        writers = {one["manager"]: one["nodes"] for one in status["labels"] if one["key"] == "dovetail.dev/rack"}
        assert writers == {"dovetail-fabric": 1, "kubectl-label": 1}
        assert [one["name"] for one in status["sources"]] == [str(table), "cluster"]
        assert all(one["since"].endswith("Z") for one in status["labels"])
    finally:
        plane.kubectl("delete", "node", *names, "--ignore-not-found")
        plane.kubectl("delete", "fabrics", "--all")


async def test_measurements_that_end_at_the_same_time_all_count(plane: Plane) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/crds/fabric.yaml"))
    plane.kubectl("wait", "--for=condition=Established", "crd/fabrics.dovetail.dev", "--timeout=60s")
    config = load_config(str(plane.kubeconfig))

    async def measured(name: str) -> None:
        def status_after(before: Mapping[str, Any]) -> dict[str, Any]:
            return measurement.status_of_results(
                [], [SlowResult("", name, 40, 100)], timedelta(days=7), "i", before, datetime.now(UTC)
            )

        await write_measured(config, status_after)

    try:
        await asyncio.gather(*map(measured, ("n0", "n1", "n2", "n3")))
        status = json.loads(plane.kubectl("get", "fabrics.dovetail.dev", "cluster", "-o", "json"))["status"]
        assert {one["name"] for one in status["slow"]} == {"n0", "n1", "n2", "n3"}
    finally:
        plane.kubectl("delete", "fabrics.dovetail.dev", "--all")


@pytest.mark.parametrize("cluster", [pytest.param("plane", marks=pytest.mark.plane)], indirect=True)
async def test_a_slow_node_is_measured_on_a_real_server_marked_and_used_last(
    cluster: Cluster, deployed_plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "EVERY_S", 0.1)
    rack = {"dovetail.dev/rack": f"{cluster.name}-a"}
    nodes = [await cluster.node(name, labels=rack) for name in ("n0", "n1", "n2")]

    def table(pod: dict[str, Any]) -> str:
        rate = 40 if nodes[1] in json.dumps(pod["spec"]["affinity"]) else 100
        return f"# size count type redop root time algbw busbw #wrong\n1073741824 268435456 float sum -1 1 1 {rate} 0\n"

    kubelet = LogKubelet(cluster, table)
    on = ("--kubeconfig", str(deployed_plane.kubeconfig), "--namespace", cluster.namespace)
    chosen = ("--nodes", ",".join(nodes), "--level", "dovetail.dev/rack")
    asked = [
        "fabric",
        "measure",
        *on,
        *chosen,
        "--image",
        "registry.example/nccl:1",
        "--write",
        "--",
        "all_reduce_perf",
    ]
    try:
        async with cluster.scheduler(), kubelet.serving(*deployed_plane.serving_certificate("127.0.0.1")):
            for node in nodes:
                await kubelet.takes(node)
            made = await asyncio.to_thread(CliRunner().invoke, cli, asked)
            assert made.exit_code == 1, made.output
            slow = f"slow: {nodes[1]}: 40.0 GB/s of 100.0 GB/s"
            assert made.stdout.splitlines()[-2:] == [slow, "3 groups measured; 1 slow"]
            jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
            await eventually(lambda: cluster.get(jobs), lambda found: not found["items"])
            status = (await cluster.get("/apis/dovetail.dev/v1alpha1/fabrics/cluster"))["status"]
            assert [(one["name"], one["measuredMBps"]) for one in status["slow"]] == [(nodes[1], 40_000)]
            # A gang of two pods uses it last.
            await cluster.pod_group("train", 2)
            for name in ("a", "b"):
                await cluster.pod(name, 8, schedulingGroup={"podGroupName": "train"})
            bound = await eventually(cluster.bound, lambda found: {"a", "b"} <= found.keys())
            assert {bound["a"], bound["b"]} == {nodes[0], nodes[2]}
    finally:
        for node in nodes:
            await cluster.delete(f"/api/v1/nodes/{node}")
        await cluster.delete("/apis/dovetail.dev/v1alpha1/fabrics/cluster")
