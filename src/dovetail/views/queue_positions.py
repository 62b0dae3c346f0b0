# SPDX-License-Identifier: Apache-2.0
"""The waiting jobs in queue order: why each waits, and when it starts.

Rules: the order is that of the next step if no job fitted. The first in queue order need not start first, as others may
fit where it does not. Reasons are those of the next step. Starts are those of `forecast`.
"""

from __future__ import annotations

from dovetail.core.state import State
from dovetail.views.forecast_types import PLACED, Start, Watch
from dovetail.views.jobs import job_of
from dovetail.views.outlook import Outlook
from dovetail.views.queue_types import QueuePosition, WaitingWorkload
from dovetail.views.queues import inside, queue_named


def queue_positions(
    state: State, now_ms: int, queue: str = "", watch: Watch = lambda started, waiting: None
) -> QueuePosition:
    """The waiting jobs of a queue and of those below it, or of all queues. Raises JobNotFound."""
    return positions(Outlook(state, now_ms, watch), queue)


def positions(outlook: Outlook, queue: str = "") -> QueuePosition:
    """The same, for the state of an outlook."""
    state = outlook.state
    if queue:
        queue_named(state, queue)
    order, found = state.queue.ordered(), outlook.ahead
    jobs = tuple(
        _waiting(state, position, found.starts[workload])
        for position, workload in enumerate(order, 1)
        if workload in found.starts and inside(state, found.starts[workload].job.queue, queue)
    )
    return QueuePosition(queue, outlook.now_ms, jobs, found.whole)


def _waiting(state: State, position: int, start: Start) -> WaitingWorkload:
    job, refusal = job_of(state, start.job.workload), start.refusal
    return WaitingWorkload(
        position, job.name, job.queue, job.user, len(job.waiting), job.gpus_milli, state.precedence(job.workload)[0],
        start.state,
        PLACED if start.at_once else refusal.reason.code if refusal is not None else "",
        str(refusal) if refusal is not None else "",
        refusal.reclaim if refusal is not None else "",
        job.since_ms, start.expected, start.places,
    )  # fmt: skip
