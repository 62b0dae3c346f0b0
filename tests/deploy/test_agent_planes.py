# SPDX-License-Identifier: Apache-2.0
"""deploy/agent-planes runs `dovetail plane serve` restricted, with the rights that it needs and no others."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
import yaml

from dovetail import __version__
from dovetail.agentplanes.credentials import SECRET
from dovetail.agentplanes.serving import ServeOptions
from dovetail.cli.plane import serve
from tests.paths import ROOT

FOLDER = ROOT / "deploy/agent-planes"
Granted = set[tuple[str, str, str, str]]


def documents(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((FOLDER / name).read_text()) if found]


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
    (role,) = [
        one for one in documents("rbac.yaml") if one["metadata"]["name"] == "dovetail-agent-planes" and "rules" in one
    ]
    assert granted(role) == {("dovetail.dev", "agentcontrolplanes", verb, "") for verb in ("get", "list", "watch")}


def test_in_the_namespace_of_an_agent_it_has_what_it_does_there_and_what_the_agent_would_have() -> None:
    (role,) = [one for one in documents("rbac.yaml") if one["metadata"]["name"].endswith("-namespace")]
    agents = yaml.safe_load_all((ROOT / "deploy/leases.yaml").read_text())
    (agent,) = [one for one in agents if one and one["kind"] == "ClusterRole"]
    own = {("", "pods", verb, "") for verb in ("list", "watch", "create", "delete")}
    own |= {("", "pods/log", "get", "")}
    own |= {("", "secrets", "create", ""), *(("", "secrets", verb, SECRET) for verb in ("get", "update"))}
    assert granted(role) == own | granted(agent)


def test_nothing_binds_that_role_by_itself() -> None:
    (binding,) = [one for one in documents("rbac.yaml") if one["kind"].endswith("Binding")]
    assert binding["roleRef"]["name"] == "dovetail-agent-planes"


def test_the_deployment_runs_this_version_once_and_restricted() -> None:
    (deployment,), (kustomization,) = documents("deployment.yaml"), documents("kustomization.yaml")
    assert kustomization["images"][0]["newTag"] == __version__
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_its_options_are_those_of_the_command_and_its_files_are_mounted() -> None:
    (deployment,), (claim,), (service,) = map(documents, ("deployment.yaml", "state.yaml", "service.yaml"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][:2] == ["plane", "serve"]
    options = dict(arg.removeprefix("--").split("=", 1) for arg in container["args"][2:])
    assert {f"--{name}" for name in options} <= {name for one in serve.command.params for name in one.opts}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert options["state"].startswith(f"{mounts['state']}/")
    assert all(options[name].startswith(f"{mounts['tls']}/") for name in ("tls-cert", "tls-key", "tls-ca"))
    state = next(volume for volume in pod["volumes"] if volume["name"] == "state")
    assert state["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    defaults = ServeOptions(folder=FOLDER)
    assert defaults.address.endswith(f":{ports['endpoints']}") and defaults.listen.endswith(f":{ports['http']}")
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    meta = service["metadata"]
    assert options["url"] == f"https://{meta['name']}.{meta['namespace']}.svc:{ports['endpoints']}"
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_everybody_reaches_the_endpoints_and_prometheus_the_metrics() -> None:
    (deployment,), (policy,) = documents("deployment.yaml"), documents("network-policy.yaml")
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    endpoints, metrics = policy["spec"]["ingress"]
    assert endpoints == {"ports": [{"port": "endpoints", "protocol": "TCP"}]}
    assert metrics["from"] == [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]
    assert [one["port"] for one in metrics["ports"]] == ["http"]


def test_the_kustomization_has_every_file() -> None:
    (kustomization,) = documents("kustomization.yaml")
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in FOLDER.iterdir()}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl puts the manifests together")
def test_the_manifests_can_be_put_together() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True)
    assert {one["metadata"].get("namespace", "dovetail-system") for one in yaml.safe_load_all(done.stdout)} == {
        "dovetail-system"
    }
