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
from dovetail.operator import manifest_objects
from dovetail.operator.skew import RELEASE_ANNOTATION
from tests.patience import PATIENCE_S
from tools.controlplane.plane import KubectlFailed, Plane

pytestmark = [pytest.mark.plane, pytest.mark.slow]

Document = dict[str, Any]
QUEUE = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "team"}, "spec": {"weight": 3}}
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

    def names(self, kinds: str) -> str:
        return self.plane.kubectl("get", kinds, "--all-namespaces", "-o", "name")


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
    if "dovetail" in here.names("crd"):
        here.uninstall("--delete-data", "--delete-crds")
    return here


def test_the_plan_for_the_stack_of_others_writes_nothing(bare: Installation) -> None:
    shown = bare.install("--plan")
    assert shown.exit_code == 0 and "No component of NVIDIA's stack was found" in shown.stdout
    assert json.loads(bare.install("--plan", "--output=json").stdout)["components"] == []
    assert "dovetail" not in bare.names("crd,namespaces")


def test_it_is_installed_once_and_nothing_is_written_again(bare: Installation) -> None:
    planned = bare.actions("--dry-run")
    assert set(planned.values()) == {"create"} and len(planned) > 20
    assert {"ValidatingAdmissionPolicy dovetail-scheduler-agent-pods", AGENTS_ROLE, *PEOPLE} < planned.keys()
    assert "dovetail" not in bare.names("crd,namespaces")
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
    here.plane.kubectl("scale", "deployment", "dovetail-operator", "--namespace=dovetail-system", "--replicas=0")
    here.plane.kubectl("delete", "validatingadmissionpolicy", "dovetail-operator-own")
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
        here.plane.kubectl("annotate", "crd", "queues.dovetail.dev", f"{RELEASE_ANNOTATION}={release}", "--overwrite")

    here.actions()
    set_release("0.1.9")
    assert here.actions()["CustomResourceDefinition queues.dovetail.dev"] == "keep"
    set_release("0.9.0")
    refused = here.install("--image=other.example/dovetail:0.1.1")
    assert refused.exit_code == 1 and "too new for release" in refused.output
    assert "other.example" not in here.plane.kubectl("get", "deployments", "-A", "-o", "yaml")
    code, found = here.status()
    assert code == 1
    assert any("definitions 0.9.0 does not work with operator" in one["wrong"] for one in found["problems"])
    set_release(__version__)


def test_without_an_operator_it_is_uninstalled_all_the_same_and_the_users_data_stays(here: Installation) -> None:
    here.actions()
    here.plane.kubectl("create", "-f", "-", input=json.dumps(QUEUE))
    patch = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    here.plane.kubectl("patch", "gpustack", "dovetail", "--type=merge", f"--patch={patch}")
    # Half of it was done before: the operator is gone, its stack is not.
    here.plane.kubectl("delete", "deployment", "dovetail-operator", "--namespace=dovetail-system")
    here.plane.kubectl("delete", "gpustack", "dovetail", "--wait=false")
    would = here.uninstall("--dry-run")
    assert "GPUStack dovetail" in would["removed"]
    removal = here.uninstall()
    assert removal["removed"] == would["removed"]
    assert "dovetail" not in here.names("namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies")
    assert here.names("queues,gpustacks").split() == ["queue.dovetail.dev/team"]
    assert [text.partition(":")[0] for text in removal["kept"]] == [
        "1 Queue",
        "the definitions of Dovetail's kinds",
    ]
    assert here.uninstall()["removed"] == []
    assert here.uninstall("--delete-data", "--delete-crds")["removed"] == [
        "1 Queue",
        *(f"CustomResourceDefinition {one['metadata']['name']}" for one in manifest_objects.definitions()),
    ]
    with pytest.raises(KubectlFailed):
        here.names("queues")


def test_the_objects_are_printed_without_a_cluster(bare: Installation) -> None:
    shown = CliRunner().invoke(install, ["--dry-run", "--output=yaml", "--image=r.example/dovetail:1"])
    documents = list(yaml.safe_load_all(shown.stdout))
    bare.plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(documents[:-1]))
    assert documents[-1]["kind"] == "GPUStack"
    assert "r.example/dovetail:1" in bare.plane.kubectl("get", "deployments", "-A", "-o", "yaml")


def test_a_namespace_in_which_others_run_stays(here: Installation) -> None:
    here.actions()
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs", "namespace": "dovetail-agent"},
        "spec": {"containers": [{"name": "main", "image": "job"}]},
    }  # fmt: skip
    here.plane.kubectl("create", "-f", "-", input=json.dumps(pod))
    removal = here.uninstall()
    assert [text for text in removal["kept"] if "theirs" in text]
    assert "Namespace dovetail-agent" not in removal["removed"]
    here.plane.kubectl("delete", "pod", "theirs", "--namespace=dovetail-agent", "--now")


def test_volumes_with_data_stay_with_their_namespace_unless_data_is_to_go(here: Installation) -> None:
    here.actions()
    for claim in CLAIMS:
        here.plane.kubectl("create", "--namespace=dovetail-system", "-f", "-", input=json.dumps(claim))
    removal = here.uninstall()
    (kept,) = [text for text in removal["kept"] if "dovetail-system" in text]
    assert "PersistentVolumeClaim state-dovetail-agent-planes-0 has the endpoints of agents" in kept
    assert "PersistentVolumeClaim history-dovetail-collector-0 has the history of the cluster" in kept
    assert {"Namespace dovetail-agent", AGENTS_ROLE, *PEOPLE} < set(removal["removed"])
    assert here.names("namespaces,persistentvolumeclaims").split().count("namespace/dovetail-system") == 1
    assert here.actions()["Namespace dovetail-system"] in ("update", "unchanged")
    assert "Namespace dovetail-system" in here.uninstall("--delete-data")["removed"]
    assert "dovetail" not in here.names("namespaces,persistentvolumeclaims")


def test_pods_in_the_namespace_of_an_agent_are_the_scheduler_s_from_then_on(here: Installation) -> None:
    """No admin has to apply anything else."""
    here.actions()
    plane = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "AgentControlPlane", "metadata": {"name": "a"}}
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "passes-by"},
        "spec": {"containers": [{"name": "main", "image": "job", "resources": resources}]},
    }  # fmt: skip
    here.plane.kubectl("create", "namespace", "agent-a")
    try:
        create = ("create", "--namespace=agent-a", "-f", "-")
        here.plane.kubectl(*create, input=json.dumps(plane | {"spec": {"queue": "agents"}}))
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            # The API server reads a policy and its parameters after a moment.
            try:
                here.plane.kubectl(*create, "--dry-run=server", input=json.dumps(pod))
            except KubectlFailed as error:
                assert "pods get devices within a lease" in str(error)
                break
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        here.uninstall()
        here.plane.kubectl(*create, "--dry-run=server", input=json.dumps(pod))
    finally:
        here.plane.kubectl("delete", "namespace", "agent-a", "--wait=false")


def test_what_helm_has_installed_is_left_to_helm(here: Installation) -> None:
    here.actions()
    place = ("deployment", "dovetail-operator", "--namespace=dovetail-system")
    here.plane.kubectl("annotate", *place, "meta.helm.sh/release-name=gpus")
    assert "helm upgrade gpus" in here.install("--no-wait").output
    refused = here._run(uninstall)
    assert refused.exit_code == 1 and "helm uninstall gpus" in refused.output
    here.plane.kubectl("annotate", *place, "meta.helm.sh/release-name-")
