# SPDX-License-Identifier: Apache-2.0
"""deploy/dashboard runs `dovetail dashboard` restricted, for users as RBAC allows. What its account may decide:
tests/dashboard/test_access.py."""

from __future__ import annotations

from typing import Any

import yaml

from dovetail import __version__
from dovetail.cli.dashboard import LISTEN
from dovetail.cli.dashboard import command as dashboard_command
from dovetail.kube.api.resources import QUEUES
from dovetail.kube.objects.history import HISTORY_GROUP
from dovetail.kube.objects.views import VIEWS_GROUP
from tests.paths import ROOT

FOLDER = ROOT / "deploy/dashboard"


def documents(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((FOLDER / name).read_text()) if found]


def test_it_runs_in_this_version_and_restricted() -> None:
    (deployment,), (kustomization,) = documents("deployment.yaml"), documents("kustomization.yaml")
    assert kustomization["images"][0]["newTag"] == __version__
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in FOLDER.iterdir()}
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["args"][0] == dashboard_command.name and "volumes" not in pod
    known = {option for param in dashboard_command.params for option in param.opts}
    assert {one.partition("=")[0] for one in container["args"][1:]} <= known
    assert "--authorize" in container["args"], "nobody is shown anything without a token"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_its_service_and_its_probes_reach_it() -> None:
    (deployment,), (service,), (network,) = map(documents, ("deployment.yaml", "service.yaml", "network-policy.yaml"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert LISTEN.endswith(f":{port['containerPort']}")
    assert f"--listen=0.0.0.0:{port['containerPort']}" in container["args"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": port["name"]}]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert network["spec"]["podSelector"] == deployment["spec"]["selector"]


def test_its_account_changes_nothing() -> None:
    (role,) = [one for one in documents("rbac.yaml") if one["kind"] == "ClusterRole"]
    verbs: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            verbs.setdefault(group, set()).update(rule["verbs"])
    assert verbs.pop("authentication.k8s.io") == verbs.pop("authorization.k8s.io") == {"create"}
    assert verbs == {VIEWS_GROUP: {"get", "list"}, HISTORY_GROUP: {"list"}, QUEUES.group: {"list"}}, "what is read"
