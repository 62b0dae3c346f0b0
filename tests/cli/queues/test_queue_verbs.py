# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue create`, `stop`, `resume` and `drain` as a user runs them, beside a scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dovetail.cli import wait_report
from dovetail.kube import queue_changes
from dovetail.playground import Fault
from tests.cli.clusters import CommandCluster, command_cluster, node
from tests.paths import ROOT
from tests.patience import PATIENCE_S

IMAGE = ("--image", "registry.example/train:1.4")
TEAMS = str(ROOT / "docs/examples/two-teams.yaml")
AT = ("--at", "2026-11-22T12:00:00Z")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_report, "EVERY_S", 0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CommandCluster]:
    with command_cluster(tmp_path, node("gpu-1"), node("gpu-2"), scheduler=True) as found:
        yield found


def create(cluster: CommandCluster, name: str, *more: str) -> None:
    result = cluster.run("queue", "create", name, *more)
    assert result.exit_code == 0, result.output


def start(cluster: CommandCluster, name: str, queue: str, *more: str) -> None:
    assert cluster.run("run", name, *IMAGE, "--gpus", "8", "-q", queue, *more).exit_code == 0


def until(cluster: CommandCluster, name: str, *phases: str) -> None:
    cluster.eventually(lambda: cluster.phases(name), lambda found: found == sorted(phases))


def code(cluster: CommandCluster, job: str) -> str:
    return str(json.loads(cluster.run("why", job, "-o", "json").stdout)["code"])


# create


def test_a_queue_is_created_as_it_was_asked_for(cluster: CommandCluster) -> None:
    create(cluster, "research", "--guarantee", "gpu=16", "--weight", "2")
    result = cluster.run(
        "queue", "create", "vision", "--parent", "research", "--guarantee", "gpu/NVIDIA-H100-80GB-HBM3=8", "--limit",
        "gpu=12", "--limit", "memory=2Ti", "--priority", "3", "--allow", "team-a", "--by-user",
    )  # fmt: skip
    assert (result.exit_code, result.output) == (0, "Queue vision created below research.\n")
    found = cluster.get("queues.dovetail.dev", "vision", "")
    assert found is not None
    spec = {key: value for key, value in found["spec"].items() if key not in ("weight", "preemptible", "stop")}
    assert {key: spec[key] for key in ("parent", "guarantee", "limit", "priority", "namespaces", "byUser")} == {
        "parent": "research", "guarantee": {"models": {"NVIDIA-H100-80GB-HBM3": "8"}},
        "limit": {"gpu": "12", "memory": "2Ti"}, "priority": 3, "namespaces": {"names": ["team-a"]}, "byUser": True,
    }  # fmt: skip
    row = cluster.run("share", "research").stdout
    assert "research  16" in row and "  vision" in row


def test_the_dry_run_prints_the_object_and_needs_no_cluster(cluster: CommandCluster) -> None:
    result = cluster.run(
        "queue", "create", "x", "--guarantee", "gpu=0.5", "--dry-run", "--kubeconfig", str(cluster.config)
    )
    assert yaml.safe_load(result.stdout) == {
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "x"},
        "spec": {"guarantee": {"gpu": "0.5"}},
    }  # fmt: skip
    assert cluster.names("queues.dovetail.dev") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'NAME'"),
        (["Research"], "'Research' is no name of a queue"),
        (["x" * 64], "is no name of a queue"),
        (["x", "--guarantee", "gpu"], "'gpu' must be CLASS=AMOUNT"),
        (["x", "--guarantee", "gpus=1"], "'gpus' is not a resource class; did you mean gpu?"),
        (["x", "--guarantee", "gpu=-1"], "is negative"),
        (["x", "--guarantee", "gpu=8", "--limit", "gpu=4"], "the guarantee of gpu is above its limit"),
        (["x", "--parent", "x"], "a queue cannot be part of itself"),
        (["x", "--parent", "resarch"], "queue resarch does not exist; did you mean research?; there are research"),
        (["x", "--weight", "0"], "0 is not in the range"),
        (["research"], "queue research exists already"),
    ],
)
def test_bad_input_creates_nothing(cluster: CommandCluster, arguments: list[str], message: str) -> None:
    create(cluster, "research")
    result = cluster.run("queue", "create", *arguments)
    assert result.exit_code in (1, 2) and message in result.output, result.output
    assert cluster.names("queues.dovetail.dev") == ["research"]


