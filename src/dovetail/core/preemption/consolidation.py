# SPDX-License-Identifier: Apache-2.0
"""Consolidation: the scheduler moves running pods, so that a job fits into room that is free in pieces.

Rules: the plan is that of `preemption.defragmentation`: afterwards the job fits, and each moved pod has a place. A pod
may be moved if it has a controller that creates it again; if it allows moves by annotation, or its work is saved (it
writes checkpoints, or its gang runs on without it); and if it has no rules about other pods and no devices by claim. A
job is not moved again shortly after a move, the policy limits the moved pods per hour, and a move must gain more than
it loses:

- it loses the work that the moved pods have to repeat, and their charge while they end and start again;
- it gains the charge of the job for the time that it runs earlier: until its expected start, or for its run time,
  whichever is less, or for an hour where neither is known.
"""

from __future__ import annotations

from collections.abc import Collection

from dovetail.core.model import Pod
from dovetail.core.placing.gangs import Group, fewest
from dovetail.core.placing.pods import Scope
from dovetail.core.preemption.defragmentation import MovePlan, NoPlan, plan
from dovetail.core.preemption.units import Unit
from dovetail.core.reasons import Sure
from dovetail.core.reservations.reservation import Reservation
from dovetail.core.state import State

_UNKNOWN_MS = 3_600_000
"""How much earlier a job is assumed to run where nothing is known."""
_RESTART_MS = 60_000
"""How long a pod takes to end and to be created again, beside its declared start-up time."""


def find(
    state: State, workload: str, group: Group, scope: Scope | None, ending: Collection[str], own: Reservation | None
) -> MovePlan | str:
    """Moves after which `group`, which is complete and does not fit, fits inside `scope`; else the reason why there are
    none. `ending` are pods (uid) that are being evicted already, `own` is the reservation of the workload."""
    left = state.moves.left(state.policy.moves_per_hour, state.now_ms)
    if not left:
        return f"{state.policy.moves_per_hour} pods were moved in the last hour, and the policy allows no more"
    found = plan(state, group, workload, scope, movable=lambda unit: _movable(state, unit), ending=ending)
    if isinstance(found, NoPlan):
        return f"no moves help: {found}"
    if not found.steps:
        return "it fits as it is"
    uids = [move.uid for step in found.steps for move in step.moves]
    if len(uids) > left:
        return f"{len(uids)} pods would have to move, and {left} more may move in this hour"
    lost = found.lost_milli_ms + _RESTART_MS * sum(state.shares.rate(uid) for uid in uids)
    gained = _gained(state, workload, group, own)
    if lost >= gained:
        minutes = 60_000_000
        return f"moves would lose {lost // minutes} GPU-minutes of work, and gain {gained // minutes}"
    return found


def _movable(state: State, unit: Unit) -> bool:
    pods = [state.workloads.pods[uid] for uid in unit.uids]
    return all(_may_move(state, pod, unit.elastic) for pod in pods)


def _may_move(state: State, pod: Pod, elastic: bool) -> bool:
    saved = bool(pod.checkpoint_ms or pod.work.checkpoint_interval_ms or elastic)
    may = saved if pod.work.movable is None else pod.work.movable
    alone = not (pod.request.scattered or pod.device_claims or pod.by_claim)
    # The new pod of a job in a stopped queue would not start.
    may = may and state.shares.tree.stopped_by(state.shares.pod_queues.of(pod)) is None
    return (
        may
        and alone
        and bool(pod.owner)
        and not state.moves.moved_recently(pod, state.now_ms, state.policy.move_again_ms)
    )


def _gained(state: State, workload: str, group: Group, own: Reservation | None) -> int:
    """The charge of the job for the time that it would run earlier, in milli-GPU times ms. Reservations of other jobs
    do not count: the first of equivalent jobs is the one that gains."""
    pods = fewest(group)
    run = state.run_times.estimate(pods[0].work, state.shares.pod_queues.of(pods[0]))
    for_ms = [run.ran_ms] if run.sure is not Sure.UNKNOWN else []
    held = own or state.planner.plan(group, ())
    if held is not None and held.expected.sure is not Sure.UNKNOWN:
        for_ms.append(max(0, held.expected.start_ms - state.now_ms))
    rate = state.shares.rates.of(tuple(state.shares.wanted(pods).items()))
    return rate * min(for_ms, default=_UNKNOWN_MS)
