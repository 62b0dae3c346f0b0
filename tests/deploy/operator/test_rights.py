# SPDX-License-Identifier: Apache-2.0
"""deploy/operator/ grants the operator what its page lists. With that it can apply all that deploy/, deploy/agent/,
deploy/agent-planes/, deploy/dashboard/ and deploy/idle-policy/ hold and remove it again, and can do nothing to what is
not its own."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.kube.api.resources import (
    CONTROLLER_REVISIONS,
    EVENTS,
    GPU_NODES,
    GPU_STACKS,
    NODES,
    PODS,
    RESOURCE_SLICES,
)
from dovetail.kube.objects.stack import GPUStack, StackMeta
from dovetail.operator.gpu_search.search_pod import removal_patch, result_patch, search_pod, searched
from dovetail.operator.kinds import OWNED
from dovetail.operator.surroundings import DEFINITIONS
from dovetail.operator.watched.nodes import WatchedNode
from tests.docs.pages import page
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane.credentials import Authority
from tools.controlplane.plane import KubectlFailed, Plane, RequestFailed

DEPLOY = ROOT / "deploy"
APIS = "/apis/apiregistration.k8s.io/v1/apiservices"
NODES_PATH = "/api/v1/nodes"
GPU_1 = f"{NODES_PATH}/gpu-1"
JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"
OPERATOR = DEPLOY / "operator"
ACCOUNT = ("dovetail-system", "dovetail-operator")
OURS = {"app.kubernetes.io/managed-by": "dovetail-operator"}
LABEL = "app.kubernetes.io/managed-by=dovetail-operator"
NAMESPACES = {"dovetail-system", "dovetail-agent"}
Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def roles() -> dict[str, list[Document]]:
    """The rules of each role, by its name."""
    return {
        one["metadata"]["name"]: one["rules"]
        for one in documents(OPERATOR / "rbac.yaml")
        if one["kind"] in ("ClusterRole", "Role")
    }


def made() -> list[Document]:
    """What a GPUStack could want of deploy/, deploy/agent/, deploy/agent-planes/, deploy/dashboard/ and
    deploy/idle-policy/, with all their functions; without the namespaces."""
    files = [path for path in sorted(DEPLOY.glob("*.yaml")) if path.name != "kustomization.yaml"]
    for part in ("agent", "agent-planes", "dashboard", "idle-policy"):
        files += [path for path in sorted((DEPLOY / part).glob("*.yaml")) if path.name != "kustomization.yaml"]
    for folder in (DEPLOY / "functions", DEPLOY / "agent/functions"):
        files += sorted(folder.glob("*/role.yaml"))
    for part in ("views", "history"):
        folder = DEPLOY / "functions" / part
        files += [path for path in sorted(folder.glob("*.yaml")) if path.name != "kustomization.yaml"]
    found = [one for path in files for one in documents(path) if one["kind"] != "Namespace"]
    for one in found:
        one["metadata"].setdefault("labels", {}).update(OURS)
    return found


def test_no_rule_has_a_wildcard_a_secret_or_a_command_in_a_pod() -> None:
    forbidden = {"*", "secrets", "pods/exec", "pods/attach", "pods/portforward", "nodes/proxy", "serviceaccounts/token"}
    for rules in roles().values():
        for rule in rules:
            assert not forbidden & {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert "impersonate" not in rule["verbs"]
            if {"escalate", "bind"} & set(rule["verbs"]):
                assert rule["resourceNames"]


def test_it_may_write_each_named_object_of_deploy_and_no_other() -> None:
    """Rights over roles and policies are by name."""
    named: dict[str, set[str]] = {}
    for rules in roles().values():
        for rule in rules:
            for resource in rule["resources"] if "patch" in rule["verbs"] else ():
                named.setdefault(resource, set()).update(rule.get("resourceNames", ()))
    by_kind: dict[str, set[str]] = {}
    for one in made():
        by_kind.setdefault(one["kind"], set()).add(one["metadata"]["name"])
    definitions = {one["metadata"]["name"] for path in (DEPLOY / "crds").glob("*.yaml") for one in documents(path)
                   if one["kind"] == "CustomResourceDefinition"}  # fmt: skip
    assert named["clusterroles"] == by_kind["ClusterRole"]
    bound_by_people = {"dovetail-metrics-reader", "dovetail-software-agent"}
    assert named["clusterrolebindings"] | bound_by_people == by_kind["ClusterRole"]
    assert named["roles"] == named["rolebindings"] == by_kind["Role"]
    assert named["apiservices"] == by_kind["APIService"]
    assert named["endpointslices"] == by_kind["EndpointSlice"]
    assert named["validatingadmissionpolicies"] == by_kind["ValidatingAdmissionPolicy"]
    assert named["customresourcedefinitions"] == definitions | {"gpustacks.dovetail.dev"}


def test_it_reads_the_kinds_that_the_code_follows() -> None:
    """In the whole cluster; what it writes is seen by the tests that run under its rights."""
    followed = {(kind.group, kind.plural) for kind in OWNED}
    followed |= {(kind.group, kind.plural) for kind in (NODES, PODS, EVENTS, RESOURCE_SLICES, CONTROLLER_REVISIONS)}
    followed |= {(kind.group, kind.plural) for kind in (GPU_STACKS, GPU_NODES, DEFINITIONS)}
    reading = {
        (group, resource)
        for rule in roles()["dovetail-operator"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "list" in rule["verbs"]
    }
    assert reading == followed


def test_the_page_names_the_rights() -> None:
    table = page("docs/reference/operator-privileges.md").section("At the API server").rows("role")
    documented = {
        (row.code[0][0], row.cells[1], resource, verb)
        for row in table
        for resource in row.code[2]
        for verb in row.cells[3].split(", ")
    }
    assert documented == {
        (name, group or "core", resource, verb)
        for name, rules in roles().items()
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_namespaces_are_those_of_the_manifests_without_an_operator() -> None:
    own = {one["metadata"]["name"]: one for one in documents(OPERATOR / "namespaces.yaml")}
    assert list(own.values()) == [*documents(DEPLOY / "namespace.yaml"), *documents(DEPLOY / "agent/namespace.yaml")]


def binding(role: str, subject: Document, name: str = "dovetail-agent") -> Document:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": OURS},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }


def api(**spec: Any) -> Document:
    """The registration of views, with these fields instead."""
    (found,) = documents(DEPLOY / "functions/views/apiservice.yaml")
    return found | {"metadata": found["metadata"] | {"labels": OURS}, "spec": found["spec"] | spec}


AGENT = {"kind": "ServiceAccount", "name": "dovetail-agent", "namespace": "dovetail-agent"}
STRANGER = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
USER = {"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}


class Account:
    """Requests of the operator, with kubectl where that is more than one."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._kubeconfig = f"--kubeconfig={plane.service_account_kubeconfig(*ACCOUNT)}"
        self._user = "system:serviceaccount:" + ":".join(ACCOUNT)
        plane.kubeconfig_for(self._user, ["system:serviceaccounts", f"system:serviceaccounts:{ACCOUNT[0]}"])
        self._plurals: dict[tuple[str, str], str] = {}

    def run(self, *arguments: str, input: str | None = None) -> str:
        return self._plane.kubectl(self._kubeconfig, *arguments, input=input)

    def apply(self, *objects: Document) -> None:
        for one in objects:
            query = "fieldManager=dovetail-operator&force=true&fieldValidation=Strict"
            path = f"{self.path(one)}?{query}"
            self._plane.request("PATCH", path, one, "application/apply-patch+yaml", user=self._user)

    def delete(self, one: Document) -> None:
        self._plane.request("DELETE", self.path(one), user=self._user)

    def path(self, one: Document) -> str:
        version, meta = one["apiVersion"], one["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, one["kind"]) not in self._plurals:
            served = self._plane.request("GET", root)["resources"]
            self._plurals |= {(version, each["kind"]): each["name"] for each in served if "/" not in each["name"]}
        place = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
        return f"{root}{place}/{self._plurals[version, one['kind']]}/{meta['name']}"

    def patch(self, path: str, body: Document) -> None:
        self._plane.request("PATCH", path, body, MERGE_PATCH, self._user)

    def refused(self, method: str, path: str, body: Document | None = None) -> str:
        """Why it may not ask this."""
        with pytest.raises(RequestFailed) as raised:
            self._plane.request(method, path, body, MERGE_PATCH if method == "PATCH" else JSON, self._user)
        text = str(raised.value)
        assert "forbidden" in text, text
        return text

    def may_not_delete(self, one: Document) -> str:
        return self.refused("DELETE", self.path(one))

    def refusal(self, one: Document) -> str:
        """Why it may not apply this; "" if it may, and has."""
        try:
            self.apply(one)
        except RequestFailed as error:
            return str(error)
        return ""

    def apply_refused(self, one: Document) -> str:
        text = self.refusal(one)
        assert "forbidden" in text, text
        return text


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """With the operator's rights and limits, and a node."""
    with Plane(controllers=False, work_dir=tmp_path_factory.mktemp("plane")) as plane:
        for name in ("namespaces", "rbac", "limits"):
            plane.kubectl("apply", "--server-side", "-f", str(OPERATOR / f"{name}.yaml"))
        plane.request("POST", NODES_PATH, {"metadata": {"name": "gpu-1", "labels": {"rack": "a"}}})
        yield plane


@pytest.fixture(scope="module")
def operator(cluster: Plane) -> Account:
    """The account, once its limits are in force: that is a moment after they were written."""
    account = Account(cluster)
    probes = {
        "nodes": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe", "labels": {"rack": "b"}}},
        "roles": binding("dovetail-agent", STRANGER),
        "apis": api(service={"name": "other", "namespace": "dovetail-system", "port": 443}),
        "own": {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "x"}, "handler": "x"},
    }
    deadline = time.monotonic() + PATIENCE_S
    for name, probe in probes.items():
        if name == "nodes":
            # It may make none, so there has to be one.
            cluster.request("POST", NODES_PATH, {"metadata": {"name": "probe"}})
        while f"dovetail-operator-{name}" not in account.refusal(probe):
            # What is applied twice is not examined again: it changes nothing.
            probe["metadata"]["labels"] = {"tried": str(time.monotonic_ns())}
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if cluster.get(account.path(probe)):
            cluster.request("DELETE", account.path(probe))
    return account


