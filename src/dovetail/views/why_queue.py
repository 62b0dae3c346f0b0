# SPDX-License-Identifier: Apache-2.0
"""The status of a queue, the reasons for which its jobs wait, and the answer for its first job.

Rules: reasons are those of the next step of the scheduler, `Placed` for jobs that start then. The first job is the
first in queue order of the queue and those below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from msgspec import Struct

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.policy import unhurried
from dovetail.core.state import State
from dovetail.views.forecast import PLACED, Watch
from dovetail.views.jobs import JobView, waiting_jobs
from dovetail.views.queue_shares import QueueShare, share
from dovetail.views.queues import heads, inside
from dovetail.views.why import Why, refusal_of, why


class WhyQueue(Struct, frozen=True):
    """The answer for a queue. `below` are its children. `reasons` has the number of its waiting jobs by reason code,
    the largest first; `head` explains the first of them, None if none waits."""

    queue: QueueShare
    below: tuple[str, ...]
    reasons: tuple[tuple[str, int], ...]
    head: Why | None


def why_queue(state: State, name: str, now_ms: int, watch: Watch = lambda started, waiting: None) -> WhyQueue:
    """Explain a queue. Raises JobNotFound."""
    own = share(state, now_ms, name)[0]
    first = heads(state).get(name)
    jobs = [job for job in waiting_jobs(state) if inside(state, job.queue, name)]
    copy = restore(unhurried(state.policy), take(state))
    placed = {decision.uid for decision in step(copy, (), now_ms) if isinstance(decision, Bind)}
    codes = Counter(_code(copy, job, placed) for job in jobs)
    head = None
    if first is not None:
        pod = next(pod for job in jobs if job.workload == first for pod in job.waiting)
        head = why(state, pod.key, now_ms, watch)
    below = state.shares.tree.children(name)
    return WhyQueue(own, below, tuple(sorted(codes.items(), key=lambda item: (-item[1], item[0]))), head)


def _code(state: State, job: JobView, placed: Collection[str]) -> str:
    """The reason code of a job; Placed if some of its pods start."""
    if any(pod.uid in placed for pod in job.waiting):
        return PLACED
    return refusal_of(state, job.workload).reason.code
