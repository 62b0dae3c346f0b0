# SPDX-License-Identifier: Apache-2.0
"""Permit: a gang of which only some pods are bound has until a deadline to start, and is released then."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.decisions import Bind, Decision
from dovetail.core.model import Pod
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE
from dovetail.core.workloads.lifecycle import GangEvent, GangState


def overdue(state: State, workload: str, waiting: Iterable[Pod], decisions: Iterable[Decision]) -> list[Pod]:
    """The bound pods of a gang that has not started by its deadline, else nothing. `waiting` are its pods that are not
    placed, `decisions` those of this attempt.

    A half start shows even after a restart: a pod waits that existed when the last of the others was bound. (A pod
    that was created later replaces one that ran: then the gang had started.)
    """
    if workload.startswith(LONE) or state.workloads.has_started(workload):
        return []
    lives, now_ms, deadline_ms = state.workloads.lives, state.now_ms, state.policy.start_deadline_ms
    bound = state.workloads.bound(workload)
    newest_ms = max((pod.bound_ms for pod in bound), default=0)
    if any(isinstance(decision, Bind) for decision in decisions):
        lives.handle(workload, GangEvent.PARTLY_BOUND, now_ms + deadline_ms)
    elif bound and any(pod.created_ms <= newest_ms for pod in waiting):
        lives.handle(workload, GangEvent.PARTLY_BOUND, newest_ms + deadline_ms)
    if lives.state(workload) is not GangState.STARTING or lives.due_ms[workload] > now_ms:
        return []
    lives.handle(workload, GangEvent.RELEASED, now_ms + deadline_ms)
    return [pod for pod in bound if not pod.deleting]
