# SPDX-License-Identifier: Apache-2.0
"""`dovetail drain` as a user runs it: on files, and on a playground."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.cli import drain as module
from dovetail.cli.demo.objects import _GPU_NODES as DEFINITION
from dovetail.kube import maintenances
from dovetail.playground import Playground

AT = "2026-11-22T02:00:00Z"
HOSTILE = "[red]reboot[/red]"


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": amounts}}


def pod(name: str, where: str, *, scheduler: str = "dovetail", gpus: int = 4, **meta: Any) -> dict[str, Any]:
    limits = {"cpu": "1", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-a", "uid": f"uid-{name}", **meta},
        "spec": {
            "schedulerName": scheduler, "nodeName": where,
            "containers": [{"name": "main", "image": "train", "resources": {"limits": limits, "requests": limits}}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-22T01:00:00Z"}],
        },
    }  # fmt: skip


HOURS_3 = {"annotations": {"dovetail.dev/max-runtime": "3h"}}
OWNED = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]
}
CLUSTER = [
    node("gpu-1"),
    node("gpu-2"),
    pod("train", "gpu-1", **HOURS_3),
    pod("notebook", "gpu-2"),
    pod("exporter", "gpu-1", scheduler="default-scheduler", gpus=0, **OWNED),
]


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(CLUSTER))
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["drain", *arguments], env={"COLUMNS": "200"})


def test_the_dry_run_on_a_file(cluster: str) -> None:
    result = run("gpu-1", "-f", cluster, "--at", AT, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "team-a/train" in result.stdout and "notebook" not in result.stdout
    assert "1 pod of 1 job (team-a/train) in 1 queue; 0 GPU-minutes of work are lost." in result.stdout
    assert "gpu-1 is empty in 2 h, at 2026-11-22T04:00:00Z: when team-a/train ends." in result.stdout
    assert "Left alone: 1 pod of other schedulers" in result.stdout and "Nothing was written" in result.stdout


def test_a_pod_without_a_known_end_and_what_helps(cluster: str) -> None:
    result = run("gpu-2", "-f", cluster, "--at", AT, "--dry-run")
    assert "gpu-2: it is not known when team-a/notebook will leave." in result.stdout
    assert "--wait-checkpoint moves pods that save their work" in result.stdout
    result = run("gpu-2", "-f", cluster, "--at", AT, "--dry-run", "--evict", "-o", "json")
    [found] = json.loads(result.stdout)["nodes"]
    assert [(one["pod"], one["what"], one["lost_gpu_minutes"]) for one in found["pods"]] == [
        ("team-a/notebook", "is evicted", 240)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu-3", "--dry-run"], "no node is called gpu-3; did you mean gpu-"),
        (["gpu-1"], "--file needs --dry-run"),
        (["gpu-1", "--dry-run", "--evict", "--wait-checkpoint"], "exclude each other"),
        (["gpu-1", "--undo", "--evict"], "--undo goes with no option"),
        (["gpu-1", "--dry-run", "--start", "2026-11-22T01:00:00Z"], "--start is in the past"),
        (["gpu-1", "--dry-run", "--start", "tomorrow"], "is not a time such as"),
    ],
)
def test_bad_input(cluster: str, arguments: list[str], message: str) -> None:
    result = run(*arguments, "-f", cluster, "--at", AT)
    assert result.exit_code != 0 and message in result.output


async def test_it_writes_waits_and_ends_on_a_playground(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    playground = Playground(start_delay_s=0.01, stop_delay_s=0.01)
    await playground.start()
    for document in (DEFINITION, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}, *CLUSTER):
        playground.put(document)
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": playground.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": [{"name": "u"}], "current-context": "c"})
    )
    monkeypatch.setattr(module, "_user", lambda: "user/ada")
    monkeypatch.setattr(module, "_EVERY_S", 0.05)

    seen, wait = threading.Event(), maintenances.wait_until_empty

    async def watched(config: Any, nodes: Any, scheduler: str, shown: Callable[[Any], None], every_s: float) -> None:
        def both(left: Any) -> None:
            shown(left)
            seen.set()

        await wait(config, nodes, scheduler, both, every_s)

    monkeypatch.setattr(maintenances, "wait_until_empty", watched)

    def maintenance(name: str = "gpu-1") -> dict[str, Any]:
        found = playground.store.get("gpunodes.dovetail.dev", "", name) or {}
        asked: dict[str, Any] = found.get("spec", {}).get("maintenance") or {}
        return asked

    async def drain(*arguments: str) -> Result:
        return await asyncio.to_thread(run, *arguments, "--kubeconfig", str(config))

    waiting = asyncio.create_task(drain("gpu-1", "--reason", HOSTILE, "--start", "2099-01-01T00:00:00Z"))
    async with asyncio.timeout(30):
        while not maintenance():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
    asked = maintenance()
    assert (asked["by"], asked["reason"], asked["drain"], asked["start"]) == (
        "user/ada", HOSTILE, "WaitForJobs", "2099-01-01T00:00:00Z",
    )  # fmt: skip
    owner = (playground.store.get("gpunodes.dovetail.dev", "", "gpu-1") or {})["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Node", "gpu-1")
    assert await asyncio.to_thread(seen.wait, 30)
    playground.delete("pods", "team-a", "train")
    result = await waiting
    assert result.exit_code == 0 and "gpu-1: 1 pod left: team-a/train" in result.stderr, result.output
    assert result.stderr.rstrip().endswith("gpu-1: empty")

    monkeypatch.setattr(module, "_user", lambda: "user/ben")
    result = await drain("gpu-1", "--no-wait")
    assert result.exit_code == 1 and "in maintenance already, by user/ada ([red]reboot[/red])" in result.output
    result = await drain("gpu-1", "gpu-2", "--undo")
    assert result.stdout.splitlines() == ["gpu-1: in use again", "gpu-2: was not in maintenance"]
    assert not maintenance()

    result = await drain("gpu-2", "--wait-checkpoint", "--no-wait")
    assert result.exit_code == 0 and maintenance("gpu-2")["drain"] == "WaitForCheckpoint"
    # Without nulls, which the definition refuses.
    assert set(maintenance("gpu-2")) == {"id", "by", "drain", "requested"}
    found = playground.store.get("gpunodes.dovetail.dev", "", "gpu-2") or {}
    rollout = found["spec"]["maintenance"] | {"by": "rollout/gpus"}
    kind = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode"}
    playground.put(kind | found | {"spec": {"maintenance": rollout}})
    result = await drain("gpu-2", "--undo")
    assert result.exit_code == 1 and "pause the rollout (spec.upgrade.paused of GPUStack gpus)" in result.output
    await playground.stop()


async def test_a_cluster_without_gpu_nodes_is_reported(tmp_path: Path) -> None:
    playground = Playground()
    await playground.start()
    playground.put(node("gpu-1"))
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": playground.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": [{"name": "u"}], "current-context": "c"})
    )
    result = await asyncio.to_thread(run, "gpu-1", "--kubeconfig", str(config))
    assert result.exit_code == 1 and "the cluster has no GPUNodes" in result.output
    await playground.stop()
