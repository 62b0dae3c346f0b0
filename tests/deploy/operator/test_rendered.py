# SPDX-License-Identifier: Apache-2.0
"""What the operator makes of a GPUStack: it has the rights to, and a real API server takes it."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.kube.api.client import APPLY_PATCH
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.resources import DEVICE_CLASSES, POD_MONITORS, PROMETHEUS_RULES, SERVICE_MONITORS
from dovetail.kube.objects.stack import GPUStack, StackMeta, StackSpec
from dovetail.operator.found import Found, Rival
from dovetail.operator.kinds import resource_of
from dovetail.operator.rendering.stack_objects import desired
from tests.deploy.crds.test_gpustack import EXAMPLE
from tests.paths import ROOT
from tools.controlplane.plane import Plane

OPERATOR = ROOT / "deploy/operator"
Document = dict[str, Any]
MONITORING = (SERVICE_MONITORS, POD_MONITORS, PROMETHEUS_RULES)
DIGEST = "sha256:" + "0" * 64
POOL = {"name": "p", "nodeSelector": {"matchLabels": {"use": "p"}}}
WITH_ALL = {
    "agentPlanes": {"enabled": True},
    "idle": {"enabled": True},
    "driver": {"mode": "Container", "image": f"driver@{DIGEST}"},
    "runtime": {"configure": f"toolkit@{DIGEST}"},
    "agent": {
        "kubeletCertificate": True,
        "pools": [
            POOL | {"sharing": {"strategy": "mps", "resources": [{}]}, "processes": True},
            POOL | {"name": "q", "nodeSelector": {"matchLabels": {"use": "q"}}, "allocation": "DRA",
                    "mig": {"repartition": True}},
            {"name": "rest", "mig": {"strategy": "mixed", "layout": "all-balanced"}},
        ],
    },
}  # fmt: skip
SPECS: list[Document] = [{}, EXAMPLE["spec"], WITH_ALL, {"runtime": {"className": "", "createClass": False}}]
CLAIMS = Served(frozenset({(DEVICE_CLASSES.api_version, DEVICE_CLASSES.plural)}))
BESIDE = Found(
    CLAIMS,
    foreign_allocation=frozenset({"default", "p"}),
    foreign_exporters=frozenset({"default"}),
    rivals=(Rival("gpu-operator", (("app", "nvidia-device-plugin-daemonset"),)),),
)
SCRAPED = Found(Served(frozenset((one.api_version, one.plural) for one in MONITORING)))


def rendered(spec: Document, found: Found, uid: str = "") -> list[Document]:
    result = desired(GPUStack(StackMeta(name="stack", uid=uid), msgspec.convert(spec, StackSpec)), found, "dovetail:1")
    assert result.problems == ()
    return list(result.objects)


@cache
def rights() -> list[Document]:
    return list(yaml.safe_load_all((OPERATOR / "rbac.yaml").read_text()))


def granted(document: Document) -> set[str]:
    """The verbs that the operator has for an object of this kind, name and namespace."""
    resource, name = resource_of(document), document["metadata"]["name"]
    documents = rights()
    rules = {one["metadata"]["name"]: one["rules"] for one in documents if one["kind"] == "ClusterRole"}
    cluster, within = rules["dovetail-operator"], rules["dovetail-operator-workloads"]
    bound = {one["metadata"]["namespace"] for one in documents
             if one["kind"] == "RoleBinding" and one["roleRef"]["name"] == "dovetail-operator-workloads"}  # fmt: skip
    of_place = within if document["metadata"].get("namespace") in bound else []
    return {
        verb
        for rule in (*cluster, *of_place)
        if resource.group in rule["apiGroups"] and resource.plural in rule["resources"]
        and name in rule.get("resourceNames", [name])
        for verb in rule["verbs"]
    }  # fmt: skip


@pytest.mark.parametrize("found", [Found(), BESIDE, SCRAPED])
@pytest.mark.parametrize("spec", SPECS)
def test_the_operator_may_make_change_and_delete_each_object(spec: Document, found: Found) -> None:
    for document in rendered(spec, found):
        needed = {"get", "list", "watch", "create", "patch", "delete"}
        if document["kind"] in ("ClusterRole", "Role"):
            needed |= {"escalate", "bind"}
        assert needed <= granted(document), (document["kind"], document["metadata"])


@pytest.fixture(scope="module")
def with_namespaces(plane: Plane) -> Plane:
    for one in yaml.safe_load_all((OPERATOR / "namespaces.yaml").read_text()):
        plane.apply(f"/api/v1/namespaces/{one['metadata']['name']}", one)
    return plane


@pytest.mark.plane
@pytest.mark.parametrize("found", [Found(), BESIDE])
@pytest.mark.parametrize("spec", SPECS)
def test_a_real_server_takes_each_object(with_namespaces: Plane, spec: Document, found: Found) -> None:
    made = rendered(spec, found, uid="00000000-0000-4000-8000-000000000000")
    query = "fieldManager=dovetail-operator&force=true&fieldValidation=Strict&dryRun=All"
    for document in made:
        meta = document["metadata"]
        path = resource_of(document).path(meta.get("namespace"), meta["name"])
        taken = with_namespaces.request("PATCH", f"{path}?{query}", document, APPLY_PATCH)
        assert (taken["kind"], taken["metadata"]["name"]) == (document["kind"], meta["name"])
