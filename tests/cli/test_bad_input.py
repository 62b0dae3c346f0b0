# SPDX-License-Identifier: Apache-2.0
"""What a user gets where something is missing or wrong: one line that names it, and never a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from benchmarks.start_speed import AT, COMMAND
from dovetail.cli import CLOSED_PIPE, cli, main
from dovetail.playground import Fault
from tests.cli.clusters import CommandCluster, command_cluster, node
from tests.cli.listed_jobs import GPU, pod
from tests.patience import PATIENCE_S
from tests.piped import piped

LOOKING = [
    ("jobs",), ("jobs", "--all"), ("queue",), ("nodes",), ("share",), ("free",), ("leases",), ("why", "train"),
    ("priority", "train"), ("whatif", "drain", "gpu-1"), ("defrag", "train"),
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandCluster]:
    """Without a scheduler; the pod train is in two namespaces."""
    waiting = [pod("train", {GPU: "16"}) for _ in range(2)]
    for one, namespace in zip(waiting, ("team-a", "ml"), strict=True):
        one["metadata"]["namespace"] = namespace
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    with command_cluster(tmp_path_factory.mktemp("cluster"), node("gpu-1"), space, *waiting) as found:
        yield found


def clean(result: Result) -> Result:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def forbidding(cluster: CommandCluster, resource: str, group: str = "") -> Fault:
    wanted = f'cannot list resource "{resource}" in API group "{group}" at the cluster scope'
    message = f'{resource} is forbidden: User "ada" {wanted}'
    fault = Fault("answer", "GET", resource, times=1_000, status=403, message=message)
    cluster.do(lambda: cluster.playground.faults.add(fault))
    return fault


@pytest.mark.slow
@pytest.mark.parametrize("resource", ["pods", "nodes", "queues"])
def test_no_right_and_half_a_right(cluster: CommandCluster, resource: str) -> None:
    """The missing right is named; the others are of no use without it."""
    forbidding(cluster, resource, "dovetail.dev" if resource == "queues" else "")
    try:
        for command in LOOKING:
            result = clean(cluster.run(*command))
            assert result.exit_code == 1, (command, result.output)
            *notes, error = result.stderr.splitlines()
            assert error.startswith("Error: ") and f"user ada has no right to list {resource}" in error, result.stderr
            assert all(note.startswith("note: the API server has no views") for note in notes) and result.stdout == ""
    finally:
        cluster.do(cluster.playground.faults.clear)


@pytest.mark.slow
def test_without_a_scheduler_the_commands_that_look_answer(cluster: CommandCluster) -> None:
    for command in LOOKING:
        result = clean(cluster.run(*command))
        assert result.exit_code in (0, 1) and "Traceback" not in result.output, result.output
    assert "NoNodeFits" in cluster.run("why", "train").stdout


def test_names_in_two_namespaces(cluster: CommandCluster) -> None:
    """A command about one job takes that of its namespace; a list has both."""
    assert cluster.run("jobs", "train", "-o", "name").stdout.splitlines() == ["ml/train", "team-a/train"]
    assert cluster.run("jobs", "train", "-n", "ml", "-o", "name").stdout == "ml/train\n"
    for arguments, job in (
        (("train",), "team-a/train"),
        (("-n", "ml", "train"), "ml/train"),
        (("ml/train",), "ml/train"),
    ):
        answer: dict[str, Any] = json.loads(cluster.run("why", *arguments, "-o", "json").stdout)
        assert (answer["job"], answer["others"]) == (job, 0)
    both = clean(cluster.run("why", "ml/train", "-n", "team-a"))
    assert both.exit_code == 2 and "has the namespace 'ml', --namespace is 'team-a'" in both.stderr


@pytest.mark.parametrize("at", ["2026-11-22T08:00:00Z", "2036-11-22T12:00:00Z"])
def test_a_clock_that_is_off(tmp_path: Path, at: str) -> None:
    """Pods that were made and started later than now, or ten years ago: no time is negative."""
    file = tmp_path / "cluster.yaml"
    documents = [node("g1"), pod("runs", {GPU: "4"}, "g1", "2h"), pod("waits", {GPU: "8"})]
    file.write_text(yaml.safe_dump_all(documents))
    for command in (("jobs",), ("queue", "--basis"), ("why", "ml/waits"), ("why", "ml/runs"), ("share",), ("free",)):
        result = clean(CliRunner().invoke(cli, [*command, "-f", str(file), "--at", at], env={"COLUMNS": "200"}))
        assert result.exit_code == 0 and not re.search(r"-\d+ (s|min|h|d)\b", result.stdout), result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_pipe_that_nothing_reads(form: str) -> None:
    """As of `| true`: no traceback, no message, and the exit code of a process that SIGPIPE ends."""
    for words in (("queue", *AT), ("why", "product/batch-0", *AT), ("free", *AT), ("nodes", *AT), ("instances",)):
        read_end, write_end = os.pipe()
        os.close(read_end)
        # The first is no fork: an interpreter that ends writes what is left.
        argv = [*COMMAND, *words, "-o", form] if words[0] == "queue" else piped(main, *words, "-o", form)
        done = subprocess.run(argv, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
        os.close(write_end)
        assert (done.returncode, done.stderr) == (CLOSED_PIPE, ""), words
