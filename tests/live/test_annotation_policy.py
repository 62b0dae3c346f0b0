# SPDX-License-Identifier: Apache-2.0
"""Policies on the real API server: deploy/annotations.yaml, by which only the scheduler writes the scheduler's
annotations, and the one of docs/how-to/gangs.md that names it in Grove's pods."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.kube import protection
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.translate.annotations import BOUND, DECISION, DEVICES, RANK
from tests.docs.pages import page
from tests.live.conftest import NAMESPACE
from tools.controlplane.plane import KubectlFailed, Plane

pytestmark = pytest.mark.plane
HERE = "policy-of-annotations"
SCHEDULER = "system:serviceaccount:dovetail-system:dovetail-scheduler"
TEMPLATE = {
    "metadata": {"labels": {"a": "b"}, "annotations": {DEVICES: "0"}},
    "spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "none"}]},
}
SELECTOR = {"matchLabels": {"a": "b"}}
ONCE = TEMPLATE | {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
MAKERS: dict[str, dict[str, Any]] = {
    "apps/v1 Deployment": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "apps/v1 ReplicaSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "apps/v1 StatefulSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE, "serviceName": "s"}},
    "apps/v1 DaemonSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "v1 ReplicationController": {"spec": {"selector": {"a": "b"}, "template": TEMPLATE}},
    "v1 PodTemplate": {"template": TEMPLATE},
    "batch/v1 Job": {"spec": {"template": ONCE}},
    "batch/v1 CronJob": {"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": ONCE}}}},
}


class Admin:
    """A user that may do everything but this."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def create(self, document: dict[str, Any], *options: str) -> str:
        # Without its own look at the schema, which the server has, kubectl takes half of the time.
        fixed = ("create", "--validate=ignore", "-f", "-", f"--namespace={HERE}")
        return self.plane.kubectl(*fixed, *options, input=json.dumps(document))

    def pod(self, name: str, annotations: dict[str, str] | None = None, *options: str) -> str:
        meta = {"name": name, "annotations": annotations or {}}
        spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "none"}]}
        return self.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, *options)

    def patch(self, name: str, annotations: dict[str, str | None], *options: str) -> None:
        patch = json.dumps({"metadata": {"annotations": annotations}})
        self.plane.kubectl("patch", "pod", name, f"--namespace={HERE}", "--type=merge", f"--patch={patch}", *options)

    def bind(self, name: str, annotations: dict[str, str], *options: str) -> None:
        meta = {"name": name, "namespace": HERE, "annotations": annotations}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "none"}}
        path = f"/api/v1/namespaces/{HERE}/pods/{name}/binding"
        self.plane.kubectl("create", f"--raw={path}", "-f", "-", *options, input=json.dumps(body))


@pytest.fixture(scope="module")
def admin(deployed_plane: Plane) -> Admin:
    deployed_plane.kubectl("create", "namespace", HERE)
    deployed_plane.kubectl("wait", f"--namespace={HERE}", "--for=create", "serviceaccount/default", "--timeout=60s")
    admin = Admin(deployed_plane)
    # A policy is in force some time after it was written.
    for _ in range(200):
        try:
            admin.pod("probe", {BOUND: "{}"}, "--dry-run=server")
        except KubectlFailed:
            return admin
        time.sleep(0.1)
    raise AssertionError("the policy is not in force")


@pytest.fixture
def bound(admin: Admin) -> Iterator[str]:
    """A pod that the scheduler has bound."""
    admin.pod("bound")
    admin.bind("bound", {BOUND: "{}", DEVICES: "0", RANK: "1", DECISION: "d"}, f"--as={SCHEDULER}")
    yield "bound"
    admin.plane.kubectl("delete", "pod", "bound", f"--namespace={HERE}", "--grace-period=0", "--force")


@pytest.mark.parametrize("key", [BOUND, DECISION, DEVICES, RANK])
@pytest.mark.parametrize("options", [(), ("--subresource=status",)], ids=["pods", "pods/status"])
def test_on_a_bound_pod_no_other_client_changes_or_removes_them(
    admin: Admin, bound: str, key: str, options: tuple[str, ...]
) -> None:
    for value in ("forged", None):
        with pytest.raises(KubectlFailed, match=f"only the scheduler writes {key}: leave it as it is"):
            admin.patch(bound, {key: value}, *options)
        with pytest.raises(KubectlFailed, match="only the scheduler writes"):
            admin.patch(bound, {key: value}, *options, "--as=system:node:none", "--as-group=system:masters")
    admin.patch(bound, {"example.com/other": "1"}, *options)


def test_no_pod_is_made_with_them_and_no_other_scheduler_binds_with_them(admin: Admin) -> None:
    stated = f"only the scheduler writes {BOUND}, {RANK}: .* out of a pod that is copied"
    with pytest.raises(KubectlFailed, match=stated):
        admin.pod("copy", {BOUND: "{}", RANK: "0", "a": "b"})
    admin.pod("plain", {"a": "b"})
    with pytest.raises(KubectlFailed, match=f"only the scheduler writes {DEVICES}"):
        admin.bind("plain", {DEVICES: "0"})
    admin.bind("plain", {"a": "c"})


@pytest.mark.parametrize("kind", MAKERS)
def test_no_template_of_pods_gets_them(admin: Admin, kind: str) -> None:
    api_version, _, name = kind.partition(" ")
    document = {"apiVersion": api_version, "kind": name, "metadata": {"name": name.lower()}} | MAKERS[kind]
    with pytest.raises(KubectlFailed, match=f"only the scheduler writes {DEVICES}: leave it out of the pod template"):
        admin.create(document, "--dry-run=server")
    without = json.loads(json.dumps(document).replace(json.dumps(DEVICES), '"example.com/devices"'))
    assert "created (server dry run)" in admin.create(without, "--dry-run=server")


def test_a_policy_names_the_scheduler_in_the_pods_of_grove(admin: Admin) -> None:
    blocks = page("docs/how-to/gangs.md").blocks
    (policy,) = [block.text for block in blocks if "MutatingAdmissionPolicy" in block.text]

    def scheduler(of: dict[str, str]) -> str:
        meta = {"generateName": "pd-0-decode-", "labels": of}
        spec = {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "none"}]}
        gates = {"schedulingGates": [{"name": "grove.io/podgang-pending-creation"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec | gates}
        made = json.loads(admin.create(pod, "--dry-run=server", "--output=json"))
        assert made["spec"]["schedulingGates"] == gates["schedulingGates"]
        return str(made["spec"]["schedulerName"])

    grove = {"grove.io/podgang": "pd-0", "grove.io/podclique": "pd-0-decode"}
    assert scheduler(grove) == "default-scheduler"
    admin.plane.kubectl("create", "-f", "-", input=policy)
    try:
        found = ""
        for _ in range(200):
            if (found := scheduler(grove)) == "dovetail":
                break
            time.sleep(0.1)
        assert found == "dovetail" and scheduler({"app": "a"}) == "default-scheduler"
    finally:
        admin.plane.kubectl("delete", "-f", "-", input=policy)


async def test_the_scheduler_finds_that_it_is_protected(deployed_plane: Plane) -> None:
    config = load_config(str(deployed_plane.service_account_kubeconfig(NAMESPACE, "dovetail-scheduler")))
    async with Client(config) as client:
        assert await protection.lacking(client) == ""


async def test_without_the_right_to_read_it_is_reported(deployed_plane: Plane) -> None:
    async with Client(load_config(str(deployed_plane.kubeconfig_for("anybody")))) as client:
        assert "it is not known whether" in await protection.lacking(client)
