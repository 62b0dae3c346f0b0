# SPDX-License-Identifier: Apache-2.0
"""On a real API server, with exactly the rights that an operator makes: the policy does its work, and its account can
do nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.idlepolicy.stoppable import NOTEBOOKS, STOPPABLE
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.errors import ApiError
from dovetail.kube.api.resources import DEPLOYMENTS, GPU_NODES, PODS, STATEFUL_SETS
from dovetail.kube.manifests.templates import PYTORCH_JOBS
from dovetail.kube.objects.stack import GPUStack, IdleSpec, StackMeta, StackSpec
from dovetail.operator.found import Found
from dovetail.operator.rendering.stack_objects import desired
from tests.idlepolicy.world import DEFINITIONS, Document, World, selected, text, workload
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane

NAME = "dovetail-idle-policy"
POLICY = "ValidatingAdmissionPolicy"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", POLICY, f"{POLICY}Binding")
CONSENT = "dovetail.dev/when-idle"


def rendered() -> list[Document]:
    stack = GPUStack(StackMeta(name="stack"), StackSpec(idle=IdleSpec(enabled=True)))
    found = desired(stack, Found(), "dovetail:1").objects
    return [one for one in found if one["metadata"]["name"] == NAME and one["kind"] in RIGHTS]


def test_the_role_and_the_policy_have_the_kinds_of_the_table() -> None:
    (role,) = (one for one in rendered() if one["kind"] == "ClusterRole")
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]
    }  # fmt: skip
    kinds = {(one.resource.group, one.resource.plural, "get") for one in STOPPABLE}
    kinds |= {(one.resource.group, one.resource.plural, "patch") for one in STOPPABLE if one.way is not None}
    reads = {("dovetail.dev", "gpunodes", "get"), ("dovetail.dev", "gpunodes", "list"), ("", "pods", "list")}
    assert granted == kinds | reads | {("events.k8s.io", "events", "create")}
    (policy,) = (one for one in rendered() if one["kind"] == POLICY)
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    bounded = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    assert {(group, name) for group, name, verb in kinds if verb == "patch"} <= bounded | {
        (group, name) for group, name, _ in kinds if (group, "*/*") in bounded
    }


RESOURCES = {one.kind: one for one in (PODS, GPU_NODES, DEPLOYMENTS, STATEFUL_SETS, NOTEBOOKS, PYTORCH_JOBS.resource)}
RESOURCES["ReplicaSet"] = msgspec.structs.replace(DEPLOYMENTS, plural="replicasets", kind="ReplicaSet")


class Objects:
    """Objects of the cluster as an admin makes them, and what the policy's account may do to them."""

    def __init__(self, plane: Plane, account: Client) -> None:
        self._plane = plane
        self._account = account

    def put(self, document: Document) -> Document:
        meta, status = document["metadata"], document.get("status")
        path = RESOURCES[document["kind"]].path(meta.get("namespace"), meta["name"])
        stored: Document = self._plane.apply(path, {key: document[key] for key in document if key != "status"})
        if status is not None:
            self._plane.request("PATCH", f"{path}/status", {"status": status}, MERGE_PATCH)
        return stored

    def get(self, kind: str, name: str) -> Any:
        return self._plane.get(RESOURCES[kind].path("ml", name))

    async def refusal(self, kind: str, name: str, patch: Document, subresource: str = "") -> str:
        """Why the account may not write this; "" if it may."""
        path = RESOURCES[kind].path("ml", name, subresource or None)
        try:
            await self._account.request("PATCH", path, patch, params={"dryRun": "All"}, content_type=MERGE_PATCH)
        except ApiError as error:
            return str(error)
        return ""


REFUSED: list[tuple[str, str, Document, str] | tuple[str, str, Document, str, str]] = [
    ("Deployment", "web", {"spec": {"replicas": 5}}, "stop the workload, and do nothing else"),
    ("Deployment", "web", {"spec": {"paused": True}}, "the field that stops the workload alone"),
    ("Deployment", "web", {"spec": {"template": {"spec": {"hostNetwork": True}}}}, "the field that stops"),
    ("Deployment", "web", {"metadata": {"annotations": {CONSENT: None}}}, "has not consented"),
    ("Deployment", "web", {"metadata": {"annotations": {"other": "x"}}}, "of the annotations it may change"),
    ("Deployment", "web", {"metadata": {"labels": {"other": "x"}}}, "neither labels"),
    ("Deployment", "web", {"metadata": {"finalizers": ["a.b/c"]}}, "neither labels"),
    ("Deployment", "own", {"spec": {"replicas": 0}}, "has not consented"),
    ("Deployment", "own", {"metadata": {"annotations": {CONSENT: "scale-to-zero"}}}, "has not consented"),
    ("Deployment", "own", {"metadata": {"annotations": {"dovetail.dev/idle-noticed": "x"}}}, "has not consented"),
    ("PyTorchJob", "train", {"spec": {"runPolicy": {"suspend": True, "backoffLimit": 9}}}, "the field that stops"),
    ("PyTorchJob", "train", {"spec": {"runPolicy": {"suspend": False}}}, "stop the workload"),
    ("Notebook", "ada", {"spec": {"template": {"spec": {"a": 2}}}}, "the field that stops"),
    ("Notebook", "ada", {"metadata": {"annotations": {"other": "x"}}}, "of the annotations it may change"),
    ("Deployment", "web", {"spec": {"replicas": 0}}, "cannot patch", "scale"),
    ("Deployment", "web", {"status": {"replicas": 0}}, "cannot patch", "status"),
    ("Pod", "web-0", {"metadata": {"annotations": {"dovetail.dev/idle-noticed": "x"}}}, "cannot patch"),
]
PERMITTED: list[tuple[str, str, Document]] = [
    ("Deployment", "web", {"spec": {"replicas": 0}, "metadata": {"annotations": {"dovetail.dev/idle-stopped": "x"}}}),
    ("PyTorchJob", "train", {"spec": {"runPolicy": {"suspend": True}}}),
    ("Notebook", "ada", {"metadata": {"annotations": {"kubeflow-resource-stopped": "x"}}}),
]


