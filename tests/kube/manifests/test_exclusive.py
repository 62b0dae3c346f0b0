# SPDX-License-Identifier: Apache-2.0
"""JobSets whose Jobs want a domain of a topology for themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.kube.manifests.documents import Document
from dovetail.kube.manifests.workloads import expanded

RACKS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
BY_NODE_SELECTOR = {"alpha.jobset.sigs.k8s.io/node-selector": "true"}


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "9", "memory": "9Gi", "pods": "99", "nvidia.com/gpu": "4"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"rack": RACKS[name]}},
        "status": status,
    }


def jobset(jobs: int, *, of_set: Any = None, of_job: Any = None, spec: Any = None, gpus: int = 4) -> dict[str, Any]:
    containers = [{"name": "a", "image": "b", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]
    pod = {"schedulerName": "dovetail", "restartPolicy": "Never", "containers": containers, **(spec or {})}
    job = {"parallelism": 2, "completions": 2, "template": {"spec": pod}}
    replicated = {"name": "w", "replicas": jobs, "template": {"metadata": {"annotations": of_job or {}}, "spec": job}}
    meta = {"name": "s", "annotations": of_set or {}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {"replicatedJobs": [replicated]},
    }


def placed(folder: Path, whole: dict[str, Any]) -> dict[str, str]:
    """The rack of each pod that was placed, by its name."""
    file = folder / "all.yaml"
    file.write_text(yaml.safe_dump_all([*map(node, RACKS), whole]))
    result = CliRunner().invoke(cli, ["simulate", str(file), "-o", "json"])
    assert result.exit_code in (0, 1), result.output
    return {one["pod"]: RACKS[one["node"]] for one in json.loads(result.stdout)["placed"]}


def affinities(whole: dict[str, Any]) -> list[Any]:
    pods = [one.value for one in expanded([Document("f", whole)]).documents if one.value["kind"] == "Pod"]
    return [pod["spec"].get("affinity") for pod in pods]


@pytest.mark.parametrize("gpus", [2, 4])
@pytest.mark.parametrize("place", ["of_set", "of_job"])
def test_each_job_has_a_rack_of_its_own(tmp_path: Path, place: str, gpus: int) -> None:
    racks = placed(tmp_path, jobset(3, gpus=gpus, **{place: EXCLUSIVE}))
    assert len(racks) == 4
    by_job: dict[str, set[str]] = {}
    for pod, rack in racks.items():
        by_job.setdefault(pod[:-2], set()).add(rack)
    assert sorted(map(sorted, by_job.values())) == [["a"], ["b"]]


def test_without_it_jobs_share_a_rack(tmp_path: Path) -> None:
    assert len(placed(tmp_path, jobset(3, gpus=2))) == 6


def test_the_affinity_of_the_template_is_kept() -> None:
    own = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
    term = {"requiredDuringSchedulingIgnoredDuringExecution": [own]}
    spec = {"affinity": {"podAffinity": term, "nodeAffinity": {}}}
    first, second = affinities(jobset(1, of_set=EXCLUSIVE, spec=spec))
    for one in (first, second):
        kept, added = one["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert kept == own and added["topologyKey"] == "rack" and one["nodeAffinity"] == {}
    assert "podAntiAffinity" in first and "podAntiAffinity" not in second
    assert spec["affinity"]["podAffinity"] == {"requiredDuringSchedulingIgnoredDuringExecution": [own]}


@pytest.mark.parametrize("marks", [{}, {**EXCLUSIVE, **BY_NODE_SELECTOR}])
def test_the_webhook_adds_nothing(marks: dict[str, str]) -> None:
    assert affinities(jobset(2, of_set=marks)) == [None] * 4


@pytest.mark.parametrize("marks", [{"alpha.jobset.sigs.k8s.io/exclusive-topology": 3}, "x"])
def test_what_is_no_annotation_is_reported(marks: Any) -> None:
    (fault,) = expanded([Document("f", jobset(1, of_set=marks))]).faults
    assert "metadata.annotations" in fault.field


def test_empty_fields_are_no_annotations() -> None:
    whole = jobset(1)
    whole["metadata"]["annotations"] = whole["spec"]["replicatedJobs"][0]["template"]["metadata"] = None
    assert affinities(whole) == [None, None]
