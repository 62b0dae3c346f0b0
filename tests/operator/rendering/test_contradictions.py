# SPDX-License-Identifier: Apache-2.0
"""A spec that contradicts itself is refused here as the API server refuses it: the same fields, the same texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dovetail.kube.objects.base import LabelSelector, SelectorRequirement
from dovetail.kube.objects.stack import (
    AgentSpec,
    DriverSpec,
    MetricsSpec,
    NodePool,
    PoolMig,
    PoolSharing,
    Resources,
    SchedulerSpec,
    StackSpec,
    UpgradeSpec,
)
from dovetail.operator.rendering.contradictions import contradictions
from tests.deploy.crds.gpustack_cases import CONTRADICTIONS
from tests.deploy.crds.test_gpustack import EMPTY, EXAMPLE, SCHEMA, rules

Document = dict[str, Any]


def problems(spec: Document) -> list[tuple[str, str]]:
    return [(one.field, one.rule) for one in contradictions(msgspec.convert(spec, StackSpec))]


@pytest.mark.parametrize(("change", "field", "message"), CONTRADICTIONS)
def test_each_contradiction_is_found_with_the_text_of_the_definition(
    change: Callable[[Document], object], field: str, message: str
) -> None:
    spec: Document = {}
    change(spec)
    found = [text for at, text in problems(spec) if at == field]
    known = {text for path, text in rules(SCHEMA) if path == re.sub(r"\[\d+\]", "[]", field)}
    assert any(message in text for text in found)
    assert set(found) <= known


def test_the_cases_are_of_every_rule() -> None:
    """But for the one about the name, which every object of a cluster has passed, and the one about a change."""
    found = set()
    for change, _, _ in CONTRADICTIONS:
        spec: Document = {}
        change(spec)
        found |= {(re.sub(r"\[\d+\]", "[]", field), text) for field, text in problems(spec)}
    assert {rule for rule in rules(SCHEMA) if rule[0] not in ("metadata.name", "spec.history.storage")} <= found


@pytest.mark.parametrize("document", [EMPTY, EXAMPLE])
def test_the_examples_of_the_reference_have_none(document: Document) -> None:
    assert problems(document["spec"]) == []


ANY = LabelSelector({"a": "b"})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (StackSpec(driver=DriverSpec(mode="Host")), "spec.driver.mode"),
        (StackSpec(driver=DriverSpec("Container", "driver:580")), "spec.driver.image"),
        (StackSpec(metrics=MetricsSpec(scrape="Always")), "spec.metrics.scrape"),
        (StackSpec(upgrade=UpgradeSpec(drain="Now")), "spec.upgrade.drain"),
        (StackSpec(upgrade=UpgradeSpec(max_gpus="0")), "spec.upgrade.maxGpus"),
        (StackSpec(agent=AgentSpec(pools=(NodePool("p"), NodePool("p", ANY)))), "spec.agent.pools"),
        (StackSpec(agent=AgentSpec(pools=(NodePool(allocation="CDI"),))), "spec.agent.pools[0].allocation"),
        (StackSpec(agent=AgentSpec(pools=(NodePool(mig=PoolMig("both")),))), "spec.agent.pools[0].mig.strategy"),
        (StackSpec(agent=AgentSpec(pools=(NodePool(sharing=PoolSharing("time")),))),
         "spec.agent.pools[0].sharing.strategy"),
        (StackSpec(agent=AgentSpec(pools=(
            NodePool(node_selector=LabelSelector(match_expressions=(SelectorRequirement("a", "Like"),))),
        ))), "spec.agent.pools[0].nodeSelector.matchExpressions[0].operator"),
        (StackSpec(scheduler=SchedulerSpec(resources=Resources({"cpu": "many"}, {"cpu": 1}))),
         "spec.scheduler.resources.requests"),
    ],
)  # fmt: skip
def test_values_that_no_definition_permits_are_found(spec: StackSpec, field: str) -> None:
    assert field in [one.field for one in contradictions(spec)]
