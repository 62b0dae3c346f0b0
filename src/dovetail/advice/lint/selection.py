# SPDX-License-Identifier: Apache-2.0
"""Which nodes of an inventory a pod template may run on, whatever runs there now."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, gpus_of
from dovetail.advice.lint.rule import KnownNode

_WHOLE = re.compile(r"-?[0-9]{1,18}")


def may_run(pod: Template, node: KnownNode) -> bool:
    """Whether the pod's selector, required affinity and tolerations let it onto the node, and the node has its kind of
    GPU."""
    selector = pod.spec.at("nodeSelector").entries()
    required = pod.spec.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = tuple(required.at("nodeSelectorTerms").each())
    named = pod.spec.at("nodeName").text
    resources = {name for container in pod.containers for name, _ in gpus_of(container)}
    return (
        named in ("", node.name)
        and all(node.labels.get(key) == str(value.value) for key, value in selector)
        and (not terms or any(_term_holds(term, node) for term in terms))
        and all(
            any(_tolerates(one, taint) for one in pod.spec.at("tolerations").each())
            for taint in node.taints
            if taint.get("effect") in ("NoSchedule", "NoExecute")
        )
        and (not node.allocatable or resources <= node.allocatable.keys())
    )


def _term_holds(term: Field, node: KnownNode) -> bool:
    wanted = [(one, node.labels) for one in term.at("matchExpressions").each()]
    wanted += [(one, {"metadata.name": node.name}) for one in term.at("matchFields").each()]
    return bool(wanted) and all(_holds(one, labels.get(one.at("key").text)) for one, labels in wanted)


def _holds(requirement: Field, has: str | None) -> bool:
    values = [str(value.value) for value in requirement.at("values").each()]
    operator = requirement.at("operator").text
    if operator in ("Gt", "Lt"):
        if not values or not _WHOLE.fullmatch(has or "") or not _WHOLE.fullmatch(values[0]):
            return False
        return int(has or 0) > int(values[0]) if operator == "Gt" else int(has or 0) < int(values[0])
    return {
        "In": has in values,
        "NotIn": has not in values,
        "Exists": has is not None,
        "DoesNotExist": has is None,
    }.get(operator, False)


def _tolerates(toleration: Field, taint: Mapping[str, str]) -> bool:
    key, effect = toleration.at("key").text, toleration.at("effect").text
    exists = toleration.at("operator").text == "Exists"
    return (
        (key == taint.get("key") or (exists and not key))
        and effect in ("", taint.get("effect"))
        and (exists or toleration.at("value").text == taint.get("value", ""))
    )