@pytest.mark.plane
async def test_it_does_its_work_and_its_account_nothing_else(plane_factory: Callable[..., Plane]) -> None:
    plane = plane_factory(controllers=False)
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/operator/namespaces.yaml"))
    plane.kubectl("create", "namespace", "ml")
    plane.kubectl("create", "serviceaccount", "default", "-n", "ml")
    plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all([*DEFINITIONS, *rendered()]))
    for one in DEFINITIONS:
        plane.kubectl("wait", "--for=condition=Established", "crd", one["metadata"]["name"], "--timeout=60s")
    start_ms = round(time.time()) * 1000 + 60_000
    account = load_config(str(plane.service_account_kubeconfig("dovetail-system", NAME)))
    async with Client(account) as client:
        objects = Objects(plane, client)
        world = World(objects.put, client, start_ms)
        web = world.put(workload("Deployment", "web", selected("web", replicas=3), when_idle="scale-to-zero"))
        world.put(workload("Deployment", "own", selected("own", replicas=3)))
        policy = {"runPolicy": {"backoffLimit": 3}}
        train = world.put(workload("PyTorchJob", "train", policy, api="kubeflow.org/v1", when_idle="suspend"))
        template = {"template": {"spec": {"a": 1}}}
        ada = world.put(workload("Notebook", "ada", template, api="kubeflow.org/v1", when_idle="scale-to-zero"))
        of_web = world.put(workload("ReplicaSet", "web-1", selected("web", replicas=3), owner=web))
        of_ada = world.put(workload("StatefulSet", "ada", selected("ada", serviceName="ada"), owner=ada))
        idle = {
            world.pod("web-0", of_web, labels={"app": "web"}): start_ms,
            world.pod("train-worker-0", train, labels={"training.kubeflow.org/job-name": "train"}): start_ms,
            world.pod("ada-0", of_ada, labels={"app": "ada", "notebook-name": "ada"}): start_ms,
            world.pod("alone"): start_ms,
        }
        deadline = time.monotonic() + PATIENCE_S
        while "has not consented" not in await objects.refusal("Deployment", "own", {"spec": {"replicas": 0}}):
            assert time.monotonic() < deadline, "the policy is not in force"
            await asyncio.sleep(0.1)
        for permitted in PERMITTED:
            assert await objects.refusal(*permitted) == ""
        for kind, name, patch, why, *subresource in REFUSED:
            assert why in await objects.refusal(kind, name, patch, *subresource), (kind, name, patch)

        await world.after(1.1, ("n1", idle))
        assert not world.passes.failure
        noticed = text(world.now_ms)
        await world.after(1.8, ("n1", idle))
        for kind, name in (("Deployment", "web"), ("PyTorchJob", "train"), ("Notebook", "ada")):
            written = objects.get(kind, name)["metadata"]["annotations"]
            assert written["dovetail.dev/idle-noticed"] == noticed and "dovetail.dev/idle-stopped" not in written
        for _ in range(3):
            world.restart()
            await world.after(1.1, ("n1", idle))
        # What was stopped cannot be started again by the account.
        start = {"metadata": {"annotations": {"kubeflow-resource-stopped": None}}}
        assert "start a workload again" in await objects.refusal("Notebook", "ada", start)
        assert "stop the workload" in await objects.refusal("Deployment", "web", {"spec": {"replicas": 3}})
    found = objects.get("Deployment", "web")
    assert found["spec"] == web["spec"] | {"replicas": 0}
    assert found["metadata"]["annotations"]["dovetail.dev/idle-stopped"].endswith("Z, replicas 3")
    assert objects.get("PyTorchJob", "train")["spec"] == {"runPolicy": {"backoffLimit": 3, "suspend": True}}
    assert "kubeflow-resource-stopped" in objects.get("Notebook", "ada")["metadata"]["annotations"]
    events = plane.get("/apis/events.k8s.io/v1/namespaces/ml/events")["items"]
    about: dict[str, list[tuple[str, str]]] = {"GPUsIdle": [], "IdleStopped": []}
    for one in events:
        about[one["reason"]].append((one["regarding"]["kind"], one["regarding"]["name"]))
    stopped = [
        ("Deployment", "web"), ("Notebook", "ada"), ("Pod", "ada-0"), ("Pod", "train-worker-0"), ("Pod", "web-0"),
        ("PyTorchJob", "train"),
    ]  # fmt: skip
    assert sorted(about["IdleStopped"]) == stopped
    assert sorted(about["GPUsIdle"]) == sorted([*stopped, ("Pod", "alone")])
