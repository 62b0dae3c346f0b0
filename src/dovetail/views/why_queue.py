# SPDX-License-Identifier: Apache-2.0
"""How a queue stands, why its jobs wait, and why the first of them does.

Rules: reasons are those of the next step of the scheduler, `Placed` for who starts then. The first is whom it tries
first of the queue, or of those below it.
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
from dovetail.views.queues import heads, inside
from dovetail.views.standings import QueueShare, share
from dovetail.views.why import Why, refusal_of, why


class WhyQueue(Struct, frozen=True):
    """`below` are the queues right below it. `reasons` count its jobs that wait by code, most first; `head` is why the
    first of them waits, None where nobody does."""

    queue: QueueShare
    below: tuple[str, ...]
    reasons: tuple[tuple[str, int], ...]
    head: Why | None


def why_queue(state: State, name: str, now_ms: int, watch: Watch = lambda started, waiting: None) -> WhyQueue:
    """Explain a queue. Raises NotFound."""
    own = share(state, now_ms, name)[0]
    first = heads(state).get(name)
    jobs = [job for job in waiting_jobs(state) if inside(state, job.queue, name)]
    looked = restore(unhurried(state.policy), take(state))
    placed = {decision.uid for decision in step(looked, (), now_ms) if isinstance(decision, Bind)}
    codes = Counter(_code(looked, job, placed) for job in jobs)
    head = None
    if first is not None:
        pod = next(pod for job in jobs if job.workload == first for pod in job.waiting)
        head = why(state, pod.key, now_ms, watch)
    below = state.shares.tree.children(name)
    return WhyQueue(own, below, tuple(sorted(codes.items(), key=lambda item: (-item[1], item[0]))), head)


def _code(state: State, job: JobView, placed: Collection[str]) -> str:
    """Whoever starts is placed, also if some of its pods wait on."""
    if any(pod.uid in placed for pod in job.waiting):
        return PLACED
    return refusal_of(state, job.workload).reason.code
