# SPDX-License-Identifier: Apache-2.0
"""Holds: the decision that pods go on waiting, made once for each refusal that is new to them."""

from __future__ import annotations

from dovetail.core.decisions import Decision, Hold
from dovetail.core.reasons import Refusal
from dovetail.core.state import State


def hold(state: State, workload: str, refusal: Refusal, uids: tuple[str, ...]) -> list[Decision]:
    """A Hold for those of the waiting pods of which this refusal was not reported yet; nothing where it was of all."""
    if not is_held(state, workload, refusal):
        return hold_all(state, workload, refusal, uids)
    new = state.queue.report_more(workload, uids)
    return [Hold(workload, new, refusal, state.steps)] if new else []


def is_held(state: State, workload: str, refusal: Refusal) -> bool:
    """Whether this refusal is not new for pods of the workload that have a reason."""
    return state.queue.is_reported(workload, refusal, state.now_ms, state.policy.tell_again_ms)


def hold_all(state: State, workload: str, refusal: Refusal, uids: tuple[str, ...]) -> list[Decision]:
    """A Hold for all the waiting pods, of which another refusal was reported, or none."""
    state.queue.report(workload, refusal, state.now_ms, uids)
    return [Hold(workload, uids, refusal, state.steps)] if uids else []
