# SPDX-License-Identifier: Apache-2.0
"""The selectors of a pod for nodes, other pods and spreading: from wire structs to core records.

Rules
- `matchLabels` become `In` with one value. `matchLabelKeys` of a spread constraint are merged into the selector with
  the pod's own values; a key that the pod lacks is left out, and a missing selector still matches nothing. For pod
  affinity the API server has done that, with the labels at the creation of the pod.
- An affinity term without namespaces and without a namespace selector means the pod's own namespace.
- An unknown value of a closed set gives a Problem, and its requirement matches nothing.
- Not supported: kube-scheduler's default spread constraints for Services and ReplicaSets.
Sources: pkg/apis/core/v1/helper/helpers.go, plugins interpodaffinity and podtopologyspread, framework/types.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.core.model import (
    LabelSelector,
    NodeTerm,
    Operator,
    PeerTerm,
    PreferredNodes,
    PreferredPeers,
    Problem,
    Requirement,
    Spread,
)
from dovetail.kube.objects import base
from dovetail.kube.objects.pods import NodeAffinity, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from dovetail.kube.translate.problems import one_of

LABEL_OPERATORS: Mapping[str, Operator] = {
    "In": "In", "NotIn": "NotIn", "Exists": "Exists", "DoesNotExist": "DoesNotExist",
}  # fmt: skip
NODE_OPERATORS: Mapping[str, Operator] = {**LABEL_OPERATORS, "Gt": "Gt", "Lt": "Lt"}
FIELD_OPERATORS: Mapping[str, Operator] = {"In": "In", "NotIn": "NotIn"}
_FIELDS = {"metadata.name": "metadata.name"}
_WHEN_UNSATISFIABLE = {"DoNotSchedule": True, "ScheduleAnyway": False}
_HONOR = {"Honor": True, "Ignore": False}


def requirements(
    wire: Sequence[base.SelectorRequirement],
    operators: Mapping[str, Operator],
    path: str,
    problems: list[Problem],
) -> tuple[Requirement, ...]:
    """The requirements, in the order as written."""
    found = []
    for i, r in enumerate(wire):
        operator = operators.get(r.operator) or one_of(operators, r.operator, f"{path}[{i}].operator", problems)
        found.append(Requirement(r.key, operator, r.values) if operator else Requirement(r.key, "In"))
    return tuple(found)


def label_selector(wire: base.LabelSelector | None, path: str, problems: list[Problem]) -> LabelSelector | None:
    """The record of a selector. None, for no selector, matches nothing; an empty selector matches everything."""
    if wire is None:
        return None
    labels = [Requirement(key, "In", (value,)) for key, value in sorted(wire.match_labels.items())]
    expressions = requirements(wire.match_expressions, LABEL_OPERATORS, f"{path}.matchExpressions", problems)
    return LabelSelector((*labels, *expressions))


def node_terms(wire: base.NodeSelector | None, path: str, problems: list[Problem]) -> tuple[NodeTerm, ...] | None:
    """The terms of a node selector. None: nothing is required; an empty tuple matches no node."""
    if wire is None:
        return None
    return tuple(
        _node_term(term, f"{path}.nodeSelectorTerms[{i}]", problems) for i, term in enumerate(wire.node_selector_terms)
    )


def _node_term(wire: base.NodeSelectorTerm, path: str, problems: list[Problem]) -> NodeTerm:
    fields = requirements(wire.match_fields, FIELD_OPERATORS, f"{path}.matchFields", problems)
    for i, field in enumerate(fields):
        one_of(_FIELDS, field.key, f"{path}.matchFields[{i}].key", problems)
    return NodeTerm(requirements(wire.match_expressions, NODE_OPERATORS, f"{path}.matchExpressions", problems), fields)


def preferred_nodes(wire: NodeAffinity, path: str, problems: list[Problem]) -> tuple[PreferredNodes, ...]:
    return tuple(
        PreferredNodes(term.weight, _node_term(term.preference, f"{path}[{i}].preference", problems))
        for i, term in enumerate(wire.preferred)
    )


def peers(
    wire: PodAffinity | None, sign: int, pod: base.ObjectMeta, path: str, problems: list[Problem]
) -> tuple[tuple[PeerTerm, ...], tuple[PreferredPeers, ...]]:
    """The required and the preferred terms; `sign` is -1 for anti-affinity."""
    if wire is None:
        return (), ()
    required = tuple(_peer_term(t, pod, f"{path}.required[{i}]", problems) for i, t in enumerate(wire.required))
    preferred = tuple(
        PreferredPeers(sign * t.weight, _peer_term(t.pod_affinity_term, pod, f"{path}.preferred[{i}]", problems))
        for i, t in enumerate(wire.preferred)
    )
    return required, preferred


def _peer_term(wire: PodAffinityTerm, pod: base.ObjectMeta, path: str, problems: list[Problem]) -> PeerTerm:
    selector = label_selector(wire.label_selector, f"{path}.labelSelector", problems)
    own = not wire.namespaces and wire.namespace_selector is None
    return PeerTerm(
        selector,
        frozenset((pod.namespace,) if own else wire.namespaces),
        wire.topology_key,
        label_selector(wire.namespace_selector, f"{path}.namespaceSelector", problems),
    )


def spread(
    wire: Sequence[TopologySpreadConstraint], pod: base.ObjectMeta, path: str, problems: list[Problem]
) -> tuple[Spread, ...]:
    found = []
    for i, c in enumerate(wire):
        at = f"{path}[{i}]"
        selector = label_selector(c.label_selector, f"{at}.labelSelector", problems)
        required = one_of(_WHEN_UNSATISFIABLE, c.when_unsatisfiable, f"{at}.whenUnsatisfiable", problems)
        affinity = one_of(_HONOR, c.node_affinity_policy, f"{at}.nodeAffinityPolicy", problems)
        taints = one_of(_HONOR, c.node_taints_policy, f"{at}.nodeTaintsPolicy", problems)
        term = PeerTerm(
            _with_keys(selector, c.match_label_keys, pod.labels), frozenset((pod.namespace,)), c.topology_key
        )
        domains = c.min_domains if c.min_domains is not None else 1
        found.append(Spread(term, c.max_skew, required is not False, domains, affinity is not False, taints is True))
    return tuple(found)


def _with_keys(selector: LabelSelector | None, keys: Sequence[str], labels: Mapping[str, str]) -> LabelSelector | None:
    if selector is None or not keys:
        return selector
    merged = dict.fromkeys(selector.requirements)
    merged.update(dict.fromkeys(Requirement(key, "In", (labels[key],)) for key in keys if key in labels))
    return LabelSelector(tuple(merged))
