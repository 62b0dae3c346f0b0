# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor` on a real API server, with exactly the rights that its reference names, and with some of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.advice.doctor.examination import CHECKS
from dovetail.advice.doctor.lists import LISTS
from dovetail.cli import cli
from tests.docs.pages import page
from tools.controlplane.plane import KubectlFailed, Plane

pytestmark = pytest.mark.plane

NODE = "doctor-gpu"
HOOK = "admission-webhook.yunikorn.mutate-pods"
OBJECTS = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: doctor}}
---
apiVersion: v1
kind: Node
metadata: {{name: {NODE}, labels: {{nvidia.com/gpu.present: "true"}}}}
status:
  allocatable: {{cpu: "8", memory: 8Gi, pods: "110"}}
  conditions: [{{type: Ready, status: "True", reason: KubeletReady, message: ""}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {{name: doctor}}
webhooks:
  - name: {HOOK}
    clientConfig: {{service: {{name: none, namespace: doctor}}}}
    namespaceSelector: {{matchLabels: {{doctor.test/nobody: has-this}}}}
    failurePolicy: Ignore
    sideEffects: None
    admissionReviewVersions: [v1]
    rules: [{{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}]
"""
POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: nvidia-driver-daemonset, namespace: doctor}}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: 0
  tolerations: [{{operator: Exists}}]
  containers: [{{name: nvidia-driver-ctr, image: none}}]
"""
CRASHES = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "nvidia-driver-ctr", "image": "none", "imageID": "", "ready": False, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no such kernel headers"}},
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def unhealthy(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A node whose driver crashes, and a webhook that takes pods; it asks for none of the other tests' pods."""
    file = tmp_path_factory.mktemp("doctor") / "objects.yaml"
    file.write_text(OBJECTS)
    plane.kubectl("apply", f"--filename={file}")
    plane.kubectl("wait", "--namespace=doctor", "--for=create", "serviceaccount/default", "--timeout=60s")
    status = {"status": yaml.safe_load(OBJECTS.split("---")[1])["status"]}
    plane.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    pods = file.with_name("pod.yaml")
    pods.write_text(POD)
    plane.kubectl("apply", f"--filename={pods}")
    reported = ("--subresource=status", "--type=merge", f"--patch={json.dumps({'status': CRASHES})}")
    plane.kubectl("patch", "pod", "nvidia-driver-daemonset", "--namespace=doctor", *reported)
    yield plane
    plane.kubectl("delete", f"--filename={pods}", f"--filename={file}", "--wait=false")


def grant(plane: Plane, user: str, rights: list[tuple[str, str, str]], tmp_path: Path) -> Path:
    """A kubeconfig of a user that may do just this: API group, resource, verb."""
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    rules = [
        {"apiGroups": ["" if group == "core" else group], "resources": [resource], "verbs": [verb]}
        for group, resource, verb in rights
    ]
    role = kind | {"kind": "ClusterRole", "metadata": {"name": user}, "rules": rules}
    binding = kind | {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": user, "apiGroup": "rbac.authorization.k8s.io"},
    }
    file = tmp_path / "role.yaml"
    file.write_text(yaml.safe_dump_all([role, binding]))
    plane.kubectl("apply", f"--filename={file}")
    for _ in range(100):
        with suppress(KubectlFailed):  # Until the server has heard of the binding the answer is no.
            plane.kubectl("auth", "can-i", "list", resource_of(rights[0]), f"--as={user}")
            return plane.kubeconfig_for(user)
    raise AssertionError(f"{user} did not get its rights")


def resource_of(right: tuple[str, str, str]) -> str:
    return right[1] if right[0] == "core" else f"{right[1]}.{right[0]}"


def documented() -> list[tuple[str, str, str]]:
    rows = page("docs/reference/doctor.md").rows("API group")
    return [(row.cells[0], row.code[1][0], row.cells[2]) for row in rows]


async def doctor(kubeconfig: Path) -> tuple[int, dict[str, Any]]:
    arguments = ["doctor", "--kubeconfig", str(kubeconfig), "-o", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    return result.exit_code, json.loads(result.stdout)


def unread(answer: dict[str, Any]) -> list[str]:
    """But for the reasons of pods that other tests left waiting, which take the rights of `dovetail why`."""
    unknown = [one["object"] for one in answer["findings"] if one["level"] == "unknown"]
    return [thing for thing in unknown if thing != "command/dovetail-why"]


async def test_with_the_rights_of_the_reference(unhealthy: Plane, tmp_path: Path) -> None:
    code, answer = await doctor(grant(unhealthy, "doctor", documented(), tmp_path))
    assert (code, unread(answer), answer["left_out"]) == (1, [], [])
    found = {one["object"]: one for one in answer["findings"]}
    assert found[f"node/{NODE}"]["id"] == "node-without-gpus/driver-pod"
    assert (
        "CrashLoopBackOff: back-off 5m0s; ended with exit code 1: no such kernel headers"
        in (found[f"node/{NODE}"]["evidence"])
    )
    assert found[f"webhook/{HOOK}"]["id"] == "schedulers/takes-ours"


@pytest.mark.parametrize("field", LISTS)
async def test_without_one_of_them(unhealthy: Plane, tmp_path: Path, field: str) -> None:
    """A kind that this server does not have is no list that is missing."""
    resource = LISTS[field].request.resource.plural
    served = f"{resource}." in unhealthy.kubectl(
        "get", "--raw=/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    ) or (field not in ("gpu_nodes", "topologies", "queues"))
    rights = [one for one in documented() if one[1] != resource]
    _, answer = await doctor(grant(unhealthy, f"doctor-without-{resource}", rights, tmp_path))
    assert answer["left_out"] == [check.id for check in CHECKS if field in check.needs and served]
    assert unread(answer) == ([f"list/{resource}"] if served else [])