@pytest.mark.plane
def test_it_can_make_all_that_a_stack_wants_and_remove_it(cluster: Plane, operator: Account) -> None:
    everything = made()
    assert len(everything) > 30
    operator.apply(*everything)
    operator.apply(*everything)
    for one in reversed(everything):
        operator.delete(one)
    left = "deployments,daemonsets,statefulsets,endpointslices"
    assert cluster.kubectl("get", left, "--all-namespaces", "-o", "name", "-l", LABEL).strip() == ""
    assert "dovetail" not in cluster.kubectl("get", "apiservices", "-o", "name")


REGISTERS = {
    "apiGroups": ["apiregistration.k8s.io"],
    "resources": ["apiservices"],
    "resourceNames": ["v1alpha1.views.dovetail.dev"],
    "verbs": ["patch"],
}
"""What the scheduler has."""


@pytest.mark.plane
@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]}, "wildcards"),
        ({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}, "wildcards, Secrets"),
        ({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}, "commands in pods"),
        ({"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}, "rights over rights"),
        ({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["get"]}, "over roles"),
        (
            {
                "apiGroups": ["admissionregistration.k8s.io"],
                "resources": ["validatingadmissionpolicies"],
                "verbs": ["delete"],
            },
            "writes admission",
        ),
        (REGISTERS | {"resourceNames": ["v1.apps"]}, "of APIs"),
        (REGISTERS | {"verbs": ["patch", "delete"]}, "of APIs"),
        ({name: value for name, value in REGISTERS.items() if name != "resourceNames"}, "of APIs"),
        (REGISTERS | {"resources": ["apiservices", "apiservices/status"]}, "of APIs"),
        (REGISTERS | {"apiGroups": ["apiregistration.k8s.io", "apps"]}, "of APIs"),
        ({"nonResourceURLs": ["/debug"], "verbs": ["get"]}, "past the API server"),
    ],
)
def test_a_role_cannot_hold_more_than_scheduler_and_agents_need(operator: Account, rule: Document, why: str) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "dovetail-agent", "labels": OURS},
        "rules": [rule],
    }
    assert why in operator.apply_refused(role)


