# SPDX-License-Identifier: Apache-2.0
"""The real Helm and kustomize of the tests: they build objects, and report faults with what they were called for."""

from pathlib import Path

import pytest

from tests.paths import ROOT
from tools.helm import programs
from tools.helm.programs import Helm, HelmFailed, Kustomize, KustomizeFailed

pytestmark = pytest.mark.plane

CHART = """
apiVersion: v2
name: small
version: 1.0.0
icon: https://example.com/small.svg
"""
TEMPLATE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: small, namespace: "{{ .Release.Namespace }}"}
data: {level: "{{ required "a level is needed" .Values.level }}"}
"""


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text(CHART)
    (folder / "values.yaml").write_text("level: high\n")
    (folder / "templates" / "map.yaml").write_text(TEMPLATE)
    return folder


def test_both_helms_are_the_pinned_ones(helm: Helm) -> None:
    version = helm.run("version", "--template={{.Version}}")
    assert version == {"v3": programs.HELM_3_VERSION, "v4": programs.HELM_VERSION}[version[:2]]


def test_a_chart_becomes_objects(helm: Helm, chart: Path) -> None:
    (made,) = helm.template(chart, "--namespace=somewhere", "--set=level=low")
    assert (made["metadata"]["namespace"], made["data"]) == ("somewhere", {"level": "low"})
    assert "0 chart(s) failed" in helm.lint(chart)


def test_a_fault_of_a_chart_is_reported(helm: Helm, chart: Path) -> None:
    with pytest.raises(HelmFailed, match="a level is needed"):
        helm.template(chart, "--set=level=")


def test_kustomize_builds_the_manifests_of_the_scheduler(kustomize: Kustomize, tmp_path: Path) -> None:
    kinds = {one["kind"] for one in kustomize.build(ROOT / "deploy")}
    assert {"Deployment", "ClusterRole", "NetworkPolicy"} <= kinds
    (tmp_path / "kustomization.yaml").write_text("resources: [absent.yaml]\n")
    with pytest.raises(KustomizeFailed, match=r"absent\.yaml"):
        kustomize.build(tmp_path)
