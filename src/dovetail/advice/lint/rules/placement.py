# SPDX-License-Identifier: Apache-2.0
"""Rules about placement constraints: operators of affinities and tolerations, and conflicts of spreading and packing.

None of them needs nodes: the API server rejects these errors on every cluster. The rules that need nodes are in
`nodes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dovetail.advice.lint.edits import Edit, put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import REQUIRED, node_terms, peer_terms, requirement, spreads, text
from dovetail.core.labels import as_int64, holds
from dovetail.core.model import Operator
from dovetail.kube.translate.annotation_values import LEVELS, level
from dovetail.kube.translate.annotations import PREFIX
from dovetail.kube.translate.selectors import FIELD_OPERATORS, LABEL_OPERATORS, NODE_OPERATORS

_COMPARING = ("Gt", "Lt")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")
_MEANT = {
    "In": "in equals equal == = eq is oneof",
    "NotIn": "notin notequals notequal != ne neq",
    "Exists": "exists exist",
    "DoesNotExist": "doesnotexist doesnotexists notexist notexists !exists",
    "Gt": "gt greaterthan >",
    "Lt": "lt lessthan <",
    "Gte": "gte ge >= greaterthanorequal greaterthanorequals greaterthanorequalto",
    "Lte": "lte le <= lessthanorequal lessthanorequals lessthanorequalto",
}
_OPERATOR_MEANT = {name: operator for operator, names in _MEANT.items() for name in names.split()}
_INCLUSIVE = {"Gte": ("Gt", -1), "Lte": ("Lt", 1)}
_TOLERATION_MEANT = {"exists": "Exists", "exist": "Exists"} | dict.fromkeys(("equal", "equals", "==", "="), "Equal")
_DECIMAL = re.compile(r"0|-?[1-9][0-9]*")
PACKED = {
    f"{PREFIX}topology-required": True,
    f"{PREFIX}topology-preferred": False,
    "kueue.x-k8s.io/podset-required-topology": True,
    "kueue.x-k8s.io/podset-preferred-topology": False,
    "kai.scheduler/topology-required-placement": True,
    "kai.scheduler/topology-preferred-placement": False,
    "alpha.jobset.sigs.k8s.io/exclusive-topology": True,
    "leaderworkerset.sigs.k8s.io/exclusive-topology": True,
}
"""Annotations that keep the pods of a job inside one domain of a level, and whether this is required."""
WIDTH = {LEVELS["host"]: 0, LEVELS["zone"]: 2, LEVELS["region"]: 3}
BETWEEN = 1


def _expressions(pod: Template) -> Iterator[tuple[Field, Mapping[str, Operator]]]:
    """(entry, its valid operators) of all node affinity terms and all pod selectors."""
    for term, _ in node_terms(pod):
        yield from ((entry, NODE_OPERATORS) for entry in term.at("matchExpressions").each())
        yield from ((entry, FIELD_OPERATORS) for entry in term.at("matchFields").each())
    peers = [term for kind in ("podAffinity", "podAntiAffinity") for term, _ in peer_terms(pod, kind)]
    for holder in (*peers, *spreads(pod)):
        for selector in ("labelSelector", "namespaceSelector"):
            yield from ((entry, LABEL_OPERATORS) for entry in holder.at(selector, "matchExpressions").each())


def _no_operator(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for entry, operators in _expressions(pod):
        operator, values = entry.at("operator"), entry.at("values")
        name = text(operator.value) if operator else ""
        has_values = any(True for _ in values.each())
        if operators is LABEL_OPERATORS and name in _COMPARING:
            continue
        if name not in operators:
            what = f"the operator {name} does not exist here" if name else "an operator is missing"
            edits = _right_operator(entry, operators)
            fix = " ".join(str(edit.value) for edit in edits)
            strict = _INCLUSIVE.get(_meant(name), ("",))[0]
            advice = fix or (strict and f"{strict}, which excludes equality") or "one of " + ", ".join(operators)
            yield RuleMatch(operator, f"{what}: write {advice}", edits)
        elif name in ("In", "NotIn") and not has_values:
            yield RuleMatch(values if values else entry, f"{name} needs a list of values, and has none")
        elif name in _WITHOUT_VALUES and has_values:
            yield RuleMatch(values, f"{name} takes no values: remove them, or write In")


def _meant(operator: str) -> str:
    return _OPERATOR_MEANT.get(re.sub(r"[\s_-]", "", operator.casefold()), "")


def _right_operator(entry: Field, operators: Mapping[str, Operator]) -> tuple[Edit, ...]:
    """The edits that fix an operator; none if the values of the entry do not match the intended operator."""
    operator, values = entry.at("operator"), [value.value for value in entry.at("values").each()]
    meant = _meant(operator.text)
    if meant in _INCLUSIVE and operators is NODE_OPERATORS:
        strict, step = _INCLUSIVE[meant]
        bound = as_int64(text(values[0])) if len(values) == 1 else None
        # A label value cannot have a sign.
        if bound is None or bound + step < 0:
            return ()
        return put(operator, strict), put(entry.at("values", 0), str(bound + step))
    fits = meant in operators and bool(values) == (meant not in _WITHOUT_VALUES)
    return (put(operator, meant),) if fits else ()


def _no_bound(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for entry, operators in _expressions(pod):
        operator, values = entry.at("operator"), entry.at("values")
        listed = list(values.each())
        if operator.text not in _COMPARING or operators is FIELD_OPERATORS:
            continue
        if operators is LABEL_OPERATORS:
            message = f"{operator.text} compares only labels of nodes: for pods write one of {', '.join(operators)}"
            yield RuleMatch(operator, message)
        elif len(listed) != 1:
            yield RuleMatch(values if values else entry, f"{operator.text} needs a list of exactly one value")
        elif listed[0].whole is not None:
            message = f"{listed[0].value} is a number, and values are strings: quote it"
            yield RuleMatch(listed[0], message, (put(listed[0], str(listed[0].value)),))
        elif as_int64(listed[0].text) is None:
            value = text(listed[0].value)
            yield RuleMatch(
                listed[0], f"{operator.text} compares whole numbers, and {value} is not one: no units, no fractions"
            )


def _bad_toleration(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for toleration in pod.spec.at("tolerations").each():
        operator, key, value = (toleration.at(name) for name in ("operator", "key", "value"))
        name = text(operator.value) if operator and operator.value != "" else "Equal"
        if value and not isinstance(value.value, str):
            yield RuleMatch(value, f"{text(value.value)} is not a string: quote it")
        elif name not in ("Equal", "Exists", *_COMPARING):
            meant = _TOLERATION_MEANT.get(name.casefold(), "")
            fits = meant and key.text and not (meant == "Exists" and value.text)
            message = f"tolerations have no operator {name}: write Equal, for one value, or Exists, for any"
            yield RuleMatch(operator, message, (put(operator, meant),) if fits else ())
        elif not key.text and name != "Exists":
            message = f"{name} needs a key: write that of the taint, or Exists to tolerate every taint"
            yield RuleMatch(operator if operator else toleration, message)
        elif name == "Exists" and value.text:
            yield RuleMatch(value, "Exists matches any value: remove the value, or write Equal")
        elif name in _COMPARING and not (_DECIMAL.fullmatch(value.text) and as_int64(value.text) is not None):
            yield RuleMatch(value if value else toleration, f"{name} needs a whole number as its value, in quotes")
        elif name in _COMPARING:
            message = f"{name} needs the feature gate TaintTolerationComparisonOperators, which is off by default"
            yield RuleMatch(operator, message, guess=True)


def _spread_against_packed(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu:
        return
    labels = {key: text(label.value) for key, label in pod.meta.at("labels").entries()}
    packed = tuple(_packed(pod, labels))
    pods = pod.whole.at("spec", "replicas").whole or pod.whole.at("spec", "parallelism").whole
    for constraint in spreads(pod):
        key, skew = constraint.at("topologyKey").text, constraint.at("maxSkew").whole or 1
        if not _selects(constraint.at("labelSelector"), labels) or (pods is not None and pods <= skew):
            continue
        strict = constraint.at("whenUnsatisfiable").text == "DoNotSchedule"
        for what, domain, required in packed:
            wider = WIDTH.get(key, BETWEEN) > WIDTH.get(domain, BETWEEN)
            if (wider or key == domain) and (strict or not required):
                message = (
                    f"the pods are spread over {key}, and {what} keeps them in one {domain}: remove one of the two, "
                    "or spread over a smaller domain"
                )
                yield RuleMatch(constraint, message)
                break


def _packed(pod: Template, labels: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    """(setting, node label of the domain, whether it is required) of each setting that keeps these pods together."""
    for term, required in peer_terms(pod, "podAffinity"):
        if term.at("topologyKey").text and _selects(term.at("labelSelector"), labels):
            yield "podAffinity", term.at("topologyKey").text, required
    for meta in (pod.meta, pod.whole.at("metadata")):
        for name, value in meta.at("annotations").entries():
            if name in PACKED:
                levels = (level(part.strip()) for part in value.text.split(","))
                yield from ((name, key, PACKED[name]) for key in levels if key)


def _selects(selector: Field, labels: Mapping[str, str]) -> bool:
    """Whether the pod selector exists and matches these labels."""
    wanted = [requirement(entry, LABEL_OPERATORS) for entry in selector.at("matchExpressions").each()]
    return (
        bool(selector)
        and all(labels.get(key) == text(value.value) for key, value in selector.at("matchLabels").entries())
        and all(one is not None and holds(one, labels.get(one.key)) for one in wanted)
    )


_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train, labels: {team: vision}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  %s
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {limits: {nvidia.com/gpu: 1}}
"""
_AFFINITY = _POD.replace(
    "%s",
    f"""\
affinity:
    nodeAffinity:
      {REQUIRED}:
        nodeSelectorTerms:
        - matchExpressions:
          - %s""",
)
_TOLERATION = _POD.replace("%s", "tolerations:\n  - %s")
_SPREAD = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {team: vision}}
spec:
  parallelism: 8
  completions: 8
  completionMode: Indexed
  podFailurePolicy:
    rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget}]
  template:
    metadata:
      labels: {app: train, team: vision}
      annotations: {dovetail.dev/topology-required: rack}
    spec:
      restartPolicy: Never
      priorityClassName: batch
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: %s
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: train}}
      containers:
      - name: train
        image: registry.example.com/train:1.4
        resources: {limits: {nvidia.com/gpu: 1}}
