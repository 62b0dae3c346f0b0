# SPDX-License-Identifier: Apache-2.0
"""Releases of the chart on a real API server, by Helm 4 and Helm 3: installed, upgraded from the release before, rolled
back, uninstalled. The operator runs beside it under the rights that the release gives it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import __version__
from dovetail.kube.api.client import MERGE_PATCH
from dovetail.operator.skew import RELEASE_ANNOTATION
from tests.breadth import BREADTH
from tests.forked import Forked, run_forked
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane
from tools.helm.programs import Helm, HelmFailed

CHART = ROOT / "deploy/chart"
HERE = "--namespace=dovetail-system"
OLD = "0.0.9"
KINDS = ("agentcontrolplanes", "fabrics", "gpuleases", "gpunodes", "gpustacks", "leaserequests", "queues")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEPLOYMENTS = "/apis/apps/v1/namespaces/dovetail-system/deployments"
PODS = "/api/v1/namespaces/dovetail-system/pods"
NAMESPACES = "/api/v1/namespaces"
OURS = "/apis/dovetail.dev/v1alpha1"
Document = dict[str, Any]

pytestmark = [pytest.mark.plane, pytest.mark.slow]


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as of a release before: other definitions, another image, fewer replicas, neither views nor roles of
    people."""
    chart = tmp_path_factory.mktemp("older") / "dovetail"
    shutil.copytree(CHART, chart)
    text = (chart / "Chart.yaml").read_text()
    (chart / "Chart.yaml").write_text(text.replace(f"ersion: {__version__}", f"ersion: {OLD}"))
    values = yaml.safe_load((chart / "values.yaml").read_text())
    values["operator"]["replicas"] = 1
    values["stack"]["spec"] = {"scheduler": {"views": False}}
    (chart / "values.yaml").write_text(yaml.safe_dump(values))
    kustomization = chart / "operator/kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("  - ../people\n", ""))
    for path in (chart / "crds").iterdir():
        definition = yaml.safe_load(path.read_text())
        definition["metadata"]["annotations"][RELEASE_ANNOTATION] = OLD
        del definition["spec"]["versions"][0]["additionalPrinterColumns"]
        path.write_text(yaml.safe_dump(definition))
    return chart


class Cluster:
    """The plane, and what a test looks at."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def get(self, path: str) -> Document | None:
        """An object; None where it is not there."""
        found: Document | None = self.plane.get(path)
        return found

    def releases_of_definitions(self) -> set[str]:
        found = [self.get(f"{DEFINITIONS}/{kind}.dovetail.dev") for kind in KINDS]
        return {one["metadata"]["annotations"][RELEASE_ANNOTATION] if one else "" for one in found}

    def image(self) -> str:
        deployment = self.get(f"{DEPLOYMENTS}/dovetail-operator")
        return str(deployment and deployment["spec"]["template"]["spec"]["containers"][0]["image"])

    def condition(self, kind: str) -> str:
        stack = self.get(f"{OURS}/gpustacks/dovetail") or {}
        found = [one for one in stack.get("status", {}).get("conditions", ()) if one["type"] == kind]
        return f"{found[0]['status']} {found[0]['reason']}: {found[0].get('message', '')}" if found else ""

    def scheduler_registers(self) -> None:
        """A leader writes its address, at which nobody answers."""
        until(lambda: self.get(SLICE) is not None, "there is a place for the address")
        self.patch(SLICE, {"endpoints": [{"addresses": ["192.0.2.7"]}]})

    def patch(self, path: str, body: Document) -> None:
        self.plane.request("PATCH", path, body, MERGE_PATCH)

    def left(self, path: str) -> list[str]:
        """The names of what is there of Dovetail in a collection."""
        listed = self.get(path) or {"items": []}
        return [name for one in listed["items"] if "dovetail" in (name := one["metadata"]["name"])]

    @contextmanager
    def operator(self) -> Iterator[None]:
        """The operator runs, as the account of the release."""
        kubeconfig = self.plane.service_account_kubeconfig("dovetail-system", "dovetail-operator")
        arguments = ["operator", f"--kubeconfig={kubeconfig}", "--listen=", f"--image={self.image()}"]
        with Forked(*arguments):
            yield

    @contextmanager
    def jobs(self) -> Iterator[list[str]]:
        """Pods of the release's Jobs and tests run, on this machine, each as its account; their arguments."""
        ran: list[str] = []
        stopped = threading.Event()

        def run() -> None:
            while not stopped.wait(0.2):
                pods = self.get(PODS) or {"items": []}
                for pod in pods["items"]:
                    if pod["status"].get("phase") == "Pending" and pod["spec"]["restartPolicy"] == "Never":
                        ran.append(self._run(pod))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield ran
        finally:
            stopped.set()
            thread.join()

    def _run(self, pod: Document) -> str:
        kubeconfig = self.plane.service_account_kubeconfig("dovetail-system", pod["spec"]["serviceAccountName"])
        (container,) = pod["spec"]["containers"]
        arguments = [*container["args"], f"--kubeconfig={kubeconfig}"]
        done = run_forked(*arguments)
        phase = "Failed" if done.returncode else "Succeeded"
        state = {"terminated": {"exitCode": done.returncode, "reason": "Completed"}}
        status = {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": container["name"],
                    "ready": False,
                    "restartCount": 0,
                    "image": container["image"],
                    "imageID": "",
                    "state": state,
                }
            ],
        }
        path = f"{PODS}/{pod['metadata']['name']}/status"
        self.patch(path, {"status": status})
        return f"{' '.join(container['args'])}: {done.returncode} {done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Plane(work_dir=tmp_path_factory.mktemp("plane")) as plane:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        plane.request("POST", NAMESPACES, {"metadata": {"name": "dovetail-system", "labels": labels}})
        yield Cluster(plane)


