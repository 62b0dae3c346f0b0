# SPDX-License-Identifier: Apache-2.0
"""`dovetail jobs` on a real API server: what is done is read there too, and a snapshot gives the same answer."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.cli.listed_jobs import GPU, node
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane

SPACE, NODE = "listed-jobs", "listed-jobs-1"
ENDED = {
    "phase": "Failed",
    "containerStatuses": [
        {
            "name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
            "state": {
                "terminated": {
                    "exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-01-01T00:00:00Z",
                    "finishedAt": "2026-01-01T01:00:00Z",
                }
            },
        }
    ],
}  # fmt: skip


def pod(name: str, gpus: int, user: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": SPACE, "labels": {"dovetail.dev/user": user}}
    container = {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": meta,
        "spec": {"schedulerName": "dovetail", "containers": [container], "terminationGracePeriodSeconds": 0},
    }  # fmt: skip


@pytest.fixture(scope="module")
def listed(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A node with a pod that runs and one that failed, and a pod that waits."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    made = [space, node(NODE), pod("runs", 6, "ada"), pod("failed", 1, "bob"), pod("waits", 4, "ada")]
    for document in made[:2]:
        plane.kubectl("apply", "--filename=-", input=json.dumps(document))
    status = {"status": {"allocatable": made[1]["status"]["allocatable"]}}
    plane.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    plane.kubectl("wait", f"--namespace={SPACE}", "--for=create", "serviceaccount/default", "--timeout=60s")
    for document in made[2:]:
        plane.kubectl("apply", "--filename=-", input=json.dumps(document))
    for name in ("runs", "failed"):
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": NODE},
        }
        plane.request("POST", f"/api/v1/namespaces/{SPACE}/pods/{name}/binding", binding)
    patch = ("--subresource=status", "--type=merge", f"--patch={json.dumps({'status': ENDED})}")
    plane.kubectl("patch", "pod", "failed", f"--namespace={SPACE}", *patch)
    yield plane
    plane.kubectl("delete", "namespace", SPACE, "--wait=false")
    plane.kubectl("delete", "node", NODE)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["jobs", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result


def test_jobs_of_a_live_cluster_and_of_its_snapshot(listed: Plane, tmp_path: Path) -> None:
    live = ("--kubeconfig", str(listed.kubeconfig), "-n", SPACE)
    found = {one["job"]: one for one in json.loads(run(*live, "--all", "-o", "json").stdout)["jobs"]}
    assert {job: (one["state"], one["user"], one["gpus"], one["nodes"]) for job, one in found.items()} == {
        f"{SPACE}/runs": ("Running", "ada", "6", [NODE]),
        f"{SPACE}/waits": ("Waiting", "ada", "4", []),
        f"{SPACE}/failed": ("Failed", "bob", "1", [NODE]),
    }
    assert found[f"{SPACE}/failed"]["reason"] == "OOMKilled"
    assert found[f"{SPACE}/failed"]["end"]["at"] == "2026-01-01T01:00:00Z"
    assert run(*live, "-o", "name").stdout.splitlines() == [f"{SPACE}/runs", f"{SPACE}/waits"]
    snapshot = tmp_path / "cluster.json"
    result = CliRunner().invoke(cli, ["snapshot", str(snapshot), "--kubeconfig", str(listed.kubeconfig)])
    assert result.exit_code in (0, 3), result.output
    stable = ("--all", "--columns", "job,user,queue,gpus,state,nodes,reason,submitted", "-o", "csv", "-n", SPACE)
    assert run("-f", str(snapshot), *stable).stdout == run(*live, *stable).stdout
    assert len(list(csv.reader(io.StringIO(run(*live, *stable).stdout)))) == 4
