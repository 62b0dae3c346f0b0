# SPDX-License-Identifier: Apache-2.0
"""The answer of `dovetail history`, and the columns of its list."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from dovetail.cli.listing import ListColumn, ListColumns, Shown, time_of
from dovetail.cli.output import gpus, span
from dovetail.history.jobs import JobOutcome, PastJob, PastPod

_STYLES = {"Running": "green", "Waiting": "yellow", "Completed": "dim", "Failed": "red", "Lost": "red"}
_NODES_SHOWN = 3


class HistoryPod(Struct, frozen=True):
    """A pod of a job in the answer (see `PastPod`)."""

    pod: str
    uid: str
    outcome: JobOutcome
    gpus: str
    node: str
    submitted: datetime | None
    waited_ms: int
    startup_ms: int | None
    ran_ms: int | None
    ended: datetime | None
    restarts: int
    code: str
    message: str


class HistoryJob(Struct, frozen=True):
    """A job in the answer (see `PastJob`)."""

    job: str
    made_by: str
    user: str
    queue: str
    scheduler: str
    lease: str
    priority: int
    outcome: JobOutcome
    gpus_milli: int
    gpu_hours: float
    nodes: tuple[str, ...]
    submitted: datetime | None
    waited_ms: int
    bound: datetime | None
    ran_ms: int | None
    ended: datetime | None
    pods: int
    preempted: int
    lost: int
    restarts: int
    code: str
    message: str
    steps: tuple[HistoryPod, ...] = ()


def job_row(job: PastJob) -> HistoryJob:
    return HistoryJob(
        job.job, job.kind, job.user, job.queue, job.scheduler, job.lease, job.priority, job.outcome, job.gpus_milli,
        round(job.gpu_ms / 3_600_000_000, 3), job.nodes, time_of(job.submitted_ms), job.waited_ms,
        time_of(job.bound_ms), job.ran_ms, time_of(job.ended_ms), job.pods, job.preempted, job.lost, job.restarts,
        job.code, job.message, tuple(map(_pod_row, job.steps)),
    )  # fmt: skip


def _pod_row(pod: PastPod) -> HistoryPod:
    return HistoryPod(
        pod.pod, pod.uid, pod.outcome, pod.gpus, pod.node, time_of(pod.submitted_ms), pod.waited_ms, pod.startup_ms,
        pod.ran_ms, time_of(pod.ended_ms), pod.restarts, pod.code, pod.message,
    )  # fmt: skip


def _nodes(row: HistoryJob, shown: Shown) -> str:
    if shown.whole or len(row.nodes) <= _NODES_SHOWN:
        return ",".join(row.nodes)
    return f"{','.join(row.nodes[:_NODES_SHOWN])} and {len(row.nodes) - _NODES_SHOWN} more"


def _ago(at: datetime | None, shown: Shown) -> str:
    return f"{span(max(0, shown.now_ms - round(at.timestamp() * 1000)))} ago" if at is not None else ""


def seconds(ms: int | None) -> float | None:
    return ms / 1000 if ms is not None else None


def lasted(ms: int | None) -> str:
    """How long a step took, "" for one that has not begun."""
    return span(ms) if ms is not None else ""


COLUMNS: ListColumns[HistoryJob] = ListColumns(
    (
        ListColumn("job", lambda row: row.job),
        ListColumn("user", lambda row: row.user),
        ListColumn("queue", lambda row: row.queue),
        ListColumn("gpus", lambda row: row.gpus_milli / 1000, lambda row, _: gpus(row.gpus_milli), heading="GPUs",
                   to_the_right=True),
        ListColumn("outcome", lambda row: row.outcome, styles=_STYLES),
        ListColumn("submitted", lambda row: row.submitted, lambda row, shown: _ago(row.submitted, shown)),
        ListColumn("waited", lambda row: seconds(row.waited_ms), lambda row, _: lasted(row.waited_ms)),
        ListColumn("ran", lambda row: seconds(row.ran_ms), lambda row, _: lasted(row.ran_ms)),
        ListColumn("ended", lambda row: row.ended, lambda row, shown: _ago(row.ended, shown)),
        ListColumn("nodes", lambda row: ",".join(row.nodes), _nodes),
        ListColumn("preempted", lambda row: row.preempted, to_the_right=True),
        ListColumn("restarts", lambda row: row.restarts, to_the_right=True),
        ListColumn("code", lambda row: row.code),
        ListColumn("made-by", lambda row: row.made_by, heading="made by", wide=True),
        ListColumn("pods", lambda row: row.pods, wide=True, to_the_right=True),
        ListColumn("gpu-hours", lambda row: row.gpu_hours, heading="GPU-hours", wide=True, to_the_right=True),
        ListColumn("bound", lambda row: row.bound, lambda row, shown: _ago(row.bound, shown), wide=True),
        ListColumn("priority", lambda row: row.priority, wide=True, to_the_right=True),
        ListColumn("lease", lambda row: row.lease, wide=True),
        ListColumn("why", lambda row: row.message, wide=True, prose=True),
    ),
    named_by="job",
)  # fmt: skip
