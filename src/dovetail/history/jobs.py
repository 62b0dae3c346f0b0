# SPDX-License-Identifier: Apache-2.0
"""Jobs of the past, from the records of their pods: as Slurm's sacct.

Rules
- Pods of one job have its name in one namespace. A name may be used again: a pod begins another job if it was submitted
  after all earlier ones had completed or were deleted, or more than an hour after they had ended otherwise.
- A job waited from the time when it was submitted to its first bind. It ran from there to the end of its last pod.
- A job with pods that have not ended runs, or waits if none is bound. Else it ended as the pod that ended last; of
  those that ended at one time as the one that comes first in `_WORST`.
- `gpu_ms` are thousandths of a GPU times milliseconds, from bind to end, of all its pods; up to `now_ms` where it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from dovetail.history.records import HOUR_MS, Outcome, PodRecord

JobOutcome = Literal["Waiting", "Running", "Completed", "Failed", "Preempted", "Evicted", "Deleted", "Lost"]
OUTCOMES: tuple[JobOutcome, ...] = (
    "Waiting", "Running", "Completed", "Failed", "Preempted", "Evicted", "Deleted", "Lost",
)  # fmt: skip
_WORST: tuple[Outcome, ...] = ("Failed", "Lost", "", "Evicted", "Preempted", "Deleted", "Completed")
"""An end without an outcome, which no collector writes, counts as `Lost`."""
_FINAL = ("Completed", "Deleted")


class PastPod(Struct, frozen=True):
    """A pod of a job, with the time of each step: it waited for its bind, then for its first container (`startup_ms`),
    and ran. A step that has not ended counts up to now; one that has not begun is None."""

    pod: str
    uid: str
    outcome: JobOutcome
    gpus: str
    node: str
    submitted_ms: int
    waited_ms: int
    startup_ms: int | None
    ran_ms: int | None
    ended_ms: int
    restarts: int
    code: str
    message: str


class PastJob(Struct, frozen=True):
    """A job. Times that have not come are 0; `ran_ms` is None for a job that was never bound. `preempted` is how many
    of its pods were preempted or evicted, `lost` of how many the end is not known."""

    job: str
    kind: str
    user: str
    queue: str
    scheduler: str
    lease: str
    priority: int
    outcome: JobOutcome
    gpus_milli: int
    pods: int
    nodes: tuple[str, ...]
    submitted_ms: int
    waited_ms: int
    bound_ms: int
    ran_ms: int | None
    ended_ms: int
    preempted: int
    lost: int
    restarts: int
    gpu_ms: int
    code: str
    message: str
    steps: tuple[PastPod, ...] = ()


def past_jobs(records: Iterable[PodRecord], now_ms: int, *, steps: bool = False) -> list[PastJob]:
    """The jobs of these pods, the latest first; with `steps` those of each pod."""
    by_name: dict[tuple[str, str], list[PodRecord]] = {}
    for record in records:
        by_name.setdefault((record.namespace, record.job), []).append(record)
    found = [_job(pods, now_ms, steps) for some in by_name.values() for pods in _apart(some)]
    return sorted(found, key=lambda job: (-job.submitted_ms, job.job))


def _apart(records: list[PodRecord]) -> Iterator[list[PodRecord]]:
    """The pods of each job that had the name."""
    ordered = sorted(records, key=lambda one: (one.submitted_ms, one.uid))
    own: list[PodRecord] = []
    for record in ordered:
        if own and all(one.ended_ms for one in own):
            last_ms = max(one.ended_ms for one in own)
            final = all(one.outcome in _FINAL for one in own)
            if record.submitted_ms >= last_ms + (0 if final else HOUR_MS):
                yield own
                own = []
        own.append(record)
    if own:
        yield own


def _job(pods: Sequence[PodRecord], now_ms: int, steps: bool) -> PastJob:
    first, last = pods[0], _last(pods)
    binds = [one.bound_ms for one in pods if one.bound_ms]
    bound_ms = min(binds, default=0)
    open_ = [one for one in pods if not one.ended_ms]
    ended_ms = 0 if open_ else max(one.ended_ms for one in pods)
    submitted_ms = min(one.submitted_ms for one in pods)
    return PastJob(
        f"{first.namespace}/{first.job}", first.kind, first.user, first.queue, first.scheduler, last.lease,
        last.priority, _outcome(open_, last), _peak_milli(pods), len(pods),
        tuple(dict.fromkeys(one.node for one in pods if one.node)), submitted_ms,
        max(0, (bound_ms or ended_ms or now_ms) - submitted_ms), bound_ms,
        max(0, (ended_ms or now_ms) - bound_ms) if bound_ms else None, ended_ms,
        sum(one.outcome in ("Preempted", "Evicted") for one in pods), sum(one.outcome == "Lost" for one in pods),
        sum(one.restarts for one in pods),
        sum(one.gpu_milli * max(0, (one.ended_ms or now_ms) - one.bound_ms) for one in pods if one.bound_ms),
        last.code, last.message,
        tuple(_pod(one, now_ms) for one in pods) if steps else (),
    )  # fmt: skip


def _peak_milli(pods: Sequence[PodRecord]) -> int:
    """The most that these pods held at one time; what they ask for if none was ever bound."""
    bound = [one for one in pods if one.bound_ms]
    if not bound:
        return sum(one.gpu_milli for one in pods if not one.ended_ms) or max(one.gpu_milli for one in pods)
    changes = [(one.bound_ms, one.gpu_milli) for one in bound]
    changes += [(one.ended_ms, -one.gpu_milli) for one in bound if one.ended_ms]
    # At one time ends come first.
    return max(accumulate(milli for _, milli in sorted(changes)))


def _last(pods: Sequence[PodRecord]) -> PodRecord:
    ended = [one for one in pods if one.ended_ms]
    return max(ended, key=lambda one: (one.ended_ms, -_WORST.index(one.outcome)), default=pods[-1])


def _outcome(open_: Sequence[PodRecord], last: PodRecord) -> JobOutcome:
    if open_:
        return "Running" if any(one.bound_ms for one in open_) else "Waiting"
    return last.outcome or "Lost"


def _pod(one: PodRecord, now_ms: int) -> PastPod:
    end_ms = one.ended_ms or now_ms
    waited_ms = max(0, (one.bound_ms or end_ms) - one.submitted_ms)
    startup_ms = max(0, (one.started_ms or end_ms) - one.bound_ms) if one.bound_ms else None
    ran_ms = max(0, end_ms - one.started_ms) if one.started_ms else None
    outcome: JobOutcome = one.outcome or ("Lost" if one.ended_ms else "Running" if one.bound_ms else "Waiting")
    return PastPod(
        one.name, one.uid, outcome, one.gpus, one.node, one.submitted_ms, waited_ms, startup_ms, ran_ms, one.ended_ms,
        one.restarts, one.code, one.message,
    )  # fmt: skip
