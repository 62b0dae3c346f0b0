# SPDX-License-Identifier: Apache-2.0
"""deploy/idle-policy runs `dovetail idle-policy` once and restricted. Its rights: tests/idlepolicy/test_on_plane.py."""

from __future__ import annotations

from typing import Any

import yaml

from dovetail import __version__
from dovetail.idlepolicy.run import IdlePolicyOptions
from tests.paths import ROOT

FOLDER = ROOT / "deploy/idle-policy"


def documents(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((FOLDER / name).read_text()) if found]


def test_it_runs_in_this_version_once_and_restricted() -> None:
    (stateful_set,), (kustomization,) = documents("statefulset.yaml"), documents("kustomization.yaml")
    assert kustomization["images"][0]["newTag"] == __version__
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in FOLDER.iterdir()}
    assert (stateful_set["kind"], stateful_set["spec"]["replicas"]) == ("StatefulSet", 1)
    pod = stateful_set["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["args"] == ["idle-policy"] and "volumes" not in pod
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_prometheus_reaches_its_metrics() -> None:
    (stateful_set,), (service,), (network,) = map(
        documents, ("statefulset.yaml", "service.yaml", "network-policy.yaml")
    )
    (port,) = stateful_set["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert IdlePolicyOptions().listen.endswith(f":{port['containerPort']}")
    assert service["spec"]["ports"] == [{"name": "http", "port": port["containerPort"], "targetPort": "http"}]
    assert service["spec"]["selector"] == stateful_set["spec"]["selector"]["matchLabels"]
    assert network["spec"]["podSelector"] == stateful_set["spec"]["selector"]
    assert stateful_set["spec"]["serviceName"] == service["metadata"]["name"]
