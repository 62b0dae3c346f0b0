# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets as records: how many disruptions they allow, and which pods they cover."""

from __future__ import annotations

import pytest

from dovetail.core import events as ev
from dovetail.core.model import LabelSelector, Requirement
from dovetail.core.queues.types import Budget
from dovetail.kube.objects.base import PodDisruptionBudget
from dovetail.kube.translate.budgets import budget
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import Change, added, deleted, wire


def obj(spec: str = "{}", allowed: int = 1, observed: int = 3, generation: int = 3) -> PodDisruptionBudget:
    meta = f"{{name: guard, namespace: ml, generation: {generation}}}"
    status = f"{{disruptionsAllowed: {allowed}, observedGeneration: {observed}, currentHealthy: 5}}"
    return wire(PodDisruptionBudget, f"{{metadata: {meta}, spec: {spec}, status: {status}}}")


def test_a_budget_allows_what_its_controller_has_worked_out() -> None:
    selector = LabelSelector((Requirement("app", "In", ("web",)),))
    assert budget(obj("{selector: {matchLabels: {app: web}}, minAvailable: 2}", 2))[0] == (
        Budget("ml", "guard", selector, 2)
    )


def test_a_budget_that_its_controller_has_not_seen_as_it_is_allows_nothing() -> None:
    assert budget(obj(allowed=2, observed=2))[0].allowed == 0
    assert budget(wire(PodDisruptionBudget, "{metadata: {name: a, namespace: b, generation: 1}}"))[0].allowed == 0


@pytest.mark.parametrize(
    ("spec", "selector"), [("{}", None), ("{selector: null}", None), ("{selector: {}}", LabelSelector())]
)
def test_without_a_selector_it_is_about_no_pod_and_with_an_empty_one_about_all(
    spec: str, selector: LabelSelector | None
) -> None:
    assert budget(obj(spec))[0].selector == selector


def test_an_operator_that_is_not_known_is_a_finding() -> None:
    feed = Translator()
    feed.records.budgets(added(obj("{selector: {matchExpressions: [{key: a, operator: Near}]}}")))
    (finding,) = feed.findings["PodDisruptionBudget ml/guard"]
    assert finding.problem.field == "spec.selector.matchExpressions[0].operator"
    feed.records.budgets(deleted(obj()))
    assert feed.findings == {}


def test_only_what_counts_is_reported() -> None:
    feed = Translator()
    assert feed.records.budgets(added(obj())) == [ev.BudgetChanged(Budget("ml", "guard", None, 1))]
    assert feed.records.budgets([Change("modified", obj("{minAvailable: 5}"))]) == []
    assert feed.records.budgets([Change("modified", obj(allowed=0))]) == [
        ev.BudgetChanged(Budget("ml", "guard", None, 0))
    ]
    assert feed.records.budgets(deleted(obj())) == [ev.BudgetRemoved("ml/guard")]
    assert feed.records.budgets(deleted(obj())) == []
