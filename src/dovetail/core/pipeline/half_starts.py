# SPDX-License-Identifier: Apache-2.0
"""Permit: gangs that have started by half have until a deadline to start whole, and are released then."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.decisions import Bind, Decision
from dovetail.core.model import Pod
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE


def overdue(state: State, workload: str, waiting: Iterable[Pod], decisions: Iterable[Decision]) -> list[Pod]:
    """The bound members of a gang that started by half and is past its deadline, else nothing. `bound_now`: some of
    them were bound in this attempt.

    A half start shows even after a restart: a pod waits that existed when the last of the others was bound. (A pod
    created later replaces one that ran: then the gang had started whole.)
    """
    starting = state.workloads.starting
    if workload.startswith(LONE) or state.workloads.has_started(workload):
        return []
    bound = state.workloads.bound(workload)
    deadline_ms = state.policy.start_deadline_ms
    newest = max((pod.bound_ms for pod in bound), default=0)
    if any(isinstance(decision, Bind) for decision in decisions):
        starting.setdefault(workload, state.now_ms + deadline_ms)
    elif bound and any(pod.created_ms <= newest for pod in waiting):
        starting.setdefault(workload, newest + deadline_ms)
    if starting.get(workload, state.now_ms + 1) > state.now_ms:
        return []
    starting[workload] = state.now_ms + deadline_ms
    return [pod for pod in bound if not pod.deleting]
