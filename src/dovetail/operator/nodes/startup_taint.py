# SPDX-License-Identifier: Apache-2.0
"""The start-up taint dovetail.dev/not-ready:NoSchedule: when a node has it, and the request that sets or removes it.

Rules
- It is put on a GPU node that was never validated, while no pod holds GPUs there. So pods do not start where they would
  fail, and a node whose jobs run stays as it is.
- It is removed when the node was validated once, for good: an upgrade later on is a matter of maintenance. Without
  validation, being ready counts as validated.
- A DaemonSet of NVIDIA's stack that does not tolerate it comes first: while it has no pod on a node that it selects,
  the node has no taint, or its driver would never be installed. Pods that are there stay.
- A taint that the node brings along (kubelet --register-with-taints) is removed likewise.
- The list of taints is atomic in the API: it is written as a whole, on condition that the node is as it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.operator.nodes.blockers import READY
from dovetail.operator.nodes.facts import STARTUP_EFFECT, STARTUP_TAINT, WalkFacts, has_startup_taint
from dovetail.operator.nodes.walk import WalkVerdict
from dovetail.operator.watched.nodes import WatchedNode

KEEP, PUT, REMOVE = "keep", "put", "remove"


def startup_taint(facts: WalkFacts, verdict: WalkVerdict) -> str:
    """KEEP, PUT or REMOVE. PUT is on condition that no pod holds GPUs there, which costs a request to know."""
    known = facts.before is not None and facts.before.validation is not None
    done = known or facts.validation.passed is not None or verdict.step == READY
    wanted = facts.spec.startup_taint and not done and not facts.kept_off
    if facts.tainted:
        return KEEP if wanted else REMOVE
    return PUT if wanted and facts.gpu_signs and facts.kept_off is not None else KEEP


def taints_patch(node: WatchedNode, *, put: bool) -> dict[str, Any] | None:
    """The merge patch that puts or removes the taint; None if the node is so already. It conflicts if the node has
    changed since it was read."""
    taints: Sequence[dict[str, Any]] = node.spec.taints
    if has_startup_taint(taints) == put:
        return None
    others = [one for one in taints if (one.get("key"), one.get("effect")) != (STARTUP_TAINT, STARTUP_EFFECT)]
    new = [*others, {"key": STARTUP_TAINT, "effect": STARTUP_EFFECT}] if put else others
    return {"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": new or None}}
