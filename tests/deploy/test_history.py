# SPDX-License-Identifier: Apache-2.0
"""deploy/functions/history: a collector that only reads, once, with a volume that it may write."""

from __future__ import annotations

from typing import Any

import click
import yaml

from dovetail.cli import collector
from dovetail.history.collector.run import CollectorOptions
from tests.paths import ROOT

FOLDER = ROOT / "deploy/functions/history"


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((FOLDER / name).read_text()) if one]


def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_it_may_read_what_the_scheduler_reads_and_write_nothing() -> None:
    (role,) = [one for one in documents("rbac.yaml") if one["kind"] == "ClusterRole"]
    scheduler = yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text())
    rules = next(one for one in scheduler if one["kind"] == "ClusterRole")["rules"]
    reads = {one for one in granted(rules) if one[2] in ("get", "list", "watch")}
    assert granted(role["rules"]) == {one for one in reads if one[0] != "admissionregistration.k8s.io"}


def test_it_runs_once_restricted_with_the_options_of_the_command() -> None:
    (stateful_set,), (service,) = documents("statefulset.yaml"), documents("service.yaml")
    spec = stateful_set["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (1, service["metadata"]["name"])
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
    name, *options = container["args"]
    assert name == collector.command.name
    known = {option for one in collector.command.params if isinstance(one, click.Option) for option in one.opts}
    assert {option.partition("=")[0] for option in options} <= known
    (port,) = container["ports"]
    assert CollectorOptions(FOLDER).listen.endswith(f":{port['containerPort']}")
    (store,) = [option.partition("=")[2] for option in options if option.startswith("--store=")]
    (mount,) = container["volumeMounts"]
    assert store.startswith(f"{mount['mountPath']}/")
    (claim,) = spec["volumeClaimTemplates"]
    assert mount["name"] == claim["metadata"]["name"]


def test_only_prometheus_reaches_it() -> None:
    (stateful_set,), (policy,) = documents("statefulset.yaml"), documents("network-policy.yaml")
    assert policy["spec"]["podSelector"] == stateful_set["spec"]["selector"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]


def test_the_component_has_every_file() -> None:
    (component,) = documents("kustomization.yaml")
    files = {path.name for path in FOLDER.iterdir()} - {"kustomization.yaml"}
    assert set(component["resources"]) == files
    assert "# - functions/history" in (ROOT / "deploy/kustomization.yaml").read_text()