def test_jobs_that_wait_in_the_parent_are_reported(cluster: CommandCluster) -> None:
    create(cluster, "research", "--limit", "gpu=0")
    start(cluster, "waits", "research")
    cluster.eventually(
        lambda: (cluster.get("queues.dovetail.dev", "research", "") or {}).get("status", {}).get("pendingJobs"),
        lambda number: number == 1,
    )
    result = cluster.run("queue", "create", "vision", "--parent", "research")
    assert result.exit_code == 0
    assert "attention: 1 job waits in research itself: a queue that holds queues starts no jobs" in result.stderr


def test_a_guarantee_that_the_queue_above_does_not_have_is_reported(cluster: CommandCluster) -> None:
    create(cluster, "research", "--guarantee", "gpu=8")
    result = cluster.run("queue", "create", "vision", "--parent", "research", "--guarantee", "gpu=16")
    assert result.stdout == "Queue vision created below research.\n"
    assert "attention: of its guarantee of 16 gpu only 8 count" in result.stderr
    assert cluster.run("queue", "create", "language", "--parent", "research").stderr == ""


# stop and resume


def test_without_a_scheduler_that_is_stated(tmp_path: Path) -> None:
    with command_cluster(tmp_path) as cluster:
        create(cluster, "x")
        unknown = "no scheduler has reported what runs and waits there.\n"
        assert cluster.run("queue", "stop", "x").stdout == f"Queue x is stopped: {unknown}"
        assert cluster.run("queue", "resume", "x").stdout == f"Queue x is resumed: {unknown}"


@pytest.mark.slow
def test_a_stopped_queue_starts_nothing_and_goes_on_in_the_same_order(cluster: CommandCluster) -> None:
    create(cluster, "x")
    create(cluster, "y")
    start(cluster, "runs", "x")
    until(cluster, "runs", "Running")
    cluster.eventually(
        lambda: cluster.run("queue", "stop", "x", "--dry-run").stdout, lambda text: "goes on (8 GPUs)" in text
    )
    result = cluster.run("queue", "stop", "x")
    assert result.output == "Queue x is stopped: no job waits, what runs there goes on (8 GPUs).\n"
    for name in ("first", "second"):
        start(cluster, name, "x")
    start(cluster, "other", "y")
    until(cluster, "other", "Running")
    assert [code(cluster, name) for name in ("first", "second")] == ["QueueStopped"] * 2
    assert cluster.run("queue", "stop", "x").output == "Queue x was stopped already.\n"
    assert "team-a/first-0-" in cluster.run("why", "queue/x").output and "stopped (spec.stop: Hold)" in (
        cluster.run("why", "queue/x").output
    )
    assert cluster.run("cancel", "-y", "other").exit_code == 0
    result = cluster.run("queue", "resume", "x")
    assert result.exit_code == 0 and result.output.startswith("Queue x is resumed: ")
    until(cluster, "first", "Running")
    assert cluster.phases("second") == ["Pending"]
    assert cluster.run("queue", "resume", "x").output == "Queue x was not stopped.\n"


def test_a_queue_above_that_is_stopped_is_named(cluster: CommandCluster) -> None:
    create(cluster, "top")
    create(cluster, "x", "--parent", "top")
    assert cluster.run("queue", "stop", "top").exit_code == 0
    result = cluster.run("queue", "resume", "x")
    assert result.output == "Queue x was not stopped. The queue top above it is still stopped: resume that one, too.\n"


def test_a_queue_without_an_object_and_an_unknown_one_cannot_be_stopped(cluster: CommandCluster) -> None:
    create(cluster, "research")
    result = cluster.run("queue", "stop", "default")
    assert result.exit_code == 1 and "queue default has no object; there are research" in result.stderr
    result = cluster.run("queue", "drain", "resarch")
    assert result.exit_code == 1 and "queue resarch does not exist; did you mean research?" in result.stderr


