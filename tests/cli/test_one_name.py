# SPDX-License-Identifier: Apache-2.0
"""`dovetail why` of a pod and of a job that have one name: each is answered for exactly what is named, by the running
scheduler, from the cluster and from files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli, cluster
from tests.cli.answers import answer
from tests.cli.clusters import Document, command_cluster, node
from tests.cli.viewed import answered_from

AT = "2026-11-22T00:00:00Z"
NOW = 1_795_305_600_000
Ask = Callable[..., Result]


def pod(name: str, gpus: int, job: str = "", on: str = "") -> Document:
    meta: Document = {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-11-21T22:00:00Z",
    }
    if job:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"job-{job}", "controller": True}
        meta |= {"labels": {"batch.kubernetes.io/job-name": job}, "ownerReferences": [owner]}
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"schedulerName": "dovetail", "restartPolicy": "Never", "containers": [container]}
    where = {"nodeName": on} if on else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec | where, "status": {"phase": "Pending"}}


CLUSTER = (
    node("gpu-1"),
    # A pod and a job of one name; a job with a pod of its name; a pod alone; a job alone.
    pod("both", 2),
    pod("both-a", 4, "both", "gpu-1"),
    pod("both-b", 9, "both"),
    pod("inside", 3, "inside"),
    pod("inside-b", 16, "inside"),
    pod("alone", 1),
    pod("job-a", 12, "job"),
)
ANSWERS: dict[str, list[tuple[str, str, int]] | str] = {
    "pod/both": [("team-a/both", "team-a/both", 0)],
    "job/both": [("team-a/both-b", "team-a/both", 1)],
    "both": [("team-a/both", "team-a/both", 0), ("team-a/both-b", "team-a/both", 1)],
    "pod/team-a/both-a": [("team-a/both-a", "team-a/both", 0)],
    "job/both-a": "Error: there is no unfinished gang or job team-a/both-a; did you mean team-a/both",
    "pod/inside": [("team-a/inside", "team-a/inside", 0)],
    "inside": [("team-a/inside", "team-a/inside", 1)],
    "pod/alone": [("team-a/alone", "team-a/alone", 0)],
    "job/alone": [("team-a/alone", "team-a/alone", 0)],
    "alone": [("team-a/alone", "team-a/alone", 0)],
    "pod/job": "Error: there is no unfinished pod team-a/job; did you mean team-a/job-a",
    "job/job": [("team-a/job-a", "team-a/job", 0)],
    "queue/nothing": "Error: there is no queue nothing",
}
"""By name the pod, the job and the number of further workloads of each explanation, or the message."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(CLUSTER))
    return path


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with command_cluster(tmp_path_factory.mktemp("cluster"), still=True) as found:
        found.put_raw(*CLUSTER)
        yield found.config


@pytest.fixture(params=["files", "kubeconfig", "views", "views of a namespace"])
def ask(
    request: pytest.FixtureRequest, files: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Ask:
    """`dovetail why` of the files, of a cluster that serves no views, and of one whose scheduler answers."""
    monkeypatch.setattr(cluster, "now_ms", lambda: NOW)
    options = ("-f", str(files), "--at", AT) if request.param == "files" else ("--kubeconfig", str(config))
    if request.param.startswith("views"):
        whole = request.param == "views"
        options = ("--kubeconfig", str(answered_from(files, NOW, monkeypatch, tmp_path, whole=whole)))
    return lambda *words: CliRunner().invoke(cli, ["why", *words, "-n", "team-a", *options])


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.slow
def test_exactly_what_is_named_is_explained(name: str, ask: Ask) -> None:
    wanted, found = ANSWERS[name], ask(name, "-o", "json")
    if isinstance(wanted, str):
        assert (found.exit_code, found.stdout) == (1, "") and found.stderr.startswith(wanted), found.output
        return
    assert found.exit_code == 0, found.output
    explained = answer(found.stdout, "JobExplanation")
    explained = explained if isinstance(explained, list) else [explained]
    assert [(one["pod"], one["job"], one["others"]) for one in explained] == wanted
