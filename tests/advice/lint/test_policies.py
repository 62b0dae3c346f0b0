# SPDX-License-Identifier: Apache-2.0
"""Each admission policy finds what its rule finds, to the extent that it states."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dovetail.advice.lint.admission import policies
from dovetail.advice.lint.cel import Cel
from dovetail.advice.lint.engine import lint
from dovetail.advice.lint.policies import POLICIES, WITHOUT_POLICY
from dovetail.advice.lint.rule import Facts, Rule
from dovetail.advice.lint.rules import RULES
from dovetail.advice.lint.source import documents
from dovetail.kube.manifests.templates import HOLDERS, Holder, group_kind
from tests.advice.lint.cel_policies import PolicyFailed, policy_findings
from tests.advice.lint.linted import facts, objects
from tests.advice.lint.rules.cases_of import cases

PART = {
    "G04": r"",
    "G10": r"Kubernetes keeps|label topology\.kubernetes\.io/",
    "G11": r"no machine has more",
    "G12": r"^minAvailable",
    "G13": r"does not read|default scheduler",
    "G16": r"",
    "G17": r"",
    "G18": r"",
    "G20": r"^(?!.* is no more than).*(/dev/shm|sizeLimit)",
    "G22": r"",
    "G26": r"requests no GPU",
    "G28": r"GPUs: each takes|is the memory of",
    "G30": r"",
    "G31": r"ttlSecondsAfterFinished",
    "G35": r"components of the cluster",
    "G36": r"ends a job|to load its model",
    "G39": r"IPC_LOCK",
    "G40": r"",
    "G41": r"hook takes|for that when",
    "G45": r"is no known key|must be in metadata",
    "G47": r"has no claim",
    "G48": r"` starts ",
}
"""Of a policy that omits something, the messages of the linter that it covers."""
SCHEDULERS = frozenset({"default-scheduler", "dovetail", "volcano"})
NEWER = (
    "transformList", "transformMap", "transformMapEntry", "flatten", "distinct",
    "reverse", "slice", "sort", "sortBy", "first", "last", "range", "semver", "isSemver", "named", "validate",
)  # fmt: skip
"""Functions and macros of CEL that Kubernetes 1.30 does not have: k8s.io/apiserver/pkg/cel/environment/base.go."""
WITH_POLICY = [rule for rule in RULES if rule.id in POLICIES]


def placed(pod: dict[str, Any], holder: Holder) -> dict[str, Any]:
    """An object of the kind whose pods are like this one."""
    resource = holder.resource
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    template = {"metadata": {"annotations": pod["metadata"].get("annotations", {})}, "spec": pod["spec"]}
    labels = pod["metadata"].get("labels", {})
    template["metadata"]["labels"] = labels
    whole: dict[str, Any] = {"apiVersion": version, "kind": resource.kind, "metadata": {"name": "a", "labels": labels}}
    for path in holder.paths:
        inner: Any = template
        steps = path.split(".")
        for step, before in zip(reversed(steps), reversed(["", *steps[:-1]]), strict=True):
            if step != "*":
                inner = {step: inner}
            else:
                inner = {"Worker": inner} if before.endswith("ReplicaSpecs") else [{"name": "a", **inner}]
        _merge(whole, copy.deepcopy(inner))
    return whole


def _merge(whole: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(whole.get(key), dict):
            _merge(whole[key], value)
        else:
            whole[key] = value


def expected(rule: Rule, whole: dict[str, Any], beside: list[dict[str, Any]]) -> list[str]:
    """The messages of the linter about one object, as far as the policy covers them."""
    # JSON is YAML, and written faster.
    (document,) = documents("a.yaml", json.dumps(whole))
    others = [one for other in beside for one in objects(json.dumps(other))]
    found = lint([document], Facts(None, None, (*document.objects(), *others)), [rule])
    return [one.message for one in found if re.search(PART.get(rule.id, ""), one.message)]


def checked(rule: Rule, whole: dict[str, Any], beside: list[dict[str, Any]] = []) -> bool:  # noqa: B006
    """Whether policy and linter find something; they agree."""
    namespace = next(iter(beside), None)
    reported, wanted = policy_findings(POLICIES[rule.id], whole, namespace), expected(rule, whole, beside)
    assert bool(reported) == bool(wanted), (reported, wanted, yaml.safe_dump(whole))
    return bool(reported)


def is_matched(policy: Cel, whole: dict[str, Any]) -> bool:
    """Whether the API server would ask the policy about an object that a user creates."""
    kinds = [("", "ResourceQuota")] if policy.resource else [(one.resource.group, one.resource.kind) for one in HOLDERS]
    return group_kind(whole) in kinds and "ownerReferences" not in whole["metadata"]


def namespaces(wholes: list[dict[str, Any]], whole: dict[str, Any]) -> list[dict[str, Any]]:
    name = whole["metadata"].get("namespace") if isinstance(whole.get("metadata"), dict) else None
    return [one for one in wholes if one.get("kind") == "Namespace" and name and one["metadata"]["name"] == name]


def examples(rule: Rule) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Objects of the rule's cases, with their namespaces."""
    for _, text in cases(rule):
        wholes = [one.value for one in objects(text) if isinstance(one.value, dict)]
        yield from ((whole, namespaces(wholes, whole)) for whole in wholes if is_matched(POLICIES[rule.id], whole))