def test_a_cluster_whose_definition_of_queues_is_older_is_reported(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server drops a field that it does not know, and answers with what it has stored."""
    create(cluster, "x")
    monkeypatch.setattr(queue_changes, "_WRITTEN", _Once({"": "None", "Hold": "Hold"}))
    result = cluster.run("queue", "stop", "x")
    assert result.exit_code == 1 and "this cluster's definition of Queue has no spec.stop" in result.stderr


class _Once(dict[str, str]):
    """What is written is "None" the first time, as if the server had dropped it."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.asked = 0

    def __getitem__(self, key: str) -> str:
        self.asked += 1
        return "None" if self.asked == 1 else super().__getitem__(key)


def test_a_missing_right_to_stop_a_queue_is_named(cluster: CommandCluster) -> None:
    create(cluster, "x")
    message = 'queues.dovetail.dev is forbidden: User "ada" cannot patch resource "queues"'
    fault = Fault("answer", "PATCH", "queues", times=9, status=403, message=message)
    cluster.do(lambda: cluster.playground.faults.add(fault))
    result = cluster.run("queue", "stop", "x")
    assert result.exit_code == 1 and "user ada has no right to patch queues.dovetail.dev: an admin" in result.stderr


def test_the_list_goes_on_as_it_was_and_a_queue_can_have_the_name_of_a_verb(cluster: CommandCluster) -> None:
    create(cluster, "stop")
    assert cluster.run("queue").stdout == "No job waits.\n"
    assert cluster.run("queue", "queue/stop").stdout == "No job waits in queue stop.\n"
    result = cluster.run("queue", "nothing", "-o", "json")
    assert result.exit_code == 1 and "queue nothing does not exist" in result.stderr
    assert "Commands:" in cluster.run("queue", "--help").output
    assert cluster.run("queue", "--help").output.startswith("Usage: cli queue [OPTIONS] [QUEUE]\n")


# drain


@pytest.mark.slow
def test_a_queue_is_drained_when_its_jobs_have_ended(cluster: CommandCluster) -> None:
    create(cluster, "x")
    start(cluster, "runs", "x", "--time", "1h")
    until(cluster, "runs", "Running")
    process = cluster.begin("queue", "drain", "x")
    assert process.stderr is not None
    assert process.stderr.readline() == "Queue x is stopped; `dovetail queue resume x` resumes it.\n"
    assert process.stderr.readline() == "Queue x: 8 GPUs left.\n"
    assert cluster.run("cancel", "-y", "runs").exit_code == 0
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "Nothing runs in queue x.\n")
    assert "team-a/runs  x" in out and "ends" in out and "; no job waits." in out
    found = cluster.get("queues.dovetail.dev", "x", "")
    assert found is not None and found["spec"]["stop"] == "Hold"


@pytest.mark.slow
def test_what_runs_is_evicted_on_request_and_waits_again(cluster: CommandCluster) -> None:
    create(cluster, "x")
    start(cluster, "runs", "x")
    until(cluster, "runs", "Running")
    process = cluster.begin("queue", "drain", "x", "--evict")
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and "is evicted" in out, errors
    assert errors.rstrip().endswith("Nothing runs in queue x.")
    cluster.eventually(lambda: code(cluster, "runs"), lambda found: found == "QueueStopped")
    text = cluster.eventually(lambda: cluster.run("events", "runs").stdout, lambda text: "drained" in text)
    assert "queue 'x' is stopped, and its jobs are evicted" in text
    assert cluster.run("queue", "resume", "x").exit_code == 0
    until(cluster, "runs", "Running")


@pytest.mark.slow
def test_the_time_of_a_drain_ends_and_the_queue_stays_stopped(cluster: CommandCluster) -> None:
    create(cluster, "x")
    start(cluster, "runs", "x")
    until(cluster, "runs", "Running")
    result = cluster.run("queue", "drain", "x", "--timeout", "2s")
    assert result.exit_code == 124 and "The time is over; the queue stays stopped." in result.stderr
    assert cluster.run("queue", "drain", "x", "--no-wait").exit_code == 0


def test_the_dry_run_of_a_drain_reads_files_and_writes_nothing(cluster: CommandCluster) -> None:
    result = cluster.run("queue", "drain", "product", "--dry-run", "-f", TEAMS, *AT)
    assert result.exit_code == 0 and "product/etl " in result.stdout and "; 2 jobs wait." in result.stdout
    result = cluster.run("queue", "drain", "product", "--dry-run", "--evict", "-f", TEAMS, *AT, "-o", "json")
    assert {job["what"] for job in json.loads(result.stdout)["jobs"]} >= {"is evicted"}
    result = cluster.run("queue", "drain", "product", "-f", TEAMS, *AT)
    assert result.exit_code == 2 and "--file needs --dry-run" in result.stderr
