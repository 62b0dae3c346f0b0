# SPDX-License-Identifier: Apache-2.0
"""What runs in a queue that is stopped, and when nothing does any more: the look-ahead with the queue stopped.

Rules: the queue is stopped from now on, and nothing else changes. A job is what the pods of one owner, or of one gang,
are together; it has left when its last pod has.
"""

from __future__ import annotations

from collections.abc import Set

from msgspec.structs import replace

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import enter
from dovetail.core.events import QueueChanged
from dovetail.core.model import Pod
from dovetail.core.queues.types import GPU, Stop
from dovetail.core.reasons import Expected, Sure
from dovetail.core.state import State
from dovetail.views.forecast import forecast
from dovetail.views.jobs import job_and_name
from dovetail.views.queue_drain_types import ENDS, EVICTED, STAYS, QueueDrainPlan, RunningJob
from dovetail.views.queues import inside, queue_named

_MOMENTS = 128
_ORDER = (Sure.KNOWN, Sure.LEARNED, Sure.UNKNOWN)
_UNKNOWN, _FIXED = "it declares no run time", "it must not be preempted, and declares no run time"


def queue_drain_plan(state: State, name: str, stop: Stop, now_ms: int) -> QueueDrainPlan:
    """The plan for the queue. Raises JobNotFound."""
    queue_named(state, name)
    copy = restore(state.policy, take(state))
    enter(copy, [QueueChanged(replace(copy.shares.tree.written[name], stop=stop))], now_ms)
    running = [
        one.pod for one in copy.cluster.placements.values()
        if one.pod.managed and inside(copy, copy.shares.pod_queues.of(one.pod), name)
    ]  # fmt: skip
    found = forecast(take(copy), copy.policy, now_ms, (), most=_MOMENTS, pods=[pod.uid for pod in running])
    by_owner: dict[str, list[Pod]] = {}
    names: dict[str, str] = {}
    for pod in running:
        owner, title = job_and_name(copy, pod)
        by_owner.setdefault(owner, []).append(pod)
        names.setdefault(owner, title)
    evicted = {victim.pod for victim in found.victims} | {pod.key for pod in running if pod.uid in found.drained}
    jobs = [_job(copy, names[owner], pods, found.ends, evicted) for owner, pods in by_owner.items()]
    jobs.sort(key=lambda job: (job.left.start_ms == 0, job.left.start_ms, job.job))
    waiting = sum(
        inside(copy, copy.shares.pod_queues.of(copy.workloads.members(workload)[0]), name)
        for workload in copy.queue.workloads() if copy.workloads.members(workload)
    )  # fmt: skip
    return QueueDrainPlan(name, tuple(jobs), waiting, _empty(jobs, now_ms))


def _job(
    state: State, name: str, pods: list[Pod], ends: dict[str, Expected], evicted: Set[str]
) -> RunningJob:  # fmt: skip
    known = [ends[pod.uid] for pod in pods if pod.uid in ends]
    left = Expected(Sure.UNKNOWN, 0, _why(state, pods))
    if len(known) == len(pods):
        last = max(known, key=lambda one: one.start_ms)
        left = Expected(max((one.sure for one in known), key=_ORDER.index), last.start_ms, last.basis)
    what = EVICTED if any(pod.key in evicted for pod in pods) else ENDS if left.start_ms else STAYS
    gpus = sum(dict(state.shares.amounts(pod.uid)).get(GPU, 0) for pod in pods)
    return RunningJob(name, state.shares.pod_queues.of(pods[0]), len(pods), gpus, what, left)


def _why(state: State, pods: list[Pod]) -> str:
    return _UNKNOWN if all(map(state.shares.pod_queues.preemptible, pods)) else _FIXED


def _empty(jobs: list[RunningJob], now_ms: int) -> Expected:
    if not jobs:
        return Expected(Sure.KNOWN, now_ms, "nothing runs in it")
    last = jobs[-1]
    if not last.left.start_ms:
        return Expected(Sure.UNKNOWN, 0, f"it is not known when {last.job} ends: {last.left.basis}")
    sure = max((job.left.sure for job in jobs), key=_ORDER.index)
    return Expected(sure, last.left.start_ms, f"when {last.job} {last.what}")
