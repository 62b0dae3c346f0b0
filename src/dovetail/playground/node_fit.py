# SPDX-License-Identifier: Apache-2.0
"""Whether a pod may run on a node by its node selector, node affinity and tolerations.

Sources: k8s.io/component-helpers/scheduling/corev1, k8s.io/kubernetes/pkg/controller/daemon/daemon_controller.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dovetail.apiserver.objects import Object, labels_of, object_at, objects_at, text_at, value_at

_TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"


def selects(spec: Object, node: Object) -> bool:
    """Whether nodeSelector and required node affinity of a pod's spec match the node."""
    labels = labels_of(node)
    if any(labels.get(label) != value for label, value in object_at(spec, "nodeSelector").items()):
        return False
    required = value_at(spec, _TERMS)
    if not isinstance(required, dict):
        return True
    return any(_term_matches(term, node) for term in objects_at(required, "nodeSelectorTerms"))


def _term_matches(term: Object, node: Object) -> bool:
    expressions, fields = objects_at(term, "matchExpressions"), objects_at(term, "matchFields")
    if not expressions and not fields:
        return False
    name = {"metadata.name": text_at(node, "metadata.name")}
    return all(_holds(one, labels_of(node)) for one in expressions) and all(_holds(one, name) for one in fields)


def _holds(expression: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(text_at(expression, "key")), expression.get("values") or []
    match text_at(expression, "operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not value.isdecimal() or not values:
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False


def tolerates(tolerations: Iterable[Object], node: Object, effects: Collection[Any]) -> bool:
    """Whether all taints of the node with these effects are tolerated."""
    taints = [taint for taint in objects_at(node, "spec.taints") if taint.get("effect") in effects]
    return all(any(_tolerated(one, taint) for one in tolerations) for taint in taints)


def _tolerated(toleration: Object, taint: Object) -> bool:
    effect, key = toleration.get("effect"), toleration.get("key")
    if (effect and effect != taint.get("effect")) or (key and key != taint.get("key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(key) and toleration.get("value", "") == taint.get("value", "")
