# SPDX-License-Identifier: Apache-2.0
"""The status of a queue, the reasons for which its jobs wait, and the answer for its first job.

Rules: reasons are those of the next step of the scheduler, `Placed` for jobs that start then. The first job is the
first in queue order of the queue and those below it.
"""

from __future__ import annotations

from collections import Counter

from dovetail.core.state import State
from dovetail.views.forecast_types import PLACED, Watch
from dovetail.views.job_types import JobView
from dovetail.views.jobs import waiting_jobs
from dovetail.views.outlook import NextStep, Outlook
from dovetail.views.queue_shares import share
from dovetail.views.queues import heads, inside
from dovetail.views.why import explain, explain_request, refusal_of
from dovetail.views.why_types import WhyQueue


def why_queue(state: State, name: str, now_ms: int, watch: Watch = lambda started, waiting: None) -> WhyQueue:
    """Explain a queue. Raises JobNotFound."""
    return explain_queue(Outlook(state, now_ms, watch), name)


def explain_queue(outlook: Outlook, name: str) -> WhyQueue:
    """The same, for the state of an outlook."""
    state, now_ms = outlook.state, outlook.now_ms
    own = share(state, now_ms, name)[0]
    first = heads(state).get(name)
    jobs = [job for job in waiting_jobs(state) if inside(state, job.queue, name)]
    codes = Counter(_code(state, outlook.next, job) for job in jobs)
    head = None
    if first is not None and (one := state.requests.by_workload.get(first)) is not None:
        head = explain_request(outlook, one)
    elif first is not None:
        pod = next(pod for job in jobs if job.workload == first for pod in job.waiting)
        head = explain(outlook, pod.key)
    below = state.shares.tree.children(name)
    return WhyQueue(own, below, tuple(sorted(codes.items(), key=lambda item: (-item[1], item[0]))), head)


def _code(state: State, after: NextStep, job: JobView) -> str:
    """The reason code of a job; Placed if some of its pods start, or the request is granted or offered something."""
    if any(pod.uid in after.binds for pod in job.waiting):
        return PLACED
    one = state.requests.by_workload.get(job.workload)
    if one is None:
        return refusal_of(after.state, job.workload).reason.code
    if one.request.id in after.grants or one.request.id in after.offers:
        return PLACED
    reported = after.state.requests.negotiations[one.request.id].reported
    return reported.reason.code if reported is not None else ""
