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
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import load_config
from dovetail.kube.translate.annotations import BOUND, DECISION, DEVICES, RANK
from tests.docs.pages import page
from tests.live.conftest import NAMESPACE
from tools.controlplane.plane import Plane, RequestFailed

pytestmark = pytest.mark.plane
Document = dict[str, Any]
HERE = "policy-of-annotations"
SCHEDULER = f"system:serviceaccount:{NAMESPACE}:dovetail-scheduler"
NODE = "system:node:none"
"""A user of the group system:masters."""
TEMPLATE = {
    "metadata": {"labels": {"a": "b"}, "annotations": {DEVICES: "0"}},
    "spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "none"}]},
}
SELECTOR = {"matchLabels": {"a": "b"}}
ONCE = TEMPLATE | {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
MAKERS: dict[str, Document] = {
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
    """A user that may do everything but this; the others have client certificates."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        plane.kubeconfig_for(SCHEDULER, ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"])
        plane.kubeconfig_for(NODE, ["system:masters"])

    def create(self, document: Document, *, dry_run: bool = False) -> Document:
        version, kind = document["apiVersion"], document["kind"]
        path = f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{HERE}/{kind.lower()}s"
        return dict(self.plane.request("POST", f"{path}?dryRun=All" if dry_run else path, document))

    def pod(self, name: str, annotations: dict[str, str] | None = None, *, dry_run: bool = False) -> None:
        meta = {"name": name, "annotations": annotations or {}}
        spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "none"}]}
        self.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, dry_run=dry_run)

    def patch(self, name: str, annotations: dict[str, str | None], subresource: str = "", user: str = "") -> None:
        path = f"/api/v1/namespaces/{HERE}/pods/{name}{subresource}"
        self.plane.request("PATCH", path, {"metadata": {"annotations": annotations}}, MERGE_PATCH, user)

    def bind(self, name: str, annotations: dict[str, str], user: str = "") -> None:
        meta = {"name": name, "namespace": HERE, "annotations": annotations}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "none"}}
        self.plane.request("POST", f"/api/v1/namespaces/{HERE}/pods/{name}/binding", body, user=user)


@pytest.fixture(scope="module")
def admin(deployed_plane: Plane) -> Admin:
    deployed_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": HERE}})
    admin = Admin(deployed_plane)
    # A policy is in force some time after it was written, and the account of the namespace is made after a moment.
    stated = ""
    for _ in range(200):
        try:
            admin.pod("probe", {BOUND: "{}"}, dry_run=True)
        except RequestFailed as error:
            if "only the scheduler writes" in (stated := str(error)):
                return admin
        time.sleep(0.1)
    raise AssertionError(f"the policy is not in force: {stated}")


@pytest.fixture
def bound(admin: Admin) -> Iterator[str]:
    """A pod that the scheduler has bound."""
    admin.pod("bound")
    admin.bind("bound", {BOUND: "{}", DEVICES: "0", RANK: "1", DECISION: "d"}, SCHEDULER)
    yield "bound"
    admin.plane.request("DELETE", f"/api/v1/namespaces/{HERE}/pods/bound?gracePeriodSeconds=0")


@pytest.mark.parametrize("key", [BOUND, DECISION, DEVICES, RANK])
@pytest.mark.parametrize("subresource", ["", "/status"])
def test_on_a_bound_pod_no_other_client_changes_or_removes_them(
    admin: Admin, bound: str, key: str, subresource: str
) -> None:
    for value in ("forged", None):
        with pytest.raises(RequestFailed, match=f"only the scheduler writes {key}: leave it as it is"):
            admin.patch(bound, {key: value}, subresource)
        with pytest.raises(RequestFailed, match="only the scheduler writes"):
            admin.patch(bound, {key: value}, subresource, NODE)
    admin.patch(bound, {"example.com/other": "1"}, subresource)


def test_no_pod_is_made_with_them_and_no_other_scheduler_binds_with_them(admin: Admin) -> None:
    stated = f"only the scheduler writes {BOUND}, {RANK}: .* out of a pod that is copied"
    with pytest.raises(RequestFailed, match=stated):
        admin.pod("copy", {BOUND: "{}", RANK: "0", "a": "b"})
    admin.pod("plain", {"a": "b"})
    with pytest.raises(RequestFailed, match=f"only the scheduler writes {DEVICES}"):
        admin.bind("plain", {DEVICES: "0"})
    admin.bind("plain", {"a": "c"})


@pytest.mark.parametrize("kind", MAKERS)
def test_no_template_of_pods_gets_them(admin: Admin, kind: str) -> None:
    api_version, _, name = kind.partition(" ")
    document = {"apiVersion": api_version, "kind": name, "metadata": {"name": name.lower()}} | MAKERS[kind]
    with pytest.raises(RequestFailed, match=f"only the scheduler writes {DEVICES}: leave it out of the pod template"):
        admin.create(document, dry_run=True)
    without = json.loads(json.dumps(document).replace(json.dumps(DEVICES), '"example.com/devices"'))
    assert admin.create(without, dry_run=True)["metadata"]["name"] == name.lower()


def test_a_policy_names_the_scheduler_in_the_pods_of_grove(admin: Admin) -> None:
    blocks = page("docs/how-to/gangs.md").blocks
    (policy,) = [block.text for block in blocks if "MutatingAdmissionPolicy" in block.text]

    def scheduler(of: dict[str, str]) -> str:
        meta = {"generateName": "pd-0-decode-", "labels": of}
        spec = {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "none"}]}
        gates = {"schedulingGates": [{"name": "grove.io/podgang-pending-creation"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec | gates}
        made = admin.create(pod, dry_run=True)
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
