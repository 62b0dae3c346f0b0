# SPDX-License-Identifier: Apache-2.0
"""A plane with deploy/ and three users, of which two have rights, for what is asked behind its API server."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests.forked import run_forked
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tools.controlplane.plane import Plane, RequestFailed

Document = dict[str, Any]
HIDDEN = "zmarkz"
NODE = "view-node"
WORLD = f"""
apiVersion: v1
kind: Node
metadata: {{name: view-node, labels: {{kubernetes.io/hostname: view-node}}}}
status:
  capacity: {{cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}}
  allocatable: {{cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: team-a}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: {HIDDEN}-b}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: alice, namespace: team-a}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}}
subjects: [{{kind: User, name: alice}}, {{kind: ServiceAccount, name: default, namespace: team-a}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: olga}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: dovetail-cluster-operator}}
subjects: [{{kind: User, name: olga}}, {{kind: ServiceAccount, name: default, namespace: dovetail-system}}]
"""


def pod(namespace: str, name: str, gpus: int, **spec: Any) -> Document:
    """A pod of the scheduler that asks for GPUs."""
    container = {"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"dovetail.dev/user": f"{name}-user"}},
        "spec": {"schedulerName": "dovetail", "containers": [container]} | spec,
    }


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


def until(question: Callable[[], Any], wanted: Callable[[Any], bool] = bool, within_s: float = 2 * PATIENCE_S) -> Any:
    deadline, answer = time.monotonic() + within_s, None
    while time.monotonic() < deadline:
        try:
            answer = question()
            if wanted(answer):
                return answer
        except (RequestFailed, OSError) as error:
            answer = error
        time.sleep(0.2)
    raise AssertionError(f"not within {within_s:g} s; last answer: {answer}")


def deploy(plane: Plane) -> None:
    """Apply deploy/ and what people and the collector may do, and the world above."""
    history = "deploy/functions/history"
    files = ("deploy/dashboard/rbac.yaml", f"{history}/rbac.yaml", f"{history}/service.yaml")
    for folder in ("deploy/crds", "deploy", "deploy/people"):
        plane.kubectl("apply", "-k", folder)
    plane.kubectl("apply", *(f"--filename={file}" for file in (*files, "-")), input=WORLD)


class BehindServer:
    """A deployed plane and its users, for a test."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.address = own_address()
        self.port = free_port(self.address)
        self.scheduler_role = str(plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler"))
        self.users = {user: str(plane.kubeconfig_for(user)) for user in ("alice", "olga", "nobody")}

    def wait_for_account(self, namespace: str) -> None:
        """Of the name `default`: without it there can be no pod."""
        until(lambda: self.plane.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"))

    def make(self, namespace: str, name: str, gpus: int, **spec: Any) -> None:
        """A pod."""
        self.wait_for_account(namespace)
        self.plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(namespace, name, gpus, **spec))

    def remove(self, namespace: str, name: str) -> None:
        """A pod, at once: its node has no kubelet."""
        self.plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")

    def dovetail(self, user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command as a user."""
        return run_forked(*arguments, "--kubeconfig", self.users[user])