@pytest.mark.slow
def test_no_expression_needs_a_newer_kubernetes_than_its_policies() -> None:
    made = policies(RULES, ())
    assert not re.findall(rf"\b(?:{'|'.join(NEWER)})\(", made)


def test_each_rule_is_a_policy_or_has_a_reason() -> None:
    assert not POLICIES.keys() & WITHOUT_POLICY.keys()
    assert POLICIES.keys() | WITHOUT_POLICY.keys() == {rule.id for rule in RULES}
    assert PART.keys() == {rule for rule, policy in POLICIES.items() if policy.omits}


@pytest.mark.parametrize("rule", WITH_POLICY, ids=lambda rule: rule.id)
@pytest.mark.slow
def test_a_policy_finds_what_its_rule_finds(rule: Rule) -> None:
    found = [checked(rule, whole, beside) for whole, beside in examples(rule)]
    assert set(found) == {False, True}


@pytest.fixture(scope="module")
def of_all_rules() -> list[dict[str, Any]]:
    """The objects of the examples of all rules."""
    return [one.value for rule in RULES for text in (rule.bad, rule.good) for one in objects(text)]


@pytest.mark.slow
@pytest.mark.parametrize("rule", WITH_POLICY, ids=lambda rule: rule.id)
def test_over_the_examples_of_all_rules(rule: Rule, of_all_rules: list[dict[str, Any]]) -> None:
    for whole in of_all_rules:
        if is_matched(POLICIES[rule.id], whole):
            checked(rule, whole)


IN_CLUSTER = [rule for rule in WITH_POLICY if POLICIES[rule.id].in_cluster]


@pytest.mark.parametrize("rule", IN_CLUSTER, ids=lambda rule: rule.id)
def test_facts_of_a_cluster_in_a_policy(rule: Rule) -> None:
    """A policy of a cluster finds nothing that the linter does not find with an inventory of it."""
    reported = 0
    for what, text in cases(rule):
        known = replace(facts(text), schedulers=SCHEDULERS)
        for document in documents("a.yaml", text):
            for whole in document.objects():
                if is_matched(POLICIES[rule.id], whole.value):
                    found = policy_findings(POLICIES[rule.id], whole.value, facts=known)
                    reported += bool(found)
                    assert not found or list(lint([document], known, [rule])), (what, found, text)
    assert reported


Place = tuple[Any, str | int, str]


def places(value: Any, key: str) -> Iterator[Place]:
    """(holder, step, the nearest key of a mapping) of each value inside."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in pairs:
        under = step if isinstance(step, str) else f"{key}[]"
        yield value, step, under
        yield from places(inner, under)


def mutated(whole: dict[str, Any], values: dict[str, list[Any]], draw: random.Random) -> dict[str, Any]:
    """The object with a few values of its spec left out, or replaced by some that other examples have there."""
    whole = copy.deepcopy(whole)
    for _ in range(draw.randint(1, 3)):
        found = list(places(whole["spec"], "spec"))
        if found:
            holder, step, under = draw.choice(found)
            if draw.random() < 0.3:
                del holder[step]
            else:
                holder[step] = copy.deepcopy(draw.choice(values[under]))
    return whole


@pytest.mark.slow
def test_over_mutated_examples() -> None:
    wholes = {rule: [whole for whole, _ in examples(rule) if whole.get("spec")] for rule in WITH_POLICY}
    values: dict[str, list[Any]] = {}
    for whole in (whole for some in wholes.values() for whole in some):
        for holder, step, under in places(whole["spec"], "spec"):
            values.setdefault(under, []).append(holder[step])
    malformed, found, draw = 0, 0, random.Random(39)
    for rule in WITH_POLICY:
        for _ in range(40):
            whole = mutated(draw.choice(wholes[rule]), values, draw)
            try:
                found += checked(rule, whole)
            except PolicyFailed:
                # The API server refuses such an object itself.
                malformed += 1
    assert malformed < 60 and found > 200


@pytest.mark.slow
@pytest.mark.parametrize("rule", WITH_POLICY, ids=lambda rule: rule.id)
def test_in_every_kind(rule: Rule) -> None:
    pods = [whole for whole, _ in examples(rule) if whole.get("kind") == "Pod"]
    for at, holder in enumerate(HOLDERS):
        for pod in (pods[0], pods[at % len(pods)]) if pods and holder.paths != ("",) else ():
            checked(rule, placed(pod, holder))


@pytest.mark.slow
def test_a_large_object_is_within_the_cost_limit() -> None:
    variables = [{"name": f"NCCL_VARIABLE_{i}", "value": "some value"} for i in range(30)]
    container = {
        "image": "a:1",
        "args": ["torchrun"] * 50,
        "env": variables,
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    labels = {f"app.kubernetes.io/label{i}": "x" for i in range(10)}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": f"a{i}", **container} for i in range(3)]}}
    whole = placed(pod, next(one for one in HOLDERS if one.resource.kind == "RayCluster"))
    whole["spec"]["workerGroupSpecs"] *= 8
    for policy in POLICIES.values():
        policy_findings(policy, whole)
