# SPDX-License-Identifier: Apache-2.0
"""Each command that looks gives one answer about one cluster: on the real API server, on a playground with the same
objects, and of a snapshot, at the time of that."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli, cluster, events, status
from dovetail.cli.doctor import answer
from dovetail.kube.reading import state
from tests.cli.clusters import CommandCluster, command_cluster, node
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane

pytestmark = [pytest.mark.plane, pytest.mark.slow]

SPACE = "same-answers"
NODES = ("same-answers-1", "same-answers-2")
GPU = "nvidia.com/gpu"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
QUEUES = "/apis/dovetail.dev/v1alpha1/queues"
COMMANDS = [
    ("jobs", "--all"), ("jobs", "-o", "json", "--all"), ("jobs", "-o", "wide", "--all"),
    ("jobs", "sweep", "-o", "name"),
    ("nodes",), ("nodes", "-o", "wide"), ("queue",), ("queue", "-o", "json"), ("queue", "--basis"),
    ("why", f"{SPACE}/sweep"), ("why", f"{SPACE}/sweep", "-o", "json"), ("why", f"{SPACE}/big"),
    ("why", f"{SPACE}/train", "-o", "json"), ("why", "queue/research"), ("why", f"{SPACE}/swep"),
    ("priority", f"{SPACE}/big"), ("priority", f"{SPACE}/sweep"), ("share",), ("share", "-o", "json"), ("leases",),
    ("free",), ("free", "-o", "json"), ("free", "--shape", "1x8"), ("defrag", f"{SPACE}/big"),
    ("defrag", "--shape", "4", "-o", "json"), ("drain", NODES[0], "--dry-run"),
    ("drain", NODES[0], "--evict", "--dry-run", "-o", "json"), ("why", f"job/{SPACE}/train"),
    ("whatif", "drain", NODES[0]), ("whatif", "stop", "research"), ("whatif", "add-nodes", "--like", NODES[0]),
    ("queue", "drain", "research", "--dry-run"), ("queue", "drain", "research", "--evict", "--dry-run", "-o", "json"),
    ("topology", NODES[0]), ("topology", NODES[0], "-o", "json"), ("topology", "same-answers"),
    ("status",), ("doctor",), ("top", "--once"),
]  # fmt: skip
LIVE = [("events", f"{SPACE}/sweep"), ("logs", f"{SPACE}/sweep")]
"""Commands that read no snapshot."""


def job(name: str, gpus: int, pods: int, queue: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}
    labels = {"dovetail.dev/queue": queue, "dovetail.dev/user": "ada"}
    spec = {"schedulerName": "dovetail", "restartPolicy": "Never", "containers": [container]}
    template = {"metadata": {"labels": labels, "annotations": {"dovetail.dev/max-runtime": "4h"}}, "spec": spec}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": SPACE},
        "spec": {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "template": template},
    }  # fmt: skip


def waited_for(question: Callable[[], Any]) -> Any:
    """The first answer that is not empty."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (answer := question()):
        assert time.monotonic() < deadline_s, answer
        time.sleep(0.05)
    return answer


def made(plane: Plane, name: str, pods: int) -> list[dict[str, Any]]:
    """The pods of a Job, as soon as the real Job controller has made them."""
    path = f"/api/v1/namespaces/{SPACE}/pods?labelSelector=batch.kubernetes.io/job-name%3D{name}"

    def all_of_them() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = plane.request("GET", path)["items"]
        return items if len(items) == pods else []

    return list(waited_for(all_of_them))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane of their own: these tests compare all that there is in a cluster. Pods are made by the Job controller."""
    controllers = ("serviceaccount-controller", "job-controller")
    with Plane(controllers=controllers, work_dir=tmp_path_factory.mktemp("plane")) as found:
        yield found


@pytest.fixture(scope="module")
def snapshot(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of two nodes with a gang on them, a Job of one pod that waits, another one that never fits, and two queues."""
    plane.request("POST", CRDS, yaml.safe_load((ROOT / "deploy/crds/queue.yaml").read_text()))
    waited_for(lambda: plane.get(QUEUES))
    for name in ("research", "product"):
        queue = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": {}}
        plane.request("POST", QUEUES, queue)
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    nodes = [node(name) for name in NODES]
    for one in nodes:
        plane.request("POST", "/api/v1/nodes", one)
    waited_for(lambda: plane.get(f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"))
    for one in nodes:
        plane.request(
            "PATCH", f"/api/v1/nodes/{one['metadata']['name']}/status", {"status": one["status"]},
            "application/merge-patch+json",
        )  # fmt: skip
    for name, gpus, pods, queue in (
        ("train", 8, 2, "research"), ("sweep", 4, 1, "product"), ("big", 16, 1, "research"),
    ):  # fmt: skip
        plane.request("POST", f"/apis/batch/v1/namespaces/{SPACE}/jobs", job(name, gpus, pods, queue))
        for number, pod in enumerate(made(plane, name, pods)):
            if name == "train":
                binding = {
                    "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]},
                    "target": {"kind": "Node", "name": NODES[number]},
                }  # fmt: skip
                plane.request("POST", f"/api/v1/namespaces/{SPACE}/pods/{pod['metadata']['name']}/binding", binding)
    file = tmp_path_factory.mktemp("snapshot") / "cluster.json"
    result = CliRunner().invoke(cli, ["snapshot", str(file), "--kubeconfig", str(plane.kubeconfig)])
    assert result.exit_code == 0, result.output
    yield file


@pytest.fixture(scope="module")
def playground(plane: Plane, snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandCluster]:
    """With the objects of the snapshot and the Events as they are: no kubelet and no controller changes them."""
    happened = plane.request("GET", f"/apis/events.k8s.io/v1/namespaces/{SPACE}/events")["items"]
    with command_cluster(tmp_path_factory.mktemp("playground"), still=True) as found:
        found.put_raw(*yaml.safe_load(snapshot.read_text())["items"][1:])
        found.put_raw(*({"apiVersion": "events.k8s.io/v1", "kind": "Event", **one} for one in happened))
        yield found


@pytest.fixture
def at(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of live clusters is that of the snapshot."""
    taken = yaml.safe_load(snapshot.read_text())["items"][0]["takenAt"]
    now_ms = round(datetime.fromisoformat(str(taken)).timestamp() * 1000)
    for module in (cluster, status, events, answer):
        monkeypatch.setattr(module, "now_ms", lambda: now_ms)
    monkeypatch.setattr(state, "_now_ms", lambda: now_ms)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, list(arguments), env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def shown(result: Result) -> tuple[int, str]:
    """Without the address of the server."""
    return result.exit_code, re.sub(r"https?://[\w.:]+: ", "", result.stdout + result.stderr)


@pytest.mark.usefixtures("at")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_one_answer(command: tuple[str, ...], plane: Plane, playground: CommandCluster, snapshot: Path) -> None:
    real = shown(run(*command, "--kubeconfig", str(plane.kubeconfig)))
    assert shown(run(*command, "--kubeconfig", str(playground.config))) == real
    # A snapshot has no Events, in which agents report what they did for the network of a pod: not read, and not none.
    code, text = real
    unread = code, text.replace('"network": []', '"network": null')
    assert shown(run(*command, "-f", str(snapshot))) == unread


@pytest.mark.usefixtures("at")
@pytest.mark.parametrize("command", LIVE, ids=" ".join)
def test_one_answer_of_live_clusters(command: tuple[str, ...], plane: Plane, playground: CommandCluster) -> None:
    real = shown(run(*command, "--kubeconfig", str(plane.kubeconfig)))
    assert shown(run(*command, "--kubeconfig", str(playground.config))) == real
