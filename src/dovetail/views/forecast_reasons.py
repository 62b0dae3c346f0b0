# SPDX-License-Identifier: Apache-2.0
"""Why a job has no start in a look-ahead that ended because nothing more happens in it."""

from __future__ import annotations

from collections.abc import Container

from dovetail.core.placing import refusals
from dovetail.core.queues.types import GPU
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State
from dovetail.views.job_types import JobView
from dovetail.views.names import some

_ENDLESS_SHOWN = 2
_UNTIL = {
    Reason.HELD: "it is held: `dovetail release` releases it",
    Reason.QUEUE_STOPPED: "its queue is stopped: `dovetail queue resume` lets its jobs start",
    Reason.QUEUE_BUDGET: "its queue has used its budget: the next period begins, or an admin raises `spec.budget`",
}
"""Until when jobs that no end of a pod lets start wait, by reason."""
_OF_ROOM = {Reason.QUEUE_LIMIT, Reason.RESERVED, Reason.BEYOND_GUARANTEE, Reason.GANG_DOES_NOT_FIT}


class NoStart:
    """In the state at the end of a look-ahead. `endless` are the pods (uid) without a known end."""

    def __init__(self, state: State, endless: Container[str]) -> None:
        self._state = state
        self._endless = endless
        self._holders: dict[tuple[object, ...], list[str]] = {}

    def why(self, job: JobView, refusal: Refusal | None, first: Refusal | None) -> str:
        """In words. `refusal` is the last one, `first` that of the first step, if it is another."""
        if refusal is None:
            return "the scheduler has not tried it"
        first_one = first or refusal
        if refusal.reason in _UNTIL:
            return _UNTIL[refusal.reason]
        if refusal.when is When.NEVER or first_one.when is When.NEVER:
            return f"it cannot start ({(first_one if first_one.when is When.NEVER else refusal).reason.code})"
        if first_one.reason is Reason.LEASE_FULL:
            return "no pod of its lease is expected to end before the lease does"
        endless = self._endless_holders(job, refusal)
        if not endless and (closed := self._in_maintenance(job, refusal)):
            are = "is" if len(closed) == 1 else "are"
            return f"{some(closed, _ENDLESS_SHOWN)} {are} in maintenance, for a time that is not known"
        if not endless:
            return f"it waits for more than ends of pods ({refusal.reason.code})"
        if len(endless) == 1:
            return f"{endless[0]} has no known end: set its dovetail.dev/max-runtime"
        return f"{some(endless, _ENDLESS_SHOWN)} have no known end: set their dovetail.dev/max-runtime"

    def _endless_holders(self, job: JobView, refusal: Refusal) -> list[str]:
        """Pods without a known end on nodes that could take the job, the pods with most GPUs first."""
        if not job.waiting or not (refusal.nodes or refusal.reason in _OF_ROOM):
            return []
        cluster, pod = self._state.cluster, job.waiting[0]
        requested = (pod.request, pod.claims, pod.device_claims)
        if requested in self._holders:
            return self._holders[requested]
        found = refusals.verdicts(cluster, pod)
        slots = {
            int(slot)
            for verdict in found
            if verdict.when is When.NOT_YET and verdict.reason is not Reason.MAINTENANCE
            for slot in verdict.slots
        }
        placed = [
            cluster.placements[uid].pod
            for slot in sorted(slots)
            for uid in cluster.on_slot.get(slot, ())
            if uid in self._endless
        ]
        shares = self._state.shares
        placed.sort(key=lambda pod: (-dict(shares.amounts(pod.uid)).get(GPU, 0), pod.key))
        self._holders[requested] = [pod.key for pod in placed]
        return self._holders[requested]

    def _in_maintenance(self, job: JobView, refusal: Refusal) -> list[str]:
        """Nodes that could take the job if they were not in maintenance."""
        if not job.waiting or not refusal.nodes:
            return []
        found = refusals.verdicts(self._state.cluster, job.waiting[0])
        names = self._state.cluster.nodes.names
        return sorted(names[slot] for one in found if one.reason is Reason.MAINTENANCE for slot in one.slots)
