# SPDX-License-Identifier: Apache-2.0
"""`dovetail install`, `status` and `uninstall` on a real API server, with and without an operator that runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail import __version__
from dovetail.cli.install import command as install
from dovetail.cli.status import command as status
from dovetail.cli.uninstall import command as uninstall
from dovetail.kube.api.client import MERGE_PATCH
from dovetail.operator import manifest_objects
from dovetail.operator.skew import RELEASE_ANNOTATION
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane, RequestFailed

pytestmark = [pytest.mark.plane, pytest.mark.slow]

Document = dict[str, Any]
QUEUE = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "team"}, "spec": {"weight": 3}}
DEPLOYMENTS = "/apis/apps/v1/deployments"
OPERATOR = "/apis/apps/v1/namespaces/dovetail-system/deployments/dovetail-operator"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {
    "definitions": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "namespaces": "/api/v1/namespaces",
    "clusterroles": f"{RBAC}/clusterroles",
    "clusterrolebindings": f"{RBAC}/clusterrolebindings",
    "policies": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "volumes": "/api/v1/persistentvolumeclaims",
    "queues": "/apis/dovetail.dev/v1alpha1/queues",
    "gpustacks": "/apis/dovetail.dev/v1alpha1/gpustacks",
}
FINALIZER = "dovetail.dev/operator"
AGENTS_ROLE = "ClusterRole dovetail-agent-planes-namespace"
PEOPLE = {f"ClusterRole dovetail-{name}" for name in ("viewer", "cluster-operator", "admin")}
CLAIMS = [
    {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{volume}-{owner}-0", "labels": {"app.kubernetes.io/name": owner}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
    }
    for volume, owner in (("state", "dovetail-agent-planes"), ("history", "dovetail-collector"))
]  # fmt: skip


class Installation:
    """The commands on one plane."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def _run(self, command: Any, *arguments: str) -> Result:
        return CliRunner().invoke(command, [f"--kubeconfig={self.plane.kubeconfig}", *arguments])

    def install(self, *arguments: str) -> Result:
        return self._run(install, *arguments)

    def actions(self, *arguments: str) -> dict[str, str]:
        """By object what `install` has done, or would do."""
        found = self.install("--no-wait", "--output=json", *arguments)
        assert found.exit_code == 0, found.output
        return {f"{one['kind']} {one['name']}": one["action"] for one in json.loads(found.stdout)["objects"]}

    def status(self) -> tuple[int, Document]:
        found = self._run(status, "--output=json")
        return found.exit_code, json.loads(found.stdout)

    def uninstall(self, *arguments: str) -> Document:
        found = self._run(uninstall, "--output=json", *arguments)
        assert found.exit_code == 0, found.output
        removal: Document = json.loads(found.stdout)
        return removal

    def names(self, *kinds: str) -> list[str]:
        """Kind and name of all objects of these kinds; none of a kind that is not served."""
        found = [(kind, one["metadata"]["name"]) for kind in kinds for one in self._items(KINDS[kind])]
        return [f"{kind}/{name}" for kind, name in found]

    def _items(self, path: str) -> list[Document]:
        listed = self.plane.get(path)
        return [] if listed is None else listed["items"]

    def patch(self, path: str, body: Document) -> None:
        self.plane.request("PATCH", path, body, MERGE_PATCH)

    def create(self, path: str, document: Document, *, dry_run: bool = False) -> None:
        self.plane.request("POST", f"{path}?dryRun=All" if dry_run else path, document)

    def delete(self, path: str) -> None:
        self.plane.request("DELETE", path)

    def await_account(self, namespace: str) -> None:
        """Wait for the account that pods of a new namespace have."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.plane.get(f"{KINDS['namespaces']}/{namespace}/serviceaccounts/default") is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def annotate(self, path: str, name: str, value: str | None) -> None:
        self.patch(path, {"metadata": {"annotations": {name: value}}})


def ours(names: list[str]) -> list[str]:
    return [name for name in names if "dovetail" in name]


CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolumeclaim-protection-controller",
    "replicaset-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "validatingadmissionpolicy-status-controller",
)
"""Those of the kinds that are installed and removed. Others follow each definition that comes and goes, for nothing."""


@pytest.fixture(scope="module")
def shared_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with Plane(controllers=CONTROLLERS, work_dir=tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture
def here(shared_plane: Plane) -> Iterator[Installation]:
    """The definitions of a test before stay: an API server needs a second of CPU time to make them, and one to remove
    them."""
    found = Installation(shared_plane)
    yield found
    found.uninstall("--delete-data")


@pytest.fixture
def bare(here: Installation) -> Installation:
    """Nothing of Dovetail is there, not even a definition."""
    if ours(here.names("definitions")):
        here.uninstall("--delete-data", "--delete-crds")
    return here


def test_the_plan_for_the_stack_of_others_writes_nothing(bare: Installation) -> None:
    shown = bare.install("--plan")
    assert shown.exit_code == 0 and "No component of NVIDIA's stack was found" in shown.stdout
    assert json.loads(bare.install("--plan", "--output=json").stdout)["components"] == []
    assert ours(bare.names("definitions", "namespaces")) == []


def test_it_is_installed_once_and_nothing_is_written_again(bare: Installation) -> None:
    planned = bare.actions("--dry-run")
    assert set(planned.values()) == {"create"} and len(planned) > 20
    assert {"ValidatingAdmissionPolicy dovetail-scheduler-agent-pods", AGENTS_ROLE, *PEOPLE} < planned.keys()
    assert ours(bare.names("definitions", "namespaces")) == []
    assert bare.actions() == planned
    again = bare.actions()
    assert again.pop("GPUStack dovetail") == "keep"
    assert set(again.values()) == {"unchanged"}
    code, found = bare.status()
    assert code == 1
    assert [one["object"] for one in found["problems"]] == ["Deployment dovetail-system/dovetail-operator"]
    assert found["versions"]["definitions"] == {__version__: len(manifest_objects.definitions())}


def test_what_others_changed_is_shown_and_restored(here: Installation) -> None:
    here.actions()
    here.patch(f"{OPERATOR}/scale", {"spec": {"replicas": 0}})
    here.delete(f"{KINDS['policies']}/dovetail-operator-own")
    shown = here.install("--dry-run").stdout
    assert "spec.replicas" in shown and "1 to create, 1 to update, " in shown
    changed = {name: action for name, action in here.actions().items() if action not in ("unchanged", "keep")}
    assert changed == {
        "Deployment dovetail-operator": "update",
        "ValidatingAdmissionPolicy dovetail-operator-own": "create",
    }
    assert here.actions("--image=other.example/dovetail:0.1.1")["Deployment dovetail-operator"] == "update"


def test_a_stack_of_the_users_own_is_applied_and_kept(here: Installation, tmp_path: Path) -> None:
    file = tmp_path / "stack.yaml"
    stack = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "metadata": {"name": "gpus"},
             "spec": {"scheduler": {"replicas": 1}}}  # fmt: skip
    file.write_text(yaml.safe_dump(stack))
    assert here.actions(f"--stack={file}")["GPUStack gpus"] == "create"
    assert here.actions(f"--stack={file}")["GPUStack gpus"] == "unchanged"
    assert here.actions()["GPUStack gpus"] == "keep"
    stack["metadata"] = {"name": "second"}
    file.write_text(yaml.safe_dump(stack))
    refused = here.install(f"--stack={file}")
    assert refused.exit_code == 1 and "GPUStack gpus is there already" in refused.output
    file.write_text(yaml.safe_dump({"kind": "Queue"}))
    assert "has to hold one GPUStack" in here.install(f"--stack={file}").output
    stack |= {"metadata": {"name": "gpus"}, "spec": {"agent": {"enabled": False}}}
    file.write_text(yaml.safe_dump(stack))
    refused = here.install(f"--stack={file}")
    assert refused.exit_code == 1 and "validation.enabled" in refused.output


def test_newer_definitions_stay_and_those_that_are_too_new_end_it(here: Installation) -> None:
    def set_release(release: str) -> None:
        here.annotate(f"{KINDS['definitions']}/queues.dovetail.dev", RELEASE_ANNOTATION, release)

    here.actions()
    set_release("0.1.9")
    assert here.actions()["CustomResourceDefinition queues.dovetail.dev"] == "keep"
    set_release("0.9.0")
    refused = here.install("--image=other.example/dovetail:0.1.1")
    assert refused.exit_code == 1 and "too new for release" in refused.output
    assert "other.example" not in json.dumps(here.plane.get(DEPLOYMENTS))
    code, found = here.status()
    assert code == 1
    assert any("definitions 0.9.0 does not work with operator" in one["wrong"] for one in found["problems"])
    set_release(__version__)


def test_without_an_operator_it_is_uninstalled_all_the_same_and_the_users_data_stays(here: Installation) -> None:
    here.actions()
    here.create(KINDS["queues"], QUEUE)
    here.patch(f"{KINDS['gpustacks']}/dovetail", {"metadata": {"finalizers": [FINALIZER]}})
    # Half of it was done before: the operator is gone, its stack is not.
    here.delete(OPERATOR)
    here.delete(f"{KINDS['gpustacks']}/dovetail")
    would = here.uninstall("--dry-run")
    assert "GPUStack dovetail" in would["removed"]
    removal = here.uninstall()
    assert removal["removed"] == would["removed"]
    assert ours(here.names("namespaces", "clusterroles", "clusterrolebindings", "policies")) == []
    assert here.names("queues", "gpustacks") == ["queues/team"]
    assert [text.partition(":")[0] for text in removal["kept"]] == [
        "1 Queue",
        "the definitions of Dovetail's kinds",
    ]
    assert here.uninstall()["removed"] == []
    assert here.uninstall("--delete-data", "--delete-crds")["removed"] == [
        "1 Queue",
        *(f"CustomResourceDefinition {one['metadata']['name']}" for one in manifest_objects.definitions()),
    ]
    assert here.plane.get(KINDS["queues"]) is None


def test_the_objects_are_printed_without_a_cluster(bare: Installation) -> None:
    shown = CliRunner().invoke(install, ["--dry-run", "--output=yaml", "--image=r.example/dovetail:1"])
    documents = list(yaml.safe_load_all(shown.stdout))
    bare.plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(documents[:-1]))
    assert documents[-1]["kind"] == "GPUStack"
    assert "r.example/dovetail:1" in json.dumps(bare.plane.get(DEPLOYMENTS))


def test_a_namespace_in_which_others_run_stays(here: Installation) -> None:
    here.actions()
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs"},
        "spec": {"containers": [{"name": "main", "image": "job"}]},
    }  # fmt: skip
    pods = "/api/v1/namespaces/dovetail-agent/pods"
    here.await_account("dovetail-agent")
    here.create(pods, pod)
    removal = here.uninstall()
    assert [text for text in removal["kept"] if "theirs" in text]
    assert "Namespace dovetail-agent" not in removal["removed"]
    here.delete(f"{pods}/theirs?gracePeriodSeconds=0")


def test_volumes_with_data_stay_with_their_namespace_unless_data_is_to_go(here: Installation) -> None:
    here.actions()
    for claim in CLAIMS:
        here.create("/api/v1/namespaces/dovetail-system/persistentvolumeclaims", claim)
    removal = here.uninstall()
    (kept,) = [text for text in removal["kept"] if "dovetail-system" in text]
    assert "PersistentVolumeClaim state-dovetail-agent-planes-0 has the endpoints of agents" in kept
    assert "PersistentVolumeClaim history-dovetail-collector-0 has the history of the cluster" in kept
    assert {"Namespace dovetail-agent", AGENTS_ROLE, *PEOPLE} < set(removal["removed"])
    assert here.names("namespaces", "volumes").count("namespaces/dovetail-system") == 1
    assert here.actions()["Namespace dovetail-system"] in ("update", "unchanged")
    assert "Namespace dovetail-system" in here.uninstall("--delete-data")["removed"]
    assert ours(here.names("namespaces", "volumes")) == []


def test_pods_in_the_namespace_of_an_agent_are_the_scheduler_s_from_then_on(here: Installation) -> None:
    """No admin has to apply anything else."""
    here.actions()
    plane = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "AgentControlPlane", "metadata": {"name": "a"}}
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "passes-by"},
        "spec": {"containers": [{"name": "main", "image": "job", "resources": resources}]},
    }  # fmt: skip
    here.create(KINDS["namespaces"], {"metadata": {"name": "agent-a"}})
    pods = "/api/v1/namespaces/agent-a/pods"
    try:
        here.await_account("agent-a")
        here.create(
            "/apis/dovetail.dev/v1alpha1/namespaces/agent-a/agentcontrolplanes", plane | {"spec": {"queue": "agents"}}
        )
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            # The API server reads a policy and its parameters after a moment.
            try:
                here.create(pods, pod, dry_run=True)
            except RequestFailed as error:
                assert "pods get devices within a lease" in str(error)
                break
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        here.uninstall()
        here.create(pods, pod, dry_run=True)
    finally:
        here.delete(f"{KINDS['namespaces']}/agent-a")


def test_what_helm_has_installed_is_left_to_helm(here: Installation) -> None:
    here.actions()
    here.annotate(OPERATOR, "meta.helm.sh/release-name", "gpus")
    assert "helm upgrade gpus" in here.install("--no-wait").output
    refused = here._run(uninstall)
    assert refused.exit_code == 1 and "helm uninstall gpus" in refused.output
    here.annotate(OPERATOR, "meta.helm.sh/release-name", None)
