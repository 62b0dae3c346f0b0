# SPDX-License-Identifier: Apache-2.0
"""Holds: the decision that pods go on waiting, made once for each refusal that is new to them."""

from __future__ import annotations

from dovetail.core.decisions import Decision, Hold
from dovetail.core.reasons import Refusal
from dovetail.core.state import State


def hold(state: State, workload: str, refusal: Refusal, uids: tuple[str, ...]) -> list[Decision]:
    """A Hold for those of the waiting pods that have not been reported this refusal; nothing where all have."""
    new = state.queue.report(workload, refusal, uids, state.now_ms, state.policy.tell_again_ms)
    return [Hold(workload, new, refusal, state.steps)] if new else []
