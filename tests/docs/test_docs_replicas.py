# SPDX-License-Identifier: Apache-2.0
"""The manifests of replicas by need: the command takes its arguments, names and ports agree, lint finds nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.serve.serve_replicas import command
from dovetail.replicas import metrics
from dovetail.replicas.count import ReplicaCount
from dovetail.replicas.workload import WORKLOADS
from tests.docs.pages import page
from tests.paths import ROOT

TEXT = (ROOT / "docs/how-to/watch-serving.md").read_text()
OBJECTS: list[dict[str, Any]] = [
    one
    for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    for one in yaml.safe_load_all(block)
]  # fmt: skip


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in OBJECTS if one.get("kind") == kind]


def test_the_fields_of_the_answer() -> None:
    rows = page("docs/reference/cli.md").section("dovetail serve replicas").rows("field")
    assert {name for row in rows for name in row.code[0]} == set(ReplicaCount.__struct_fields__)


def test_the_command_takes_the_arguments_of_the_deployment() -> None:
    (deployment,) = of_kind("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    words = container["args"]
    assert words[:2] == ["serve", "replicas"]
    context = command.make_context("replicas", list(words[2:]))
    assert context.params["listen"].endswith(f":{container['ports'][0]['containerPort']}")
    assert context.params["workloads"] == ("llama",) and context.params["most"] == 20


def test_an_autoscaler_asks_for_the_metric_and_labels_that_there_are() -> None:
    (scaled,), (autoscaler,) = of_kind("ScaledObject"), of_kind("HorizontalPodAutoscaler")
    (trigger,), (external,) = scaled["spec"]["triggers"], autoscaler["spec"]["metrics"]
    (family,) = metrics.DESIRED.describe()
    query = trigger["metadata"]["query"]
    assert query.startswith(f"max({family.name}{{") and external["external"]["metric"]["name"] == family.name
    assert set(re.findall(r"(\w+)=", query)) == {"namespace", *metrics.DESIRED._labelnames}
    labels = external["external"]["metric"]["selector"]["matchLabels"]
    assert labels == {"kind": "Deployment", "workload": "llama"}
    # Without it KEDA takes a number that is not known for 0.
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    (adapter,) = of_kind("ConfigMap")
    (rule,) = yaml.safe_load(adapter["data"]["config.yaml"])["externalRules"]
    assert rule["name"]["as"] == family.name and rule["seriesQuery"].startswith(f"{family.name}{{")


def test_the_rights_are_those_that_are_used() -> None:
    (role,) = of_kind("Role")
    granted = {(group, one) for rule in role["rules"] for group in rule["apiGroups"] for one in rule["resources"]}
    assert granted == {("", "pods"), ("", "resourcequotas"), *((one.group, one.plural) for one in WORKLOADS.values())}
    assert {one["roleRef"]["name"] for one in of_kind("RoleBinding")} == {"replicas", "dovetail-viewer"}
    assert {one["metadata"]["namespace"] for one in OBJECTS} == {"serving", "monitoring"}


@pytest.mark.parametrize("kind", ["Deployment"])
def test_lint_finds_nothing(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(of_kind(kind)))
    done = CliRunner().invoke(cli, ["lint", str(file)])
    assert done.exit_code == 0, done.output