@pytest.mark.plane
def test_roles_go_to_accounts_of_dovetail_alone(operator: Account) -> None:
    operator.apply(binding("dovetail-agent", AGENT))
    operator.delete(binding("dovetail-agent", AGENT))
    for subject in (STRANGER, USER):
        assert "dovetail-system and dovetail-agent alone" in operator.apply_refused(binding("dovetail-agent", subject))
    assert "its own roles" in operator.apply_refused(binding("dovetail-operator", AGENT))
    operator.apply_refused(binding("cluster-admin", AGENT))
    operator.apply_refused(binding("dovetail-agent", AGENT, name="another"))


@pytest.mark.plane
def test_what_holds_in_the_namespaces_of_agents_is_for_an_admin_to_write(cluster: Plane, operator: Account) -> None:
    folder = DEPLOY / "agent-namespaces"
    cluster.kubectl("apply", "--server-side", "-f", str(DEPLOY / "crds/agentcontrolplane.yaml"))
    cluster.kubectl("apply", "--server-side", "-k", str(folder))
    found = [one for name in ("role.yaml", "policy.yaml") for one in documents(folder / name)]
    assert len(found) == 3
    for one in found:
        one["metadata"]["labels"] = OURS
        operator.apply_refused(one)
        operator.may_not_delete(one)


