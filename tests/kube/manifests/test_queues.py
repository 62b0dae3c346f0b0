# SPDX-License-Identifier: Apache-2.0
"""Queues and budgets in manifests: the same events as from an API server, and faults named with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.core import events as ev
from dovetail.core.model import LabelSelector, Requirement
from dovetail.core.queues.types import Budget, Usage
from dovetail.kube.manifests.cluster import Manifests, read

QUEUE = """
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {name: %s}
spec:
  weight: 2
"""
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {%s}
spec: {containers: [{name: main}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def manifests_of(file: Path, *documents: str) -> Manifests:
    file.write_text("---".join(documents))
    return read([str(file)])


def complaints(found: Manifests) -> list[str]:
    return [str(problem).partition("cluster.yaml")[2] for problem in found.problems]


def test_a_queue_comes_with_its_usage(file: Path) -> None:
    status = "status:\n  usage: {asOf: 2026-01-01T00:00:00.250Z, used: '9', rate: '8'}\n"
    found = manifests_of(file, QUEUE % "research" + "  guarantee: {gpu: 0.5}\n" + status)
    assert found.problems == ()
    (queue,) = [event.queue for event in found.events if isinstance(event, ev.QueueChanged)]
    assert (queue.weight, queue.guarantee, queue.usage) == (2, (("gpu", 500),), Usage(1_767_225_600_250, 9, 8))


def test_a_budget_becomes_an_event_and_is_not_skipped(file: Path) -> None:
    text = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guard, namespace: ml, generation: 2}
spec: {minAvailable: 1, selector: {matchLabels: {app: a}}}
status: {disruptionsAllowed: 3, observedGeneration: 2}
"""
    found = manifests_of(file, text)
    selector = LabelSelector((Requirement("app", "In", ("a",)),))
    assert found.events == (ev.BudgetChanged(Budget("ml", "guard", selector, 3)),)
    assert (found.problems, found.skipped) == ((), {})


def test_a_bad_value_of_a_queue_is_named_with_its_line(file: Path) -> None:
    found = manifests_of(file, QUEUE % "a" + "  guarantee: {cpu: 4, gpus: 8}\n", QUEUE % "b" + "  halfLife: 0d\n")
    assert [text.partition("; ")[0] for text in complaints(found)] == [
        ":7: Queue a: spec.guarantee.gpus: '8': is no class of resources",
        ":14: Queue b: spec.halfLife: '0d': must be a duration in d, h, m and s, in that order, and more than zero",
    ]


def test_a_value_of_the_wrong_type_loses_the_queue_with_a_word(file: Path) -> None:
    found = manifests_of(file, QUEUE % "a" + "  halfLife: 7\n")
    assert complaints(found) == [":7: Queue a: spec.halfLife: Expected `str | null`, got `int`: not used"]
    assert found.events == ()


def test_a_parent_and_a_queue_that_are_not_there_are_named(file: Path) -> None:
    found = manifests_of(file, QUEUE % "a" + "  parent: labs\n", POD % "dovetail.dev/queue: b")
    assert complaints(found) == [
        ":7: Queue a: spec.parent: 'labs' is not in the input",
        ":13: Pod default/p: metadata.labels[dovetail.dev/queue]: 'b' is not in the input",
    ]


@pytest.mark.parametrize("label", ["", "dovetail.dev/queue: default", "dovetail.dev/queue: a"])
def test_the_default_queue_is_always_there(file: Path, label: str) -> None:
    found = manifests_of(file, QUEUE % "a" + "  parent: default\n", POD % label)
    assert found.problems == ()


def test_usage_that_was_edited_by_hand_is_named_and_not_used(file: Path) -> None:
    found = manifests_of(
        file, QUEUE % "a" + "status:\n  usage:\n    asOf: 2026-01-01T00:00:00Z\n    used: '-9'\n    rate: '8'\n"
    )
    (text,) = complaints(found)
    assert text.startswith(":10: Queue a: status.usage.used: '-9': must be a whole number")
    assert [event.queue.usage for event in found.events if isinstance(event, ev.QueueChanged)] == [None]
