# SPDX-License-Identifier: Apache-2.0
"""The chart makes the objects that kustomize makes, checks its values, and lets pods pass Pod Security."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import __version__
from tests.paths import ROOT
from tools.helm.programs import Helm, HelmFailed, Kustomize, documents

CHART = ROOT / "deploy/chart"
HERE = "--namespace=dovetail-system"
DIGEST = "sha256:" + "0123456789abcdef" * 4
Document = dict[str, Any]
SPEC = {"scheduler": {"replicas": 3}, "agentPlanes": {"enabled": True}, "takeOver": ["device-plugin"]}


def by_identity(objects: Iterable[Document]) -> dict[tuple[str, str, str], Document]:
    found = {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in objects}
    return dict(sorted(found.items()))


def hooks(objects: Iterable[Document]) -> list[Document]:
    return [one for one in objects if "helm.sh/hook" in one["metadata"].get("annotations", {})]


def all_of(helm: Helm, *options: str) -> list[Document]:
    """The objects with hooks and tests."""
    return documents(helm.run("template", "dovetail", str(CHART), HERE, *options))


def pods(objects: Iterable[Document]) -> list[Document]:
    return [one["spec"]["template"]["spec"] if "template" in one.get("spec", {}) else one["spec"] for one in objects
            if one["kind"] in ("Deployment", "Job", "Pod")]  # fmt: skip


@pytest.mark.plane
def test_it_makes_the_objects_that_kustomize_makes(helm: Helm, kustomize: Kustomize) -> None:
    made = helm.template(CHART, HERE, "--include-crds", "--set=uninstall.removeStack=false")
    wanted = by_identity([*kustomize.build(ROOT / "deploy/crds"), *kustomize.build(ROOT / "deploy/operator")])
    # The namespace of a release is there before it.
    del wanted["Namespace", "", "dovetail-system"]
    assert by_identity(made) == wanted


@pytest.mark.plane
def test_it_has_no_fault(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.lint(CHART, HERE)


@pytest.mark.plane
def test_values_reach_the_operator_and_the_stack(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump(
            {
                "image": {
                    "repository": "registry.example/dovetail",
                    "digest": DIGEST,
                    "pullPolicy": "Always",
                    "pullSecrets": ["pull"],
                },
                "operator": {"replicas": 1, "logLevel": "debug", "nodeSelector": {"role": "infra"}},
                "stack": {"name": "gpus", "spec": SPEC},
            }
        )
    )
    made = by_identity(all_of(helm, f"--values={values}"))
    deployment = made["Deployment", "dovetail-system", "dovetail-operator"]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert deployment["replicas"] == 1
    assert container["args"][-1] == "--log-level=debug"
    assert deployment["template"]["spec"]["nodeSelector"] == {"role": "infra"}
    assert made["GPUStack", "", "gpus"]["spec"] == SPEC
    for pod in pods(made.values()):
        (container,) = pod["containers"]
        assert (container["image"], container["imagePullPolicy"]) == (f"registry.example/dovetail@{DIGEST}", "Always")
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
    made = by_identity(all_of(helm, "--set=image.tag=0.9.9"))
    assert {pod["containers"][0]["image"] for pod in pods(made.values())} == {"dovetail:0.9.9"}


@pytest.mark.plane
@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("operator.replicas=-1", "replicas"),
        ("operator.replicas=many", "replicas"),
        ("image.digest=sha256:0123", "digest"),
        ("image.repository=", "repository"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("stack.name=Upper", "name"),
        ("stack.spec=all", "spec"),
        ("replicas=2", "replicas"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(helm: Helm, setting: str, path: str) -> None:
    with pytest.raises(HelmFailed, match=path):
        helm.template(CHART, HERE, f"--set={setting}")


@pytest.mark.plane
def test_another_namespace_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmFailed, match="--namespace dovetail-system"):
        helm.template(CHART, "--namespace=default")


@pytest.mark.plane
def test_pods_of_hooks_and_tests_are_restricted_and_have_few_rights(helm: Helm) -> None:
    made = all_of(helm)
    for pod in pods(made):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not container["securityContext"]["allowPrivilegeEscalation"]
    roles = {one["metadata"]["name"]: one for one in hooks(made) if one["kind"] == "ClusterRole"}
    verbs = {name: {verb for rule in role["rules"] for verb in rule["verbs"]} for name, role in roles.items()}
    assert verbs == {"dovetail-uninstall": {"get", "list", "delete"}, "dovetail-test": {"list"}}
    # A hook that stays would stay for ever: Helm deletes none of them with the release.
    assert {
        "hook-succeeded" in one["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for one in hooks(made)
    } == {True}


def test_the_chart_is_of_this_release_and_its_files_are_those_of_kustomize() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    for link in (CHART / "operator", CHART / "agent-namespaces", CHART / "people", *(CHART / "crds").iterdir()):
        assert link.is_symlink() and link.resolve().is_relative_to(ROOT / "deploy")
    definitions = {path.name for path in (ROOT / "deploy/crds").iterdir()} - {"kustomization.yaml"}
    assert {path.name for path in (CHART / "crds").iterdir()} == definitions


def test_each_value_has_a_schema_and_a_comment() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, group in values.items():
        assert set(group) == set(schema["properties"][name]["properties"])
    assert set(schema["properties"]) - {"global"} == set(values)
