# SPDX-License-Identifier: Apache-2.0
"""The table of the kinds that a job can be."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.jobs.kinds import JOB_KINDS, Ended, JobKind, controller_of, kind_named
from dovetail.kube.gangs.owners import OWNER_KINDS


def of(name: str) -> JobKind:
    found = kind_named(name)
    assert found is not None
    return found


def with_conditions(*types: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": one, "status": "True"} for one in types]}}


@pytest.mark.parametrize(
    ("kind", "document", "ended"),
    [
        ("job", with_conditions("Complete"), "succeeded"),
        ("job", with_conditions("SuccessCriteriaMet", "Complete"), "succeeded"),
        ("job", with_conditions("Failed"), "failed"),
        ("job", with_conditions("Suspended"), ""),
        ("job", {"status": {"conditions": [{"type": "Complete", "status": "False"}]}}, ""),
        ("job", {}, ""),
        ("jobset", with_conditions("Completed"), "succeeded"),
        ("pytorchjob", with_conditions("Created", "Running", "Succeeded"), "succeeded"),
        ("mpijob", with_conditions("Failed"), "failed"),
        ("trainjob", with_conditions("Complete"), "succeeded"),
        ("rayjob", {"status": {"jobStatus": "SUCCEEDED"}}, "succeeded"),
        ("rayjob", {"status": {"jobStatus": "STOPPED"}}, "failed"),
        ("rayjob", {"status": {"jobStatus": "RUNNING"}}, ""),
        ("raycluster", with_conditions("Failed", "Complete"), ""),
        ("deployment", with_conditions("Available"), ""),
    ],
)
def test_how_an_object_has_ended(kind: str, document: dict[str, Any], ended: Ended) -> None:
    assert of(kind).ended(document) == ended


@pytest.mark.parametrize(
    ("kind", "document", "selector"),
    [
        ("job", {"metadata": {"name": "a"}}, "batch.kubernetes.io/job-name=a"),
        ("jobset", {"metadata": {"name": "a"}}, "jobset.sigs.k8s.io/jobset-name=a"),
        ("rayjob", {"metadata": {"name": "a"}, "status": {"rayClusterName": "a-x7"}}, "ray.io/cluster=a-x7"),
        ("rayjob", {"metadata": {"name": "a"}}, ""),
        ("deployment", {"spec": {"selector": {"matchLabels": {"app": "a", "tier": "b"}}}}, "app=a,tier=b"),
        ("deployment", {}, ""),
    ],
)
def test_how_its_pods_are_found(kind: str, document: dict[str, Any], selector: str) -> None:
    assert of(kind).selector(document) == selector


def test_a_suspended_object_is_known() -> None:
    assert of("job").suspended({"spec": {"suspend": True}})
    assert of("pytorchjob").suspended({"spec": {"runPolicy": {"suspend": True}}})
    assert not of("job").suspended({"spec": {"suspend": "yes"}})
    assert not of("deployment").suspended({"spec": {"suspend": True}})


def test_every_kind_that_the_scheduler_reads_can_be_named() -> None:
    """And by its plural, too."""
    declaring = {kind.resource for kind in JOB_KINDS if kind.declares}
    assert declaring == {kind.resource for kind in OWNER_KINDS}
    for kind in JOB_KINDS:
        assert kind_named(kind.name) is kind and kind_named(kind.resource.plural.upper()) is kind
    assert kind_named("cronjob") is None and kind_named("") is None


def test_the_controller_is_followed_only_to_kinds_that_are_jobs() -> None:
    def owned_by(version: str, kind: str, controller: bool = True) -> dict[str, Any]:
        reference = {"apiVersion": version, "kind": kind, "name": "up", "controller": controller}
        return {"metadata": {"ownerReferences": [reference]}}

    assert controller_of(owned_by("batch/v1", "Job")) == (of("job"), "up")
    assert controller_of(owned_by("batch/v1", "CronJob")) is None
    assert controller_of(owned_by("batch/v1", "Job", controller=False)) is None
    assert controller_of({}) is None
