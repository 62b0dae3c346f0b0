# SPDX-License-Identifier: Apache-2.0
"""The waiting jobs in queue order: why each waits, and when it starts.

Rules: the order is that of the next step if no job fitted. The first in queue order need not start first, as others may
fit where it does not. Reasons are those of the next step. Starts are those of `forecast`.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.reasons import Expected
from dovetail.core.state import State
from dovetail.views.forecast_types import PLACED, ForecastPlace, Start, Watch
from dovetail.views.jobs import job_of
from dovetail.views.outlook import Outlook
from dovetail.views.queues import inside, queue_named


class WaitingWorkload(Struct, frozen=True):
    """A waiting job at `position` (from 1). `state` is "Placed" if the next step starts it, else "NotYet" or "Never";
    `code` is "Placed" or the reason, `message` the reason with numbers, `reclaim` the result of the search for victims.
    `since_ms` is when it was created, 0 if not known."""

    position: int
    job: str
    queue: str
    user: str
    pods: int
    gpus_milli: int
    priority: int
    state: str
    code: str
    message: str
    reclaim: str
    since_ms: int
    expected: Expected
    places: tuple[ForecastPlace, ...]


class QueuePosition(Struct, frozen=True):
    """The waiting jobs of a `queue`, or of all queues (""). `whole` is false if the look-ahead ended at its bound.
    `elsewhere` is the number of those that are left out, as they are in namespaces that the asker may not see."""

    queue: str
    now_ms: int
    jobs: tuple[WaitingWorkload, ...]
    whole: bool
    elsewhere: int = 0


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
