# SPDX-License-Identifier: Apache-2.0
"""The rules about gangs with and without known schedulers, and with and without a device plugin's configuration."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import yaml

from dovetail.advice.lint.engine import lint
from dovetail.advice.lint.rule import Facts, Severity
from dovetail.advice.lint.rules import BY_ID
from dovetail.advice.lint.source import documents
from tests.advice.lint.linted import findings, objects
from tests.advice.lint.rules.cases_of import cases

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train}}
spec:
  schedulerName: {0}
  containers: [{{name: a, image: "a:1", resources: {{limits: {{nvidia.com/gpu.shared: 2}}}}}}]
"""
PLUGIN = """\
version: v1
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: {0}
    resources: [{{name: nvidia.com/gpu, replicas: 4}}]
---
"""
MINE = ("G12", "G13", "G16", "G27", "G29", "G30", "G31", "G35", "G39")


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("volcano", None),
        ("volcanoo", "no scheduler volcanoo is installed: did you mean volcano?"),
        ("mine", "no scheduler mine is installed: the schedulers are default-scheduler, volcano"),
    ],
)
def test_a_scheduler_that_is_not_installed(named: str, expected: str | None) -> None:
    text = POD.format(named)
    facts = Facts(None, frozenset({"default-scheduler", "volcano"}), tuple(objects(text)))
    found = [one.message for one in lint(documents("test.yaml", text), facts, [BY_ID["G13"]])]
    assert found == ([] if expected is None else [expected])
    unknown = [one.message for one in findings(text, "G13")]
    guess = ["no known scheduler has the name volcanoo: did you mean volcano?"]
    assert unknown == (guess if named == "volcanoo" else [])


def test_replicas_are_an_error_if_every_configuration_refuses_them() -> None:
    pod, fails, allows = POD.format("x"), PLUGIN.format("true"), PLUGIN.format("false")
    assert [(one.level, one.guess) for one in findings(fails + pod, "G16")] == [(Severity.ERROR, False)]
    assert [(one.level, one.guess) for one in findings(fails + allows + pod, "G16")] == [(Severity.WARNING, True)]
    assert [(one.level, one.guess) for one in findings(pod, "G16")] == [(Severity.WARNING, True)]
    assert findings(allows + pod, "G16") == []


def test_a_group_of_bare_pods_may_have_more_members_elsewhere() -> None:
    group = "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: 2}\n---\n"
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {scheduling.x-k8s.io/pod-group: g}}\nspec: {}\n"
    assert [one.guess for one in findings(group + pod, "G12")] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("rule", MINE)
@pytest.mark.parametrize("seed", range(20))
def test_values_of_a_wrong_type_stop_nothing(rule: str, seed: int) -> None:
    dice = random.Random(seed)
    for _, text in cases(BY_ID[rule]):
        wrong = [_broken(each, dice) for each in yaml.safe_load_all(text)]
        findings(yaml.dump_all(wrong, Dumper=yaml.CSafeDumper), rule)


def _broken(value: Any, dice: random.Random) -> Any:
    """A copy in which one place in ten holds something else."""
    if dice.random() < 0.1:
        return copy.deepcopy(dice.choice([None, 3, -1, "x", 1.5, True, [], [1], {}, {"a": 1}]))
    if isinstance(value, dict):
        return {key: _broken(inner, dice) for key, inner in value.items()}
    return [_broken(inner, dice) for inner in value] if isinstance(value, list) else value
