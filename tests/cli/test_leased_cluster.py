# SPDX-License-Identifier: Apache-2.0
"""All commands that read a cluster, on one where agents lease GPUs from a scheduler: none shows an id of a placeholder,
and requests, leases and control planes have the names of their objects."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.scheduler.leased import LeasedCluster

PLACEHOLDER = re.compile(r"(?<![a-z])lease/[a-z]+/[a-z]+/|/0\.0\b|blocker")
"""The ids of placeholders and of their gangs."""
COMMANDS: Sequence[str] = (
    "leases",
    "leases ada",
    "jobs",
    "jobs --all",
    "queue --basis",
    "queue agents",
    "free",
    "free --shape 8x1",
    "share",
    "share agents --users --all",
    "priority bob/many",
    "priority default/job",
    "why ada/train",
    "why ada/works",
    "why bob/many",
    "why bob/half",
    "why default/job",
    "why default/other",
    "why agents",
    "why default",
    "nodes",
    "nodes a",
    "topology a",
    "top --once",
    "defrag default/job",
    "drain a b --evict --dry-run",
    "drain a --dry-run",
    "whatif drain a b",
    "whatif add-nodes --like a",
    "whatif quota agents --limit gpu=2",
    "doctor",
    "status",
    "snapshot",
)
LISTS = ("jobs", "queue", "nodes", "leases", "share", "free")
WITHOUT_JSON = ("nodes a", "snapshot")
JOB: dict[str, Any] = {"image": "i", "name": "m", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "8"}}}


def run(kubeconfig: str, command: str, *more: str) -> str:
    arguments = [*command.split(), "--kubeconfig", kubeconfig, *more]
    result = CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"})
    # 1 and 3: something is missing on such a cluster, such as exporters; never an error that was not expected.
    assert result.exit_code in (0, 1, 3) and (result.exception is None or isinstance(result.exception, SystemExit)), (
        command, result.output, result.exception,
    )  # fmt: skip
    assert not PLACEHOLDER.search(result.stderr), (command, result.stderr)
    return result.stdout


@pytest.mark.slow
async def test_no_command_shows_a_placeholder(tmp_path: Path) -> None:
    async with LeasedCluster.opened("ada", "bob") as cluster:
        kubeconfig = str(cluster.playground.kubeconfig(tmp_path / "kubeconfig"))
        async with cluster.scheduler(recording=tmp_path / "recording"):
            spec = await cluster.lease_of("ada", "train", {"count": 8, "perNode": 4, "duration": "30m"})
            await cluster.lease_of("bob", "half", {"gpuFraction": "0.5", "duration": "20m", "class": "Scavenger"})
            cluster.pod("ada", "works", 2, "train", spec["fence"])
            await cluster.until(lambda: cluster.node_of("ada", "works"))
            cluster.ask("bob", "many", {"count": 16, "perNode": 8, "duration": "1h"}, {"count": 2, "perNode": 2})
            await cluster.offered("bob", "many")
            for name in ("job", "other"):
                document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}}
                cluster.playground.put(document | {"spec": {"schedulerName": "dovetail", "containers": [JOB]}})
            await cluster.settled()
            for command in COMMANDS:
                shown = await asyncio.to_thread(run, kubeconfig, command)
                assert not PLACEHOLDER.search(shown), (command, shown)
                if command not in WITHOUT_JSON:
                    shown = await asyncio.to_thread(run, kubeconfig, command, "-o", "json")
                    assert not PLACEHOLDER.search(shown), (command, shown)
            for command in LISTS:
                for form in ("wide", "csv", "name"):
                    shown = await asyncio.to_thread(run, kubeconfig, command, "-o", form)
                    assert shown and not PLACEHOLDER.search(shown), (command, form, shown)
            jobs = json.loads(await asyncio.to_thread(run, kubeconfig, "jobs", "-o", "json"))["jobs"]
            assert {(one["job"], one["state"], one["queue"], one["lease"]) for one in jobs} == {
                ("ada/works", "Running", "planes/ada/ada", "ada/train"),
                ("default/job", "Waiting", "default", ""), ("default/other", "Waiting", "default", ""),
            }  # fmt: skip
            nodes = json.loads(await asyncio.to_thread(run, kubeconfig, "nodes", "-o", "json"))
            assert {"gpulease/ada/train", "ada/works"} <= {job for one in nodes for job in one["jobs"]}
            jobs = json.loads(await asyncio.to_thread(run, kubeconfig, "queue", "-o", "json"))["jobs"]
            assert {one["job"] for one in jobs} == {"bob/many", "default/job", "default/other"}
            queues = json.loads(await asyncio.to_thread(run, kubeconfig, "share", "-o", "json"))
            assert {"agents", "planes/ada/ada", "planes/bob/bob"} < {one["queue"] for one in queues}
            snapshot = tmp_path / "cluster.json"
            await asyncio.to_thread(run, kubeconfig, "snapshot", str(snapshot))
    for command in (*(one for one in COMMANDS if one.split()[0] in ("queue", "why", "free", "leases")), "simulate"):
        arguments = [*command.split(), *(() if command == "simulate" else ("-f",)), str(snapshot)]
        result = CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"})
        assert result.exit_code == 0 and not PLACEHOLDER.search(result.output), (command, result.output)
    replay(tmp_path / "recording")


def replay(recording: Path) -> None:
    """The recording replays to the same decisions; each of its steps is shown without placeholders."""
    result = CliRunner().invoke(cli, ["replay", str(recording), "-o", "json"])
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.output)["runs"]
    assert run["verdict"] == "equal"
    shown = ""
    for step in range(1, run["steps"] + 1):
        result = CliRunner().invoke(cli, ["replay", str(recording), "--decision", f"{run['run']}-{step}"])
        assert result.exit_code == 0, result.output
        shown += result.output
    assert not PLACEHOLDER.search(shown), shown
    for text in (
        "LeaseRequestChanged ada/train",
        "PlaneChanged ada/ada",
        "grant ada/train to ada/ada",
        "offer bob/many",
    ):
        assert text in shown, (text, shown)
