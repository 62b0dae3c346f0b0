# SPDX-License-Identifier: Apache-2.0
"""deploy/agent-planes runs `dovetail plane serve` restricted; with deploy/agent-namespaces it has the rights that it
needs and no others."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import __version__
from dovetail.agentplanes.credentials import SECRET
from dovetail.agentplanes.serving import ServeOptions
from dovetail.cli.plane import serve
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane

FOLDER, NAMESPACES = ROOT / "deploy/agent-planes", ROOT / "deploy/agent-namespaces"
Granted = set[tuple[str, str, str, str]]


def documents(name: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((folder / name).read_text()) if found]


def granted(role: dict[str, Any]) -> Granted:
    """Group, resource, verb and name."""
    return {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def test_on_the_whole_cluster_it_sees_control_planes_alone() -> None:
    (role,) = [one for one in documents("rbac.yaml") if one["kind"] == "ClusterRole"]
    assert granted(role) == {("dovetail.dev", "agentcontrolplanes", verb, "") for verb in ("get", "list", "watch")}


def test_in_the_namespace_of_an_agent_it_has_what_it_does_there_and_what_the_agent_would_have() -> None:
    (role,) = documents("role.yaml", NAMESPACES)
    agents = yaml.safe_load_all((ROOT / "deploy/leases.yaml").read_text())
    (agent,) = [one for one in agents if one and one["kind"] == "ClusterRole"]
    own = {("", "pods", verb, "") for verb in ("list", "watch", "create", "delete")}
    own |= {("", "pods/log", "get", "")}
    own |= {("", "secrets", "create", ""), *(("", "secrets", verb, SECRET) for verb in ("get", "update"))}
    assert granted(role) == own | granted(agent)


def test_nothing_binds_that_role_by_itself() -> None:
    found = [*documents("rbac.yaml"), *documents("role.yaml", NAMESPACES)]
    (binding,) = [one for one in found if one["kind"].endswith("Binding")]
    assert binding["roleRef"]["name"] == "dovetail-agent-planes"


def test_it_runs_in_this_version_once_and_restricted() -> None:
    (stateful_set,), (kustomization,) = documents("statefulset.yaml"), documents("kustomization.yaml")
    assert kustomization["images"][0]["newTag"] == __version__
    assert (stateful_set["kind"], stateful_set["spec"]["replicas"]) == ("StatefulSet", 1)
    pod = stateful_set["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_its_options_are_those_of_the_command_and_its_files_are_mounted() -> None:
    (stateful_set,), (service,) = map(documents, ("statefulset.yaml", "service.yaml"))
    pod = stateful_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][:2] == ["plane", "serve"]
    options = dict(arg.removeprefix("--").split("=", 1) for arg in container["args"][2:])
    assert {f"--{name}" for name in options} <= {name for one in serve.command.params for name in one.opts}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert options["state"].startswith(f"{mounts['state']}/")
    assert all(options[name].startswith(f"{mounts['tls']}/") for name in ("tls-cert", "tls-key", "tls-ca"))
    (claim,) = stateful_set["spec"]["volumeClaimTemplates"]
    assert {claim["metadata"]["name"], *(volume["name"] for volume in pod["volumes"])} == mounts.keys()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    defaults = ServeOptions(folder=FOLDER)
    assert defaults.address.endswith(f":{ports['endpoints']}") and defaults.listen.endswith(f":{ports['http']}")
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    meta = service["metadata"]
    assert options["url"] == f"https://{meta['name']}.{meta['namespace']}.svc:{ports['endpoints']}"
    assert service["spec"]["selector"] == stateful_set["spec"]["selector"]["matchLabels"]
    assert stateful_set["spec"]["serviceName"] == meta["name"]


def test_everybody_reaches_the_endpoints_and_prometheus_the_metrics() -> None:
    (stateful_set,), (policy,) = documents("statefulset.yaml"), documents("network-policy.yaml")
    assert policy["spec"]["podSelector"] == stateful_set["spec"]["selector"]
    endpoints, metrics = policy["spec"]["ingress"]
    assert endpoints == {"ports": [{"port": "endpoints", "protocol": "TCP"}]}
    assert metrics["from"] == [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]
    assert [one["port"] for one in metrics["ports"]] == ["http"]


@pytest.mark.parametrize("folder", [FOLDER, NAMESPACES], ids=["planes", "namespaces"])
def test_the_kustomization_has_every_file(folder: Path) -> None:
    (kustomization,) = documents("kustomization.yaml", folder)
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in folder.iterdir()}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl puts the manifests together")
@pytest.mark.parametrize("folder", [FOLDER, NAMESPACES], ids=["planes", "namespaces"])
def test_the_manifests_can_be_put_together(folder: Path) -> None:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    assert {one["metadata"].get("namespace", "dovetail-system") for one in yaml.safe_load_all(done.stdout)} == {
        "dovetail-system"
    }


@pytest.mark.plane
def test_the_claim_is_made_kept_and_used_again_and_a_pod_that_never_was_ready_is_replaced(
    plane: Plane,
) -> None:
    """By the controller of StatefulSets."""
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/operator/namespaces.yaml"))
    for _ in range(2):
        plane.kubectl("apply", "--server-side", "-k", str(FOLDER))
        _wait(lambda: _pod(plane), lambda pod: pod)
        (claim,) = plane.get(f"{CORE}/persistentvolumeclaims")["items"]
        assert (claim["metadata"]["name"], claim["spec"]["resources"]["requests"]) == (CLAIM, {"storage": "10Gi"})
        assert claim["metadata"]["labels"] == {"app.kubernetes.io/name": "dovetail-agent-planes"}
        patch = '{"spec": {"template": {"metadata": {"annotations": {"changed": "yes"}}}}}'
        plane.kubectl("-n", "dovetail-system", "patch", "statefulset", "dovetail-agent-planes", f"--patch={patch}")
        _wait(lambda: _pod(plane), lambda pod: pod.get("metadata", {}).get("annotations", {}).get("changed") == "yes")
        plane.kubectl("delete", "--wait=false", "-k", str(FOLDER))
        _wait(lambda: _pod(plane), lambda pod: not pod)
    assert [one["metadata"]["uid"] for one in plane.get(f"{CORE}/persistentvolumeclaims")["items"]] == [
        claim["metadata"]["uid"]
    ]
    plane.request("DELETE", f"{CORE}/persistentvolumeclaims/{CLAIM}")


CORE, CLAIM = "/api/v1/namespaces/dovetail-system", "state-dovetail-agent-planes-0"


def _pod(plane: Plane) -> dict[str, Any]:
    """The pod of the process, {} for none."""
    return plane.get(f"{CORE}/pods/dovetail-agent-planes-0") or {}


def _wait(question: Callable[[], dict[str, Any]], wanted: Callable[[dict[str, Any]], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not wanted(found := question()):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)