@pytest.mark.plane
def test_the_roles_of_people_are_for_an_admin_to_write(cluster: Plane, operator: Account) -> None:
    cluster.kubectl("apply", "--server-side", "-k", str(DEPLOY / "people"))
    roles_of_people = documents(DEPLOY / "people/roles.yaml")
    assert len(roles_of_people) == 3
    for one in roles_of_people:
        one["metadata"].setdefault("labels", {}).update(OURS)
        operator.apply_refused(one)
        operator.may_not_delete(one)
    # Nor does a role of its own become part of what all users have.
    joins = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    own = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [],
        "metadata": {"name": "dovetail-agent", "labels": OURS | joins},
    }  # fmt: skip
    assert "becomes part of another one" in operator.apply_refused(own)


CERTIFICATE = b64encode(Authority("views").pem).decode()
VIEWS = {"name": "dovetail-views", "namespace": "dovetail-system", "port": 443}


@pytest.mark.plane
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"service": VIEWS | {"name": "other"}}, "dovetail-views"),
        ({"service": VIEWS | {"namespace": "default"}}, "dovetail-views"),
        ({"service": None}, "dovetail-views"),
        ({"insecureSkipTLSVerify": True}, "trusts"),
        ({"caBundle": CERTIFICATE}, "trusts"),
    ],
)
def test_the_api_of_views_is_answered_by_dovetail_and_the_operator_sets_no_certificate(
    cluster: Plane, operator: Account, spec: Document, why: str
) -> None:
    assert why in operator.apply_refused(api(**spec))
    operator.apply(api())
    try:
        assert why in operator.apply_refused(api(**spec))
        path = operator.path(api())
        scheduler = cluster.request("PATCH", path, {"spec": {"caBundle": CERTIFICATE}}, MERGE_PATCH)
        assert scheduler["spec"]["caBundle"] == CERTIFICATE
        operator.apply(api(versionPriority=11))
        kept = cluster.get(path)
        assert (kept["spec"]["caBundle"], kept["spec"]["versionPriority"]) == (CERTIFICATE, 11)
        assert "trusts" in operator.refused("PATCH", path, {"spec": {"caBundle": None}})
        operator.refused("PATCH", f"{path}/status", {"status": {"conditions": []}})
    finally:
        operator.delete(api())


@pytest.mark.plane
def test_it_registers_no_other_api_and_directs_no_other_service(operator: Account) -> None:
    other = api(group="other.dovetail.dev")
    other["metadata"]["name"] = "v1alpha1.other.dovetail.dev"
    operator.apply_refused(other)
    operator.refused("DELETE", f"{APIS}/v1.apps")
    # Each API has its own Service.
    (history,) = documents(DEPLOY / "functions/history/apiservice.yaml")
    history["metadata"]["labels"] = OURS
    crossed = history | {"spec": history["spec"] | {"service": VIEWS}}
    assert "the history by dovetail-history" in operator.apply_refused(crossed)
    operator.apply(history)
    operator.delete(history)
    own = next(one for one in documents(DEPLOY / "functions/views/service.yaml") if one["kind"] == "EndpointSlice")
    for meta in ({"name": "kubernetes"}, {"namespace": "default"}):
        operator.apply_refused(own | {"metadata": own["metadata"] | {"labels": OURS} | meta})


