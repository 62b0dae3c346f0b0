# SPDX-License-Identifier: Apache-2.0
"""One workload, a gang or a pod on its own, through the phases of the pipeline."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dovetail.core.decisions import Decision, Release
from dovetail.core.model import Pod
from dovetail.core.pipeline import known_refusals, pre_enqueue
from dovetail.core.pipeline.equivalence import Signature
from dovetail.core.pipeline.half_starts import overdue
from dovetail.core.pipeline.holds import hold
from dovetail.core.pipeline.placement import LIMITS, NO_ROOM, Outcome, PlacementPhase
from dovetail.core.pipeline.post_filter import PostFilter
from dovetail.core.pipeline.signature import signature_of, wanted_by
from dovetail.core.placing.gangs import Group
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State
from dovetail.core.workloads.index import startable

_REMEMBERED = NO_ROOM | LIMITS | {Reason.HEADROOM}
"""Reasons that all workloads of a signature have, however long they run."""
_UNTIL_TOUCHED = {Reason.HELD, Reason.QUEUE_STOPPED, Reason.QUEUE_BUDGET}
"""Reasons that last until the workload or its queue changes, whatever happens in the cluster."""


class Attempt:
    def __init__(self, state: State, workload: str) -> None:
        self._state = state
        self._workload = workload
        self._members = state.workloads.members(workload)
        self._kinds = state.workloads.kinds_among(workload) if len(self._members) > 1 else self._members
        self._queue = state.shares.pod_queues.of(self._members[0]) if self._members else ""
        self._placement = PlacementPhase(state, workload, self._queue, self._members)
        self._post_filter = PostFilter(state, workload, self._queue)

    @property
    def work(self) -> int:
        """How much the attempt counts: pods that look at other pods are placed one at a time, each at a cost."""
        if not any(pod.request.scattered for pod in self._kinds):
            return 1
        return 1 + sum([pod.request.scattered for pod in self._members])

    def decide(self) -> list[Decision]:
        """Binds for what could be placed, evictions for what could be with victims gone; a Hold where the refusal is
        new; a Release where a half start is overdue."""
        state = self._state
        by_uid = state.workloads.waiting(self._workload)
        decisions, refusal = self._phases(list(by_uid.values()))
        waiting = [pod for uid, pod in by_uid.items() if uid not in state.cluster.placements]
        if refusal is None and any(map(startable, waiting)):
            refusal = Refusal(Reason.GANG_FULL, When.NOT_YET)
        released = overdue(state, self._workload, waiting, decisions)
        if not waiting:
            state.queue.forget(self._workload)
            return decisions
        aside = refusal is not None and refusal.reason in _UNTIL_TOUCHED
        queue_user = state.queue_order.queue_user(self._workload)
        state.queue.park(self._workload, state.rank(self._workload), queue_user, aside=aside)
        if self._post_filter.again or self._placement.took_least:
            state.postpone(self._workload)
        if refusal is not None:
            decisions += self._report(refusal, waiting, released)
        return decisions

    def _phases(self, waiting: Sequence[Pod]) -> Outcome:
        """The first refusal counts for the workload."""
        state, workload = self._state, self._workload
        kinds = self._kinds if len(waiting) == len(self._members) else state.workloads.distinct(waiting)
        refusal = (
            pre_enqueue.blocked(state, workload, self._queue, waiting, kinds)
            or pre_enqueue.stopped(state, self._queue, self._members)
            or pre_enqueue.outside(kinds)
        )
        if refusal is not None:
            return self._post_filter.give_up(str(refusal)), refusal
        decisions: list[Decision] = []
        for group in state.workloads.groups(workload):
            decided, lacking = self._group(group)
            decisions += decided
            refusal = refusal or lacking
        decisions += self._post_filter.close()
        return decisions, refusal

    def _group(self, group: Group) -> Outcome:
        """What equal workloads were refused for, else a placement, else what the post-filter does."""
        state, workload = self._state, self._workload
        # A gang that lacks pods is refused by their number, whatever they want.
        enough = bool(group.groups) or len(group.pods) >= group.missing
        wanted = wanted_by(state, self._queue, group, workload) if enough else None
        # The signature matters to refused workloads alone.
        signature = self._signature(group, wanted) if state.equivalence.concern(wanted) else None
        if signature is not None and (known := known_refusals.refusal(state, workload)) is not None:
            return [], known
        placed, refusal = self._placement.place(group, wanted)
        if refusal is None or placed:
            return placed, refusal
        signature = signature or self._signature(group, wanted)
        decisions, refusal = self._post_filter.make(group, refusal, signature)
        if signature is not None and refusal.reason in _REMEMBERED and not self._post_filter.again:
            known_refusals.refuse(state, workload, refusal)
        return decisions, refusal

    def _signature(self, group: Group, wanted: Hashable | None) -> Signature | None:
        """The signature of the workload, which is noted where it has one."""
        signature = signature_of(self._state, self._workload, self._queue, group, wanted, self._kinds)
        if signature is not None:
            known_refusals.know(self._state, self._workload, signature, group)
        return signature

    def _report(self, refusal: Refusal, waiting: Sequence[Pod], released: Sequence[Pod]) -> list[Decision]:
        """That the pods wait, where that is new, or that a half start is released."""
        state = self._state
        if released:
            return [Release(self._workload, tuple(pod.uid for pod in released), refusal, state.steps)]
        return hold(state, self._workload, refusal, tuple(pod.uid for pod in waiting))
