# SPDX-License-Identifier: Apache-2.0
"""A real kube-apiserver takes the objects of other schedulers, and what `dovetail migrate` makes of them: no field is
unknown or of a wrong type. The definitions of the others' kinds are the tests' own, from the table schemas.yaml, which
was made from their published ones; those of Dovetail's Queue and of Kubernetes are real."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.advice.migrate.step import MigrationTarget
from tests.advice.lint.dry_runs import DryRuns
from tests.advice.migrate.crds import KINDS, definitions
from tests.advice.migrate.moved import migrated, values
from tests.paths import ROOT
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
OF_OTHERS = {"coscheduling", "kai", "kueue", "volcano", "yunikorn"}
TARGETS = ((), (MigrationTarget.NATIVE,))
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def server(plane: Plane) -> Iterator[DryRuns]:
    made = [*definitions(), yaml.safe_load((ROOT / "deploy/crds/queue.yaml").read_text())]
    for each in made:
        plane.apply(f"{CRDS}/{each['metadata']['name']}", each)
    names = [f"crd/{each['metadata']['name']}" for each in made]
    # The pods of the cases name it.
    plane.kubectl("create", "priorityclass", "train", "--value=1")
    plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", *names)
    yield DryRuns(plane)
    plane.kubectl("delete", "priorityclass/train", *names)


def parts(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The object, and templates in it whose schema the table does not have, as objects of Kubernetes."""
    yield whole
    meta = {"metadata": {"name": "part"}}
    if whole["apiVersion"].startswith("batch.volcano.sh/"):
        for task in whole["spec"]["tasks"]:
            yield {"apiVersion": "v1", "kind": "PodTemplate", **meta, "template": task["template"]}
    elif whole["kind"] == "JobSet":
        for job in whole["spec"]["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job", **meta, **job["template"]}


def refusals(server: DryRuns, text: str) -> list[str]:
    found = []
    for whole in values(text):
        for part in parts(whole):
            meta = {name: inner for name, inner in part["metadata"].items() if name != "namespace"}
            if message := server.create(part | {"metadata": meta}):
                found.append(f"{part['kind']} {meta['name']}: {message}")
    return found


@pytest.mark.parametrize("case", [case for case in CASES if case.stem in OF_OTHERS], ids=lambda case: case.stem)
def test_objects_are_accepted_before_and_after(server: DryRuns, case: Path) -> None:
    before = case.read_text()
    assert refusals(server, before) == []
    for targets in TARGETS:
        found = migrated(before, *targets)
        assert found.text != before and refusals(server, found.text) == []


def test_each_dialect_with_kinds_of_its_own_has_a_case() -> None:
    objects = [whole for case in CASES if case.stem in OF_OTHERS for whole in values(case.read_text())]
    kinds = {(whole["apiVersion"], whole["kind"]) for whole in objects}
    ours = {("jobset.x-k8s.io/v1alpha2", "JobSet")}
    assert {(kind["apiVersion"], kind["kind"]) for kind in KINDS} - ours <= kinds


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind['apiVersion']} {kind['kind']}")
def test_unknown_and_wrong_fields_are_refused(server: DryRuns, kind: dict[str, Any]) -> None:
    """The definitions can refuse: a table that took anything would show nothing."""
    whole = {"apiVersion": kind["apiVersion"], "kind": kind["kind"], "metadata": {"name": "x"}}
    assert 'unknown field "spec.planted"' in server.create(whole | {"spec": {"planted": 1}})
    for name in kind["spec"]:
        wrong = copy.deepcopy(whole) | {"spec": {name.rstrip("!"): True if kind["spec"][name] != "boolean" else "no"}}
        assert f"spec.{name.rstrip('!')}" in server.create(wrong), name
