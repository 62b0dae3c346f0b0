# SPDX-License-Identifier: Apache-2.0
"""Every name and field of the other schedulers' documents is kept, translated or reported."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.advice.migrate.dialects import DIALECTS
from dovetail.advice.migrate.step import MigrationOutcome, MigrationTarget
from tests.advice.migrate.moved import migrated

HERE = Path(__file__).parent
NAMES: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "names.yaml").read_text())
FIELDS: list[dict[str, Any]] = yaml.safe_load((HERE / "fields.yaml").read_text())
NATIVE = (MigrationTarget.NATIVE,)


def pod(scheduler: str) -> dict[str, Any]:
    spec = {"schedulerName": scheduler, "containers": [{"name": "a", "image": "b"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def job(scheduler: str) -> dict[str, Any]:
    template = {"metadata": {}, "spec": pod(scheduler)["spec"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}


def reported(value: dict[str, Any], name: str) -> bool:
    """Whether a note is about the label, annotation or resource."""
    notes = migrated(yaml.safe_dump(value)).notes
    return any(f"[{name}]" in one.path or one.path.endswith(f".{name}") for one in notes)


ONLY = {"scheduling.k8s.io/group-name": "annotations", "pod-group.scheduling.sigs.k8s.io": "labels"}
"""Names in the domain of Kubernetes, and names without a domain: of pods, in this place."""
MARKS = [(dialect, name) for dialect, of in NAMES.items() for name in of["marks"]]


@pytest.mark.parametrize("place", ["labels", "annotations"])
@pytest.mark.parametrize(("dialect", "name"), MARKS)
@pytest.mark.slow
def test_marks(dialect: str, name: str, place: str) -> None:
    scheduler = NAMES[dialect]["scheduler"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", place: {name: "x"}}}
    on_owner, on_template, on_pod = job(scheduler), job(scheduler), pod(scheduler)
    on_owner["metadata"][place] = on_pod["metadata"][place] = {name: "x"}
    on_template["spec"]["template"]["metadata"][place] = {name: "x"}
    if ONLY.get(name, place) == place:
        assert reported(on_pod, name) and reported(on_template, name)
    if name not in ONLY:
        assert reported(namespace, name) and reported(on_owner, name)


PLAIN = [(dialect, name) for dialect, of in NAMES.items() for name in of.get("plain", ())]
LABELS = {"priorityClassName", "user", "project", "applicationId", "queue"}


@pytest.mark.parametrize(("dialect", "name"), PLAIN)
def test_names_without_a_domain_are_those_of_the_pods_of_that_scheduler(dialect: str, name: str) -> None:
    own, other = pod(NAMES[dialect]["scheduler"]), pod("default-scheduler")
    for each in (own, other):
        each["metadata"]["labels" if name in LABELS else "annotations"] = {name: "x"}
    assert reported(own, name)
    assert not reported(other, name) or name == "applicationId"


@pytest.mark.parametrize(
    ("dialect", "name"), [(dialect, name) for dialect, of in NAMES.items() for name in of.get("resources", ())]
)
def test_resources(dialect: str, name: str) -> None:
    value = pod(NAMES[dialect]["scheduler"])
    value["spec"]["containers"][0]["resources"] = {"limits": {name: 1}}
    assert reported(value, name)


def cases() -> list[Any]:
    return [pytest.param(kind, name, id=f"{kind['kind']} {name}") for kind in FIELDS for name in kind["fields"]]


@pytest.mark.parametrize("targets", [(), NATIVE], ids=["", "native"])
@pytest.mark.parametrize(("kind", "name"), cases())
@pytest.mark.slow
def test_a_field_is_in_the_result_or_reported(
    kind: dict[str, Any], name: str, targets: tuple[MigrationTarget, ...]
) -> None:
    """The result with the field differs from that without it; else a note names the field."""
    base = {"apiVersion": kind["apiVersion"], "kind": kind["kind"], "metadata": {"name": "x"}, "spec": kind["with"]}
    changed = copy.deepcopy(base)
    place: Any = changed["spec"]
    for step in kind.get("at", ()):
        place = place[step]
    place[name] = kind["fields"][name]
    without, found = migrated(yaml.safe_dump(base), *targets), migrated(yaml.safe_dump(changed), *targets)
    assert found.text != without.text or any(f".{name}" in one.path for one in found.notes)


def test_every_dialect_with_a_domain_is_enumerated() -> None:
    assert {dialect.name for dialect in DIALECTS if dialect.domains} == NAMES.keys()


def test_a_kind_of_another_scheduler_that_is_not_known_is_reported() -> None:
    found = migrated("apiVersion: bus.volcano.sh/v1alpha1\nkind: Command\nmetadata: {name: c}\naction: AbortJob\n")
    (note,) = found.notes
    assert (note.outcome, note.dialect, note.path) == (MigrationOutcome.LEFT, "Volcano", "kind")


def test_node_labels_in_selectors_are_kept_in_silence() -> None:
    value = pod("dovetail")
    value["spec"]["nodeSelector"] = {"kai.scheduler/node-pool": "a"}
    assert not migrated(yaml.safe_dump(value)).notes
