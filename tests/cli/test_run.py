# SPDX-License-Identifier: Apache-2.0
"""`dovetail run` and `dovetail submit` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli import wait_report
from dovetail.playground import Fault
from tests.cli.clusters import H100, JOB_SETS, CommandCluster, command_cluster, node

IMAGE = ("--image", "registry.example/train:1.4")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_report, "EVERY_S", 0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CommandCluster]:
    nodes = [node("gpu-1"), node("gpu-2"), node("gpu-3", 4, "NVIDIA-A100-SXM4-80GB")]
    with command_cluster(tmp_path, *nodes, scheduler=True) as found:
        yield found


def annotations(**values: str) -> list[str]:
    return [
        part for key, value in values.items() for part in ("--annotation", f"playground.dovetail.dev/{key}={value}")
    ]


def test_a_job_of_two_nodes_runs_and_its_logs_are_followed_to_the_end(cluster: CommandCluster) -> None:
    more = annotations(**{"run-seconds": "0.3", "log": "step 1\nstep 2"})
    result = cluster.run(
        "run",
        "train",
        *IMAGE,
        "--gpus",
        "8xH100",
        "--nodes",
        "2",
        "--time",
        "4h",
        *more,
        "-f",
        "--",
        "torchrun",
        "t.py",
    )
    assert result.exit_code == 0, result.output
    assert sorted(result.stdout.splitlines()) == ["[0] step 1", "[0] step 2", "[1] step 1", "[1] step 2"]
    created = f"Job team-a/train created: 2 pods with 8 GPUs each ({H100}). It is an indexed Job with a Service"
    assert result.stderr.startswith(created) and "Job team-a/train: 2 pods run" in result.stderr
    assert result.stderr.rstrip().endswith("Job team-a/train: succeeded")
    job, service = cluster.get("jobs.batch", "train"), cluster.get("services", "train")
    assert job is not None and service is not None
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["torchrun", "t.py"]
    (owner,) = service["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])


def test_a_job_that_fails_is_an_exit_code(cluster: CommandCluster) -> None:
    more = annotations(**{"run-seconds": "0.1", "exit-code": "3"})
    result = cluster.run("run", "train", *IMAGE, *more, "--wait")
    assert result.exit_code == 1
    assert "Error: Job team-a/train failed: pod train-0-" in result.stderr and "exit code 3" in result.stderr


def test_several_nodes_are_a_jobset_where_the_cluster_serves_these(cluster: CommandCluster) -> None:
    cluster.put(JOB_SETS)
    result = cluster.run("run", "train", *IMAGE, "--gpus", "8", "--nodes", "2", "-o", "name")
    assert (result.exit_code, result.stdout) == (0, "jobset/train\n")
    assert cluster.names("jobsets.jobset.x-k8s.io") == ["train"] and cluster.names("services") == []
    result = cluster.run("run", "one", *IMAGE)
    assert result.stdout.splitlines()[0] == "Job team-a/one created: 1 pod with 1 GPU."
    result = cluster.run("run", "two", *IMAGE, "--nodes", "2", "--kind", "job")
    assert result.stdout.splitlines()[0] == "Job team-a/two created: 2 pods with 1 GPU each."


def test_the_dry_run_creates_nothing_and_prints_what_submit_takes(cluster: CommandCluster, tmp_path: Path) -> None:
    result = cluster.run(
        "run", "train", *IMAGE, "--gpus", "8", "--nodes", "2", "-q", "default", "--dry-run", "--", "a", "--b"
    )
    assert result.exit_code == 0 and cluster.names("jobs.batch") == []
    job, service = yaml.safe_load_all(result.stdout)
    assert (job["kind"], service["kind"]) == ("Job", "Service")
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["a", "--b"]
    file = tmp_path / "job.yaml"
    file.write_text(result.stdout)
    result = cluster.run("submit", str(file), "--dry-run")
    assert result.stdout == "Job team-a/train: would be created.\nService team-a/train: would be created.\n"
    assert cluster.names("jobs.batch") == []
    result = cluster.run("submit", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Job team-a/train: created.\nService team-a/train: created.\n"
    assert cluster.run("lint", str(file)).exit_code == 0


def test_the_objects_as_json(cluster: CommandCluster) -> None:
    result = cluster.run("run", "train", *IMAGE, "--nodes", "2", "--dry-run", "-o", "json")
    assert [one["kind"] for one in json.loads(result.stdout)["items"]] == ["Job", "Service"]
    result = cluster.run("run", "train", *IMAGE, "--dry-run", "-o", "json")
    assert json.loads(result.stdout)["kind"] == "Job"


def test_the_nodes_of_a_file_give_the_models_without_a_cluster(cluster: CommandCluster, tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(yaml.safe_dump(node("other", 8, "NVIDIA-B200")))
    result = cluster.run("run", "t", *IMAGE, "--gpus", "8xB200", "--dry-run", "--file", str(file))
    assert "NVIDIA-B200" in result.stdout
    result = cluster.run("run", "t", *IMAGE, "--gpus", "8xH100", "--dry-run", "--file", str(file))
    assert result.exit_code == 1 and "there are NVIDIA-B200" in result.stderr


def test_a_name_is_made_of_that_of_the_image(cluster: CommandCluster) -> None:
    result = cluster.run(
        "run", "--image", "registry.example/team/My_Train.v2@sha256:" + "0" * 64, "--dry-run", "-o", "name"
    )
    kind, _, name = result.stdout.strip().partition("/")
    assert kind == "job" and name.startswith("my-train-v2-") and len(name) == len("my-train-v2-") + 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Missing option '--image'"),
        (["Train", *IMAGE], "'Train' is no name of a job"),
        (["a" * 60, *IMAGE], "is no name of a job"),
        (["train", *IMAGE, "torchrun", "x"], "What is 'torchrun'? The command of the job comes after --."),
        (["train", *IMAGE, "--standalone"], "No such option '--standalone'"),
        (["train", *IMAGE, "--standalone"], "The command of the job comes after --."),
        (["t", *IMAGE, "--gpus", "many"], "'many' are no GPUs of a pod"),
        (["t", *IMAGE, "--gpus", "4x8xH100"], "use --nodes 4 --gpus 8xH100"),
        (["t", *IMAGE, "--gpus", "8xZ9"], "no node has GPUs of the model 'Z9'"),
        (["t", *IMAGE, "--nodes", "0"], "0 is not in the range"),
        (["t", *IMAGE, "--time", "4"], "for '--time': '4' is not a duration with units"),
        (["t", *IMAGE, "--env", "=x"], "'=x' is not KEY=VALUE"),
        (["t", *IMAGE, "--resource", "rdma/hca=lots"], "rdma/hca:"),
        (["t", *IMAGE, "-q", "no queue"], "'no queue' is no name that a label can have"),
        (["t", *IMAGE, "--kind", "pytorchjob"], "the cluster serves no PyTorchJobs: --kind job"),
        (["t", *IMAGE, "--file", "x"], "--file needs --dry-run"),
        (["t", *IMAGE, "--file", "x", "--dry-run", "--context", "y"], "--file and --context both choose the cluster"),
        (["t", *IMAGE, "--dry-run", "--wait"], "--dry-run creates nothing to wait for"),
        (["t", *IMAGE, "--cpu", "-1"], "is negative"),
    ],
)
def test_bad_input_creates_nothing(cluster: CommandCluster, arguments: list[str], message: str) -> None:
    result = cluster.run("run", *arguments)
    assert result.exit_code in (1, 2) and message in result.output, result.output
    assert cluster.names("jobs.batch") == []


def test_findings_of_the_linter_are_shown_and_errors_stop_it(cluster: CommandCluster) -> None:
    result = cluster.run("run", "t", "--image", "registry.example/train:latest")
    assert result.exit_code == 0 and "warning G32: Job team-a/t" in result.stderr
    cluster.put({"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "research"}})
    result = cluster.run("run", "u", *IMAGE, "-q", "resarch")
    assert result.exit_code == 1 and "error G45" in result.stderr and "research" in result.stderr
    assert "nothing was created: 2 errors; `dovetail lint --explain G45` explains G45; --force" in result.stderr
    assert cluster.names("jobs.batch") == ["t"]
    assert cluster.run("run", "u", *IMAGE, "-q", "resarch", "--force").exit_code == 0
    assert cluster.names("jobs.batch") == ["t", "u"]


def test_a_name_that_is_taken_is_refused(cluster: CommandCluster) -> None:
    assert cluster.run("run", "t", *IMAGE).exit_code == 0
    result = cluster.run("run", "t", *IMAGE)
    assert (result.exit_code, result.stderr) == (1, "Error: Job team-a/t exists already\n")


def forbid(cluster: CommandCluster, method: str, resource: str, verb: str) -> None:
    """The next such requests are refused as RBAC refuses them."""
    message = f'{resource} is forbidden: User "ada" cannot {verb} resource "{resource}" in the namespace "team-a"'
    cluster.do(
        lambda: cluster.playground.faults.add(Fault("answer", method, resource, times=5, status=403, message=message))
    )


def test_a_missing_right_is_named_by_verb_resource_and_namespace(cluster: CommandCluster) -> None:
    forbid(cluster, "POST", "jobs", "create")
    result = cluster.run("run", "t", *IMAGE)
    assert result.exit_code == 1
    expected = "user ada has no right to create jobs.batch in namespace team-a: an admin can grant it\n"
    assert result.stderr.startswith("Error: http://127.0.0.1:") and result.stderr.endswith(expected)


def test_without_the_right_to_list_nodes_models_are_those_that_are_known(cluster: CommandCluster) -> None:
    forbid(cluster, "GET", "nodes", "list")
    result = cluster.run("run", "t", *IMAGE, "--gpus", "8xH100", "--dry-run")
    assert result.exit_code == 0 and H100 in result.stdout and "NVIDIA-H100-PCIe" in result.stdout


# submit


def document(kind: str = "Job", name: str = "train", **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example/train:1.4",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    template = {"spec": {"schedulerName": "dovetail", "restartPolicy": "Never", "containers": [container | spec]}}
    meta = {"name": name, "labels": {"team": "a"}}
    return {"apiVersion": "batch/v1", "kind": kind, "metadata": meta, "spec": {"template": template}}


def test_objects_of_standard_input_are_created_with_a_generated_name(cluster: CommandCluster) -> None:
    one = document() | {"metadata": {"generateName": "train-", "labels": {"team": "a"}}}
    result = cluster.run("submit", "-", stdin=yaml.safe_dump(one))
    assert result.exit_code == 0, result.output
    (name,) = cluster.names("jobs.batch")
    assert result.stdout == f"Job team-a/{name}: created.\n" and name.startswith("train-")


def test_an_error_stops_before_anything_is_created(cluster: CommandCluster, tmp_path: Path) -> None:
    bad = document(name="bad", resources={"requests": {"nvidia.com/gpu": "2"}})
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump_all([document(), bad]))
    result = cluster.run("submit", str(tmp_path / "jobs.yaml"))
    assert (
        result.exit_code == 1
        and "error G01: Job bad" in result.stderr
        and "nothing was created: 1 error" in result.stderr
    )
    assert cluster.names("jobs.batch") == []


def test_what_was_created_before_a_failure_is_named(cluster: CommandCluster, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump_all([document(), document(name="second")]))
    assert cluster.run("run", "second", *IMAGE).exit_code == 0
    result = cluster.run("submit", str(tmp_path / "jobs.yaml"))
    assert result.exit_code == 1
    assert result.stderr == "Error: Job team-a/second exists already; created before: Job team-a/train\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no object found"),
        ("a: [", "is not YAML or JSON"),
        ("{{ .Values.x }}: 1", "is a template that was not rendered"),
        ("kind: Job\nmetadata: {name: x}\n", "an object has no apiVersion, kind or metadata.name"),
        ("apiVersion: batch/v1\nkind: Job\n", "an object has no apiVersion, kind or metadata.name"),
        ("apiVersion: x.dev/v1\nkind: Thing\nmetadata: {name: x}\n", "the cluster serves no Thing of x.dev/v1"),
        ("apiVersion: v1\nkind: Thing\nmetadata: {name: x}\n", "the cluster serves no Thing of v1"),
    ],
)
@pytest.mark.slow
def test_a_file_that_cannot_be_submitted(cluster: CommandCluster, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    result = cluster.run("submit", str(tmp_path / "x.yaml"))
    assert result.exit_code == 1 and message in result.stderr, result.output


def test_a_file_that_does_not_exist(cluster: CommandCluster) -> None:
    result = cluster.run("submit", "nowhere.yaml")
    assert result.exit_code == 1 and "cannot be read" in result.stderr


def test_a_compute_domain_is_made_with_the_job_and_nothing_where_the_cluster_has_none(cluster: CommandCluster) -> None:
    asked = ("run", "wide", *IMAGE, "--gpus", "8xH100", "--time", "1h", "--compute-domain", "--kind", "job")
    assert "is for several nodes" in cluster.run(*asked).stderr
    refused = cluster.run(*asked, "--nodes", "2")
    assert (refused.exit_code, "no ComputeDomain of resource.nvidia.com/v1beta1" in refused.stderr) == (1, True)
    assert cluster.names("jobs.batch") == []
    definition = json.loads(json.dumps(JOB_SETS).replace("jobset.x-k8s.io", "resource.nvidia.com"))
    for name, wanted in (("jobsets", "computedomains"), ("jobset", "computedomain"), ("JobSet", "ComputeDomain")):
        definition = json.loads(json.dumps(definition).replace(name, wanted))
    definition = json.loads(json.dumps(definition).replace("v1alpha2", "v1beta1"))
    cluster.put(definition)
    made = cluster.run(*asked, "--nodes", "2")
    assert made.exit_code == 0, made.output
    domain, job = cluster.get("computedomains.resource.nvidia.com", "wide"), cluster.get("jobs.batch", "wide")
    assert domain is not None and job is not None
    (owner,) = domain["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])
