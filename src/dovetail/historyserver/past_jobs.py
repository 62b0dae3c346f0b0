# SPDX-License-Identifier: Apache-2.0
"""Jobs of the past that were asked for: the answer of `dovetail history`."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.labels import holds
from dovetail.core.model import Requirement
from dovetail.history.jobs import PastJob, past_jobs
from dovetail.history.records import DAY_MS, Gap, Period, PodRecord
from dovetail.history.store import HistoryReader
from dovetail.historyserver.elsewhere import shown_text
from dovetail.historyserver.questions import PastJobsQuestion, QuestionError

_DEFAULT_MS = 7 * DAY_MS
_PATTERN = "*?["


class PastJobs(Struct, frozen=True):
    """The jobs of a period, the latest first, and the gaps in it. `elsewhere` is how many other jobs there were, of
    namespaces whose names are not shown; 0 where jobs are asked for by whole names."""

    known: Period
    period: Period
    jobs: tuple[PastJob, ...]
    gaps: tuple[Gap, ...]
    elsewhere: int = 0


def past_jobs_of(reader: HistoryReader, asked: PastJobsQuestion, own: str = "") -> PastJobs:
    """The jobs, of the namespace `own` alone if there is one. Raises StoreError, QuestionError."""
    known = reader.known()
    period = _period(known, asked)
    named = _named(reader, asked, own)
    pods = list(reader.pods(period)) if named is None else [one for one in named if _there(one, period)]
    counts = own and named is None
    elsewhere = len({(one.namespace, one.job) for one in pods if one.namespace != own}) if counts else 0
    if own:
        pods = [_shown(one, own) for one in pods if one.namespace == own]
    jobs = past_jobs(_with_labels(pods, asked), known.end_ms, steps=bool(asked.names))
    return PastJobs(
        known, period, tuple(job for job in jobs if _wants(asked, job)), tuple(reader.gaps(period)), elsewhere
    )


def _named(reader: HistoryReader, asked: PastJobsQuestion, own: str) -> list[PodRecord] | None:
    """The pods of the jobs that are asked for; None where it is not by whole names, and all have to be read. Raises
    StoreError."""
    if not asked.names or any(one in name for name in asked.names for one in _PATTERN):
        return None
    found: dict[str, PodRecord] = {}
    # What others have of this name is not read: it must not show, not even as a number or as time.
    for name in asked.names:
        namespace, _, short = name.rpartition("/")
        found |= {pod.uid: pod for pod in reader.job(short, own or namespace or asked.namespace)}
    return list(found.values())


def _there(pod: PodRecord, period: Period) -> bool:
    return pod.submitted_ms < period.end_ms and (not pod.ended_ms or pod.ended_ms > period.start_ms)


def names(pattern: str, job: str) -> bool:
    """Whether [NAMESPACE/]JOB, or a pattern, names the job NAMESPACE/NAME."""
    return fnmatchcase(job if "/" in pattern else job.partition("/")[2], pattern)


def _period(known: Period, asked: PastJobsQuestion) -> Period:
    """Raises QuestionError."""
    end_ms = known.end_ms + 1
    if asked.until_ms is not None:
        end_ms = known.end_ms - asked.until_ms if asked.until_ago else asked.until_ms
    start_ms = 0 if asked.names else min(known.end_ms, end_ms) - _DEFAULT_MS
    if asked.since_ms is not None:
        start_ms = known.end_ms - asked.since_ms if asked.since_ago else asked.since_ms
    if start_ms >= end_ms:
        raise QuestionError("--since must be before --until, and before the end of the history")
    return Period(max(0, start_ms), end_ms)


def _shown(pod: PodRecord, own: str) -> PodRecord:
    return replace(pod, message=shown_text(pod.message, own)) if pod.message else pod


def _with_labels(pods: Iterable[PodRecord], asked: PastJobsQuestion) -> list[PodRecord]:
    """The pods of jobs of which a pod has the labels."""
    pods = list(pods)
    if not asked.labels:
        return pods
    terms = [Requirement(one.key, one.operator, one.values) for one in asked.labels]
    keys = {(one.namespace, one.job) for one in pods if all(holds(term, one.labels.get(term.key)) for term in terms)}
    return [one for one in pods if (one.namespace, one.job) in keys]


def _wants(asked: PastJobsQuestion, job: PastJob) -> bool:
    if asked.names and not any(names(name, job.job) for name in asked.names):
        return False
    if asked.namespace and job.job.partition("/")[0] != asked.namespace:
        return False
    if asked.users and job.user not in asked.users:
        return False
    if asked.queue and job.queue != asked.queue:
        return False
    return not asked.outcomes or job.outcome in asked.outcomes
