# SPDX-License-Identifier: Apache-2.0
"""The commands as a user runs them, against the real API server."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Forked, run_forked
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.plane
DOVETAIL = str(Path(sys.executable).with_name("dovetail"))
NODES = """
apiVersion: v1
kind: Node
metadata: {name: cmd-node, labels: {kubernetes.io/hostname: cmd-node, cmd: "yes"}}
status:
  capacity: {cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}
  allocatable: {cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  schedulerName: dovetail
  nodeSelector: {{cmd: "yes"}}
  containers:
    - name: main
      image: busybox
      resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _get(url: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
                return str(reply.read().decode())
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_schedule_explain_and_replay(deployed_plane: Any, tmp_path: Path) -> None:
    plane = deployed_plane
    role = str(plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler"))
    admin = str(plane.kubeconfig)
    listen = f"127.0.0.1:{_port()}"
    plane.kubectl("apply", "-f", "-", input=NODES)
    plane.kubectl("apply", "-f", "-", input=POD.format(name="cmd-fits", gpus=6))
    command = [DOVETAIL, "scheduler", "--kubeconfig", role, "--lease-namespace", "dovetail-system", "--listen", listen]
    command += ["--recording", str(tmp_path / "recording")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert _get(f"http://{listen}/readyz") == "ok\n"
            assert _get(f"http://{listen}/healthz") == "ok\n"
            plane.kubectl("wait", "pod/cmd-fits", "--for=condition=PodScheduled", "--timeout=60s")
            plane.kubectl("apply", "-f", "-", input=POD.format(name="cmd-waits", gpus=4))
            plane.kubectl("wait", "pod/cmd-waits", "--for=condition=PodScheduled=False", "--timeout=60s")
            scraped = _get(f"http://{listen}/metrics")
            # Others may have left pods on this plane.
            assert re.search(r'^dovetail_binds_total\{result="bound"\} [1-9]', scraped, re.MULTILINE)
            assert "dovetail_leader 1.0" in scraped
            described = plane.kubectl("describe", "pod", "cmd-waits")
            assert "NoNodeFits (NotYet): 0/" in described
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
    replayed = run_forked("replay", str(tmp_path / "recording"), "-o", "json")
    (run,) = json.loads(replayed.stdout)["runs"]
    assert (run["verdict"], run["notes"]) == ("equal", [])
    assert run["decisions"] >= 2
    answer = run_forked("why", "cmd-waits", "--kubeconfig", admin, "-o", "json")
    why = json.loads(answer.stdout)
    assert (why["state"], why["code"]) == ("NotYet", "NoNodeFits")
    holder = {
        "pod": "default/cmd-fits",
        "node": "cmd-node",
        "resource": "nvidia.com/gpu",
        "amount": "6",
        "devices": [],
        "next": False,
    }
    assert holder in why["holders"]
    table = run_forked("why", "default/cmd-fits", "--kubeconfig", admin)
    assert "is on node cmd-node" in table.stdout
    missing = run_forked("why", "cmd-wait", "--kubeconfig", admin)
    assert missing.returncode == 1
    assert "did you mean default/cmd-waits" in missing.stderr
    for pod in ("cmd-fits", "cmd-waits"):
        plane.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    plane.kubectl("delete", "node", "cmd-node")


@pytest.mark.parametrize(("policy", "node"), [("tightest", "cmd-tight"), ("expected-fill", "cmd-roomy")])
def test_nodes_are_chosen_by_the_policy_that_is_named(
    deployed_plane: Any, tmp_path: Path, policy: str, node: str
) -> None:
    """Seventy pods with eight cores beside each GPU come first. A pod with eight cores and no GPU takes them from the
    node that is the fuller one, or from the one that has cores to spare; and so it is replayed."""
    plane = deployed_plane
    role = str(plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler"))
    nodes, pods = [], []
    for name, cpu in (("cmd-tight", "16"), ("cmd-roomy", "64")):
        amounts = {"cpu": cpu, "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "2"}
        meta, status = {"name": name, "labels": {"cmd": policy}}, {"capacity": amounts, "allocatable": amounts}
        nodes.append({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})
    for number in range(71):
        resources = {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "1"} if number else {}}
        spec: dict[str, Any] = {
            "schedulerName": "dovetail",
            "nodeSelector": {"cmd": policy},
            "containers": [{"name": "main", "image": "busybox", "resources": resources}],
        }
        if number:
            spec["schedulingGates"] = [{"name": "example.com/later"}]
        meta = {"name": f"cmd-{number}", "namespace": "default", "labels": {"cmd": policy}}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    plane.kubectl("create", "-f", "-", input="\n---\n".join(map(json.dumps, (*nodes, *pods[1:]))))
    fixed = ("--kubeconfig", role, "--lease-namespace", "dovetail-system", "--listen", "")
    process = Forked("scheduler", *fixed, "--recording", str(tmp_path), "--policy", policy)
    try:
        plane.kubectl("apply", "-f", "-", input=json.dumps(pods[0]))
        plane.kubectl("wait", "pod/cmd-0", "--for=condition=PodScheduled", "--timeout=60s")
    finally:
        process.terminate()
    assert process.wait() == 0
    assert plane.kubectl("get", "pod", "cmd-0", "-o", "jsonpath={.spec.nodeName}") == node
    plane.kubectl("delete", "pod", "-l", f"cmd={policy}", "--force", "--grace-period=0", "--wait=false")
    plane.kubectl("delete", "node", "cmd-tight", "cmd-roomy")
    replayed = run_forked("replay", str(tmp_path), "-o", "json")
    (run,) = json.loads(replayed.stdout)["runs"]
    assert (run["verdict"], run["notes"]) == ("equal", [])


def test_a_cluster_that_cannot_be_reached_is_one_clear_line(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{_port()}"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    answer = run_forked("why", "p", "--kubeconfig", str(config))
    assert answer.returncode == 1
    assert answer.stderr.startswith("Error: ")
    assert "127.0.0.1" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