@pytest.mark.plane
def test_of_a_node_it_writes_its_taint_and_the_labels_of_layouts_and_parts(operator: Account) -> None:
    def labels(**labels: str | None) -> Document:
        return {"metadata": {"labels": labels}}

    def taints(*taints: tuple[str, str]) -> Document:
        return {"spec": {"taints": [{"key": key, "effect": effect} for key, effect in taints]}}

    operator.patch(GPU_1, taints(("dovetail.dev/not-ready", "NoSchedule")))
    operator.patch(GPU_1, labels(**{"nvidia.com/gpu.deploy.device-plugin": "false", "dovetail.dev/pool": "a"}))
    operator.patch(GPU_1, labels(**{"nvidia.com/mig.config": "all-balanced"}))
    assert "rack" in operator.refused("PATCH", GPU_1, labels(rack="c"))
    assert "rack" in operator.refused("PATCH", GPU_1, labels(rack=None))
    both = taints(("dovetail.dev/not-ready", "NoSchedule"), ("other.dev/x", "NoExecute"))
    operator.refused("PATCH", GPU_1, both)
    operator.refused("PATCH", GPU_1, {"spec": {"unschedulable": True}})
    operator.refused("PATCH", GPU_1, {"metadata": {"annotations": {"other": "x"}}})
    operator.refused("PATCH", GPU_1, {"metadata": {"finalizers": ["other.dev/x"]}})
    operator.refused("DELETE", GPU_1)
    operator.patch(GPU_1, taints())


@pytest.mark.plane
def test_it_deletes_nothing_of_others(cluster: Plane, operator: Account) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "own", "namespace": "dovetail-agent"}}
    cluster.request("POST", "/api/v1/namespaces/dovetail-agent/serviceaccounts", account)
    assert "only what it has made" in operator.may_not_delete(account)
    assert "bears the label" in operator.apply_refused(account)
    elsewhere = {**account, "metadata": {"name": "own", "namespace": "default", "labels": OURS}}
    operator.apply_refused(elsewhere)
    operator.refused("DELETE", "/api/v1/namespaces/dovetail-agent")
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    operator.refused("DELETE", f"{policies}/dovetail-operator-own")
    itself = {**account, "metadata": {"name": "dovetail-operator", "namespace": "dovetail-system", "labels": OURS}}
    assert "its own installation" in operator.apply_refused(itself)
    cluster.request("DELETE", operator.path(account))


@pytest.mark.plane
def test_it_reads_no_secret_and_speaks_for_nobody(operator: Account) -> None:
    operator.refused("GET", "/api/v1/secrets")
    operator.refused("GET", "/api/v1/namespaces/dovetail-system/secrets")
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    operator.refused("POST", "/api/v1/namespaces/dovetail-system/serviceaccounts/dovetail-operator/token", token)
    with pytest.raises(KubectlFailed, match="forbidden"):
        operator.run("get", "nodes", "--as=system:admin")


@pytest.mark.plane
def test_it_may_search_a_node_for_gpus_and_write_the_result(cluster: Plane, operator: Account) -> None:
    pod = search_pod(GPUStack(StackMeta(name="gpus", uid="u-1")), "gpu-1", "dovetail:1")
    created = operator.run("create", "--dry-run=server", "--output=json", "-f", "-", input=json.dumps(pod))
    assert json.loads(created)["spec"]["nodeName"] == "gpu-1"
    operator.patch(GPU_1, result_patch(8, "a-boot"))
    node = msgspec.convert(cluster.get(GPU_1), WatchedNode)
    assert searched(node) == (8, "a-boot")
    removed = removal_patch(node)
    assert removed
    operator.patch(GPU_1, removed)
    node = msgspec.convert(cluster.get(GPU_1), WatchedNode)
    assert searched(node) == (-1, "") and removal_patch(node) is None


@pytest.mark.plane
def test_the_operators_own_manifests_are_accepted(cluster: Plane, operator: Account) -> None:
    for name in ("deployment", "budget", "network-policy"):
        for one in documents(OPERATOR / f"{name}.yaml"):
            cluster.apply(operator.path(one), one, dry_run=True)


@pytest.mark.plane
@pytest.mark.parametrize(
    "manifest", [DEPLOY / "deployment.yaml", OPERATOR / "deployment.yaml"], ids=["scheduler", "operator"]
)
def test_its_pod_is_within_the_level_restricted_and_one_with_a_path_of_the_host_is_not(
    cluster: Plane, manifest: Path
) -> None:
    (deployment,) = documents(manifest)
    spec = deployment["spec"]["template"]["spec"]
    spec.pop("priorityClassName", None)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "dovetail-system"}, "spec": spec}
    dry_run = "/api/v1/namespaces/dovetail-system/pods?dryRun=All&fieldValidation=Strict"
    cluster.request("POST", dry_run, pod)
    spec["volumes"] = [*spec.get("volumes", []), {"name": "host", "hostPath": {"path": "/etc"}}]
    with pytest.raises(RequestFailed, match="violates PodSecurity"):
        cluster.request("POST", dry_run, pod)
