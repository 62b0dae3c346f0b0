# SPDX-License-Identifier: Apache-2.0
"""`dovetail nodes` as a user runs it: on files, and on a playground."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.cli.demo.objects import _GPU_NODES as DEFINITION
from dovetail.kube.api.lease import LEASE_LABEL, SCHEDULER_NAME
from dovetail.kube.translate.quarantine_budget import QUARANTINE_BUDGET
from dovetail.playground import Playground

AT = "2026-11-22T02:00:00Z"
HOSTILE = "[red]fallen[/red] off\x1b[31m the bus"


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "2"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": amounts}}


def gpu_node(name: str, *healths: dict[str, str], **status: Any) -> dict[str, Any]:
    gpus = [{"index": i, "uuid": f"GPU-{i}", "product": "H100", "health": each} for i, each in enumerate(healths)]
    head = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
    return {**head, "status": {"observedTime": AT, "gpus": gpus, **status}}


def lease(budget: str) -> dict[str, Any]:
    """That of a scheduler with this budget."""
    notes = {SCHEDULER_NAME: "dovetail", QUARANTINE_BUDGET: budget}
    head = {"name": "dovetail-scheduler", "namespace": "dovetail-system", "labels": LEASE_LABEL, "annotations": notes}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": head, "spec": {}}


OK = {"state": "healthy"}
BAD = {"state": "draining", "code": "xid-79", "reason": HOSTILE, "since": "2026-11-22T00:00:00Z", "next": "reboot"}
CLUSTER = [
    node("gpu-1"),
    node("gpu-2"),
    node("gpu-3"),
    gpu_node("gpu-1", OK, BAD, quarantine={"reason": "GPU-1: off the bus", "since": "2026-11-22T00:00:00Z"}),
    gpu_node("gpu-2", OK, OK),
    gpu_node("gpu-3", OK, BAD, quarantine={"reason": "GPU-1: no power", "since": "2026-11-22T01:00:00Z"}),
]


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(CLUSTER))
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["nodes", *arguments], env={"COLUMNS": "200"})


def test_the_table(cluster: str) -> None:
    result = run("-f", cluster, "--at", AT)
    assert result.exit_code == 0, result.output
    head, first, second, third, budget = result.stdout.splitlines()
    assert head.split()[:8] == ["node", "state", "GPUs", "used", "healthy", "degraded", "draining", "quarantined"]
    assert first.split()[:8] == ["gpu-1", "draining", "2", "0", "1", "0", "1", "0"]
    assert "2 h" in first and "GPU-1: off the bus" in first and "reboot (no pod is placed on it)" in first
    assert second.split()[:3] == ["gpu-2", "healthy", "2"]
    assert "reboot (it stays in use: beyond the budget)" in third
    assert "allows 1 quarantined node at a time" in budget
    assert "10% is assumed" in result.stderr


def test_the_budget_of_the_scheduler_can_be_set(cluster: str) -> None:
    result = run("-f", cluster, "--at", AT, "--quarantine-budget", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("no pod is placed on it") == 2
    assert "beyond the budget" not in result.stdout
    assert not result.stderr
    assert "neither a number" in run("-f", cluster, "--quarantine-budget", "most").stderr


def test_one_node_with_its_gpus_and_text_of_others_is_only_text(cluster: str) -> None:
    result = run("gpu-1", "-f", cluster, "--at", AT)
    assert "[red]fallen[/red] off [31m the bus" in result.stdout and "xid-79" in result.stdout
    assert "gpu-2" not in result.stdout


def test_filters_and_json(cluster: str) -> None:
    found = json.loads(run("--unhealthy", "-f", cluster, "--at", AT, "-o", "json").stdout)
    assert [(one["node"], one["state"], one["quarantine"]) for one in found] == [
        ("gpu-1", "draining", "in force"),
        ("gpu-3", "draining", "beyond the budget"),
    ]
    assert found[0]["devices"][1]["since_ms"] == found[0]["since_ms"] > 0
    assert json.loads(run("gpu-2", "--unhealthy", "-f", cluster, "-o", "json").stdout) == []
    result = run("gpu-9", "-f", cluster)
    assert result.exit_code == 1 and "no GPU node is called gpu-9" in result.stderr


async def test_a_live_cluster(tmp_path: Path) -> None:
    playground = Playground()
    await playground.start()
    try:
        home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dovetail-system"}}
        for document in (DEFINITION, home, *CLUSTER):
            playground.put(document)
        kubeconfig = str(playground.kubeconfig(tmp_path / "kubeconfig"))
        result = await asyncio.to_thread(run, "--kubeconfig", kubeconfig, "-o", "json")
        assert result.exit_code == 0, result.output
        assert [one["state"] for one in json.loads(result.stdout)] == ["draining", "healthy", "draining"]
        assert "10% is assumed" in result.stderr
        for budget, assumed in (("2", False), ("lots", True)):
            playground.put(lease(budget))
            result = await asyncio.to_thread(run, "--kubeconfig", kubeconfig, "-o", "json")
            states = [one["quarantine"] for one in json.loads(result.stdout)]
            assert states == ["in force", "", "beyond the budget" if assumed else "in force"]
            assert ("10% is assumed" in result.stderr) == assumed
    finally:
        await playground.stop()


BLOCKED = {
    "step": "agent",
    "reason": "ImagePullFailed",
    "message": f"the image {HOSTILE} cannot be pulled",
    "action": "Admin: check the image",
    "since": "2026-11-22T01:00:00Z",
    "evidence": {
        "kind": "Pod",
        "namespace": "dovetail-agent",
        "name": "agent-x",
        "container": "agent",
        "line": "not found",
    },
}
VALIDATED = {"key": "driver=1", "time": "2026-11-22T00:00:00Z", "chosen": "0", "given": "0"}
WALKED = [
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}, "status": {"allocatable": {"cpu": "8"}}},
    node("gpu-2"),
    {**gpu_node("gpu-1"), "status": {"readiness": BLOCKED}},
    gpu_node("gpu-2", OK, OK, readiness={"step": "ready", "validation": VALIDATED}),
]


def test_nodes_that_are_not_ready_have_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(WALKED))
    printed = run("-f", str(file), "--at", AT).stdout
    assert [line.split()[:2] for line in printed.splitlines()[1:3]] == [["gpu-1", "unknown"], ["gpu-2", "healthy"]]
    head, line = printed.splitlines()[-2:]
    assert head.startswith("not ready") and line.split()[:5] == ["gpu-1", "agent", "1", "h", "ImagePullFailed"]
    assert "[red]fallen[/red] off [31m the bus cannot be pulled" in line and "Admin: check the image" in line
    assert "gpu-2" not in run("--unhealthy", "-f", str(file), "--at", AT).stdout
    one = run("gpu-1", "-f", str(file), "--at", AT).stdout
    assert "Shown by Pod dovetail-agent/agent-x agent: not found" in one
    assert "Validated 2 h ago: chosen 0, allocated 0" in run("gpu-2", "-f", str(file), "--at", AT).stdout
    found = {one["node"]: one["readiness"] for one in json.loads(run("-f", str(file), "-o", "json").stdout)}
    assert (found["gpu-1"]["step"], found["gpu-1"]["line"]) == ("agent", "not found")
    assert (found["gpu-2"]["chosen"], found["gpu-2"]["allocated"], found["gpu-2"]["reason"]) == ("0", "0", "")