@pytest.fixture(params=["helm", "helm3"][:BREADTH])
def installer(
    cluster: Cluster, helm_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Helm]:  # fmt: skip
    yield Helm(helm_folder, tmp_path / "helm", cluster.plane.kubeconfig, request.param)
    until(lambda: cluster.get("/api/v1/namespaces/dovetail-agent") is None, "the namespace of the agents ends")
    for name in cluster.left(DEFINITIONS):
        cluster.plane.request("DELETE", f"{DEFINITIONS}/{name}")
    until(lambda: cluster.left(DEFINITIONS) == [], "the definitions end")


QUEUE = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "team"}, "spec": {"weight": 3}}


REMOVED = [
    f"/{group}/{kind}"
    for group, kinds in {
        "api/v1": ("serviceaccounts", "services"),
        "apis/apps/v1": ("deployments", "daemonsets"),
        "apis/batch/v1": ("jobs",),
        "apis/discovery.k8s.io/v1": ("endpointslices",),
        "apis/node.k8s.io/v1": ("runtimeclasses",),
        "apis/rbac.authorization.k8s.io/v1": ("roles", "rolebindings", "clusterroles", "clusterrolebindings"),
        "apis/admissionregistration.k8s.io/v1": (
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ),
    }.items()
    for kind in kinds
]
SLICE = "/apis/discovery.k8s.io/v1/namespaces/dovetail-system/endpointslices/dovetail-views-ipv4"
API = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.views.dovetail.dev"
VIEWER = "/apis/rbac.authorization.k8s.io/v1/clusterroles/dovetail-viewer"


def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled(
    cluster: Cluster, installer: Helm, older: Path
) -> None:
    installer.run("install", "dovetail", str(older), HERE)
    assert cluster.image() == f"dovetail:{OLD}"
    cluster.plane.request("POST", f"{OURS}/queues", QUEUE)
    with cluster.operator():
        # The operator is of this release already, as in an upgrade before its Deployment is rolled out.
        until(lambda: cluster.releases_of_definitions() == {__version__}, "the definitions are brought up to date")
        until(lambda: cluster.condition("Applied").startswith("True"), cluster.condition("Applied"))
    assert cluster.get(API) is None and cluster.get(VIEWER) is None
    settings = [f"--set=stack.spec.scheduler.{one}" for one in ("replicas=1", "views=true")]
    installer.run("upgrade", "dovetail", str(CHART), HERE, *settings)
    assert cluster.image() == f"dovetail:{__version__}"
    with cluster.operator():
        scheduler = f"{DEPLOYMENTS}/dovetail-scheduler"
        until(lambda: (cluster.get(scheduler) or {"spec": {}})["spec"].get("replicas") == 1, "the value is applied")
        cluster.scheduler_registers()
        until(lambda: cluster.get(API) is not None, "views are registered")
        assert cluster.get(VIEWER) is not None
        cluster.plane.request("POST", NAMESPACES, {"metadata": {"name": "rolled-back"}})
        cluster.plane.request("DELETE", f"{NAMESPACES}/rolled-back")
        installer.run("rollback", "dovetail", "1", HERE)
        assert cluster.image() == f"dovetail:{OLD}"
        assert cluster.releases_of_definitions() == {__version__}
        until(lambda: cluster.get(scheduler)["spec"]["replicas"] == 2, "the value is taken back")  # type: ignore[index]
        # The API that nobody answered is gone, and the end of namespaces waits no longer for it.
        until(lambda: cluster.get(API) is None, "views are taken back")
        until(lambda: cluster.get(f"{NAMESPACES}/rolled-back") is None, "the namespace ends")
        assert cluster.get(VIEWER) is None
        # It is uninstalled with views.
        cluster.patch(f"{OURS}/gpustacks/dovetail", {"spec": {"scheduler": {"views": True}}})
        cluster.scheduler_registers()
        until(lambda: cluster.get(API) is not None, "views are registered again")
        with cluster.jobs() as ran:
            installer.run("uninstall", "dovetail", HERE, "--timeout=120s")
    assert [one for one in ran if not one.startswith("uninstall --stacks-only: 0")] == [] and ran
    assert cluster.get(f"{OURS}/gpustacks/dovetail") is None
    for path in REMOVED:
        assert cluster.get(path) is not None
        until(lambda path=path: cluster.left(path) == [], path)
    assert cluster.get(API) is None and cluster.get(VIEWER) is None
    # What the user keeps.
    assert cluster.releases_of_definitions() == {__version__}
    kept = cluster.get(f"{OURS}/queues/team")
    assert kept is not None and kept["spec"]["weight"] == 3


EMPTY = ("scheduler.enabled", "agent.enabled", "validation.enabled", "startupTaint")
"""Of the spec, what runs pods, which a plane without kubelets never has."""


@pytest.mark.parametrize("installer", ["helm"], indirect=True)
def test_the_release_is_tested_by_its_status(cluster: Cluster, installer: Helm) -> None:
    settings = [f"--set=stack.spec.{field}=false" for field in EMPTY]
    installer.run("install", "dovetail", str(CHART), HERE, "--set=operator.replicas=0", *settings)
    with cluster.operator():
        until(lambda: cluster.condition("Applied").startswith("True"), cluster.condition("Applied"))
        with cluster.jobs() as ran:
            installer.run("test", "dovetail", HERE)
            cluster.patch(f"{DEPLOYMENTS}/dovetail-operator/scale", {"spec": {"replicas": 1}})
            with pytest.raises(HelmFailed):
                installer.run("test", "dovetail", HERE)
            installer.run("uninstall", "dovetail", HERE, "--timeout=120s")
    assert "healthy" in ran[0] and "broken: 1 problem" in ran[1]