"""
_VALIDATION = "https://github.com/kubernetes/kubernetes: pkg/apis/core/validation/validation.go, "

RULES = (
    Rule(
        id="G07",
        level=Severity.ERROR,
        title="An operator of an affinity does not exist, or does not fit its values",
        effect=(
            "The API server refuses the pod, as in `operator: Invalid value: \"Gte\": not a valid selector operator`, "
            "`values: Required value` and `values: Forbidden`."
        ),
        bad=_AFFINITY % '{key: nvidia.com/gpu.memory, operator: Gte, values: ["40000"]}',
        good=_AFFINITY % '{key: nvidia.com/gpu.memory, operator: Gt, values: ["39999"]}',
        template=_no_operator,
        fixable=True,
        source=_VALIDATION + "ValidateNodeSelectorRequirement",
    ),
    Rule(
        id="G08",
        level=Severity.ERROR,
        title="Gt or Lt has no single whole number to compare with",
        effect=(
            "The API server refuses several values, no value, an unquoted number, and a selector of pods. If the value "
            "is not a whole number, the pod stays Pending: `node(s) didn't match Pod's node affinity/selector`."
        ),
        bad=_AFFINITY % "{key: nvidia.com/gpu.memory, operator: Gt, values: [40Gi]}",
        good=_AFFINITY % '{key: nvidia.com/gpu.memory, operator: Gt, values: ["40000"]}',
        template=_no_bound,
        fixable=True,
        source=_VALIDATION + "ValidateNodeSelectorRequirement; apimachinery, pkg/labels/selector.go, NewRequirement",
    ),
    Rule(
        id="G09",
        level=Severity.ERROR,
        title="The operator of a toleration does not exist, or does not fit its key and value",
        effect=(
            "The API server refuses the pod, as in `spec.tolerations[0].operator: Unsupported value: \"Equals\": "
            "supported values: \"Equal\", \"Exists\"`."
        ),
        bad=_TOLERATION % "{key: nvidia.com/gpu, operator: Equals, value: present, effect: NoSchedule}",
        good=_TOLERATION % "{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}",
        template=_bad_toleration,
        fixable=True,
        source=_VALIDATION + "ValidateTolerations",
    ),
    Rule(
        id="G38",
        level=Severity.WARNING,
        title="GPU pods are spread over domains, and kept in one of them",
        effect=(
            "After the first pods no node fits both: `node(s) didn't match pod topology spread constraints`, and the "
            "gang waits. Two preferences cancel each other, and the pods communicate over slow links."
        ),
        bad=_SPREAD % "topology.kubernetes.io/zone",
        good=_SPREAD % "kubernetes.io/hostname",
        template=_spread_against_packed,
        source="https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/",
    ),
)  # fmt: skip
