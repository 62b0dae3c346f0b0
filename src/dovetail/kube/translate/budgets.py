# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets: from the object to the core's record.

Rules: the number allowed is the last one of the disruption controller, and 0 while the controller has not observed the
current generation, as in the Eviction API. A budget without a selector selects no pod. A selector that cannot be read
here is a finding; the Eviction API still enforces it.
Source: k8s.io/kubernetes pkg/registry/core/pod/storage/eviction.go.
"""

from __future__ import annotations

from dovetail.core.model import Problem
from dovetail.core.queues.types import Budget
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects.base import PodDisruptionBudget
from dovetail.kube.translate.limits import MOST_PARTS, of_selector
from dovetail.kube.translate.selectors import label_selector


def budget(obj: PodDisruptionBudget) -> tuple[Budget, tuple[LayoutFinding, ...]]:
    """The record of a budget, and the parts of its selector that cannot be read."""
    meta, status, problems = obj.metadata, obj.status, list[Problem]()
    allowed = status.disruptions_allowed if status.observed_generation >= meta.generation else 0
    parts, selector = of_selector(obj.spec.selector), None
    if parts > MOST_PARTS:
        problems.append(Problem("spec.selector", str(parts), f"counts as so many; the limit is {MOST_PARTS}: not used"))
    else:
        selector = label_selector(obj.spec.selector, "spec.selector", problems)
    found = tuple(
        LayoutFinding("PodDisruptionBudget", f"{meta.namespace}/{meta.name}", problem) for problem in problems
    )
    return Budget(meta.namespace, meta.name, selector, max(0, allowed)), found
