# SPDX-License-Identifier: Apache-2.0
"""The jobs of a cluster as a list: running, waiting, and done.

Rules
- Which jobs there are, their states and their order is found by `known_jobs`.
- Why a job waits is what the next step of the scheduler finds for the first of it in queue order. Its start is that
  of `forecast`, if there is a look-ahead. A running job ends when the last of its pods is expected to end.
- Of a window (`JobFilter.first`) no more than its own rows are made: jobs are found and sorted by what is needed for
  that alone. It is the beginning of the whole list, searched and sorted by its rows. Why jobs wait is found where one
  of the rows waits, or where that is searched or sorted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.labels import holds
from dovetail.core.model import Pod, Requirement
from dovetail.core.preemption.victims import lost_milli_ms
from dovetail.core.queues.types import GPU
from dovetail.core.reasons import Expected, Reason, Sure, When
from dovetail.core.state import State
from dovetail.kube.translate.ended import EndedPod
from dovetail.views.forecast_types import PLACED, Watch
from dovetail.views.job_states import FAILED, WAITING
from dovetail.views.job_types import JobFilter, JobList, JobRow, JobTime, JobView, JobWindow
from dovetail.views.jobs import job_of, names_of
from dovetail.views.known_jobs import KnownJob, UnfinishedJobs, done_jobs, in_order
from dovetail.views.names import JobNotFound, nearest
from dovetail.views.outlook import Outlook
from dovetail.views.queues import inside, queue_named
from dovetail.views.requested import requested, requested_milli
from dovetail.views.why import refusal_of

_MINUTE = 60_000_000
"""In milli-GPU times ms."""
_SURE = (Sure.KNOWN, Sure.LEARNED, Sure.UNKNOWN)
_DIGITS = re.compile("([0-9]+)")
_CODES = (PLACED.lower(), *(one.code.lower() for one in Reason))
"""All that the reason of a job that waits can be."""


class _Wait(Struct, frozen=True):
    """Why a job waits, as in JobRow."""

    reason: str
    message: str
    when: str
    start: JobTime | None = None


_WAITS_FOR_NOTHING = _Wait("", "", "")


def job_list(
    state: State,
    now_ms: int,
    wanted: JobFilter,
    ended: Iterable[EndedPod] = (),
    *,
    most_ahead: int,
    watch: Watch = lambda started, waiting: None,
) -> JobList:
    """The jobs that the filter admits. `ended` are the finished pods. If at most `most_ahead` jobs wait in the cluster
    there is a look-ahead, of which `watch` gets the progress. Raises JobNotFound for a name, a queue or a node that
    does not exist; with a namespace, for a name that does not exist there."""
    return jobs_of(Outlook(state, now_ms, watch), wanted, ended, most_ahead=most_ahead)


def jobs_of(
    outlook: Outlook,
    wanted: JobFilter,
    ended: Iterable[EndedPod] = (),
    *,
    most_ahead: int,
    alone: bool = False,
    unfinished: UnfinishedJobs | None = None,
) -> JobList:
    """The same, for the state of an outlook; a JobWindow where one is wanted. `alone`: the asker may see the namespace
    of the filter alone, and learns of others no more than how many there are. `unfinished` are those of the state."""
    state = outlook.state
    unfinished = unfinished or UnfinishedJobs(state)
    order = unfinished.order
    every = [*unfinished.jobs, *in_order(done_jobs(state, ended), order)]
    jobs = [one for one in every if one.namespace == wanted.namespace] if wanted.namespace else every
    _check(state, jobs, wanted)
    listed = [one for one in jobs if _admitted(state, one, wanted)]
    reasons = _Reasons(outlook, order, look_ahead=len(order) <= most_ahead)
    named = _with_name_words(listed, wanted.name_words)
    found = _sorted(_with_words(named, wanted.words, reasons), wanted, state, reasons)
    shown = found[: wanted.first] if wanted.first else found
    reasons.want(shown)
    rows = tuple(_row(state, outlook.now_ms, one, reasons) for one in shown)
    now = datetime.fromtimestamp(outlook.now_ms // 1000, UTC)
    elsewhere = _elsewhere(state, every, wanted) if alone else 0
    if not wanted.first:
        return JobList(now, reasons.look_ahead, reasons.whole, rows, elsewhere)
    return JobWindow(now, reasons.look_ahead, reasons.whole, rows, elsewhere, total=len(listed), found=len(found))


def _elsewhere(state: State, every: Iterable[KnownJob], wanted: JobFilter) -> int:
    """How many jobs of other namespaces the states and the queue of the filter admit, whatever the window; 0 if it is
    about more."""
    admits = JobFilter(states=wanted.states, queue=wanted.queue)
    if replace(wanted, namespace="", words=(), name_words=(), sort="", descending=False, first=0) != admits:
        return 0
    return sum(one.namespace != wanted.namespace and _admitted(state, one, admits) for one in every)


def _check(state: State, jobs: Sequence[KnownJob], wanted: JobFilter) -> None:
    """Raise JobNotFound for what the filter names and does not exist."""
    for name in wanted.names:
        if not any(_is_named(state, one, name) for one in jobs):
            known = (known for one in jobs for known in _names(state, one))
            near = nearest(name, known if "/" in name else (one.partition("/")[2] for one in known))
            raise JobNotFound(f"there is no job {name}{near}")
    if wanted.queue and all(one.queue != wanted.queue for one in jobs):
        queue_named(state, wanted.queue)
    nodes = state.cluster.nodes.slots
    if wanted.node and not any(fnmatchcase(node, wanted.node) for node in nodes):
        raise JobNotFound(f"node {wanted.node} does not exist{nearest(wanted.node, sorted(nodes))}")


def _admitted(state: State, one: KnownJob, wanted: JobFilter) -> bool:
    return (
        (not wanted.states or one.state in wanted.states)
        and (not wanted.namespace or one.namespace == wanted.namespace)
        and (not wanted.users or one.user in wanted.users)
        and (not wanted.queue or one.queue == wanted.queue or inside(state, one.queue, wanted.queue))
        and (not wanted.node or any(fnmatchcase(pod.node, wanted.node) for pod in one.pods))
        and (not wanted.labels or any(_labelled(pod, wanted.labels) for pod in one.pods))
        and (not wanted.names or any(_is_named(state, one, name) for name in wanted.names))
    )


def _labelled(pod: Pod, requirements: Iterable[Requirement]) -> bool:
    labels = dict(pod.labels)
    return all(holds(one, labels.get(one.key)) for one in requirements)


def _is_named(state: State, one: KnownJob, name: str) -> bool:
    """Whether this is a name of the job, or a pattern of one: NAME or NAMESPACE/NAME."""
    known = _names(state, one)
    return any(fnmatchcase(one, name) or fnmatchcase(one.partition("/")[2], name) for one in known)


def _names(state: State, one: KnownJob) -> Iterator[str]:
    """The NAMESPACE/NAME by which the job is found."""
    yield one.name
    for pod in one.pods:
        yield from names_of(state, pod)


class _Reasons:
    """Why jobs wait, and when they start, of those that were wanted. `whole`: the look-ahead did not end at its
    bound."""

    def __init__(self, outlook: Outlook, order: Mapping[str, int], *, look_ahead: bool) -> None:
        self.look_ahead = look_ahead
        self.whole = True
        self._outlook = outlook
        self._order = order
        self._found: dict[str, _Wait] = {}
        self._asked: set[str] = set()

    def want(self, jobs: Iterable[KnownJob]) -> None:
        """Find them for these jobs."""
        unplaced = (workload for one in jobs if one.placed < len(one.pods) for workload in one.workloads)
        more = dict.fromkeys(workload for workload in unplaced if workload not in self._asked)
        self._asked.update(more)
        waiting = [view for view in (job_of(self._outlook.state, workload) for workload in more) if view.waiting]
        if waiting:
            self._found |= self._ahead(waiting) if self.look_ahead else self._next(waiting)

    def of(self, one: KnownJob) -> _Wait:
        """Of a job that was wanted."""
        if one.workloads:
            return self._found.get(self.first(one), _WAITS_FOR_NOTHING)
        failed = max((end for end in one.ended if not end.succeeded), key=lambda end: end.ended_ms, default=None)
        if failed is None or one.state != FAILED:
            return _WAITS_FOR_NOTHING
        message = f"pod {failed.pod.name}: {failed.message}" if failed.message else f"pod {failed.pod.name}"
        return _Wait(failed.code, message, "")

    def first(self, one: KnownJob) -> str:
        """Its workload that is first in queue order."""
        if len(one.workloads) == 1:
            return one.workloads[0]
        return min(one.workloads, key=lambda workload: self._order.get(workload, len(self._order)))

    def _ahead(self, jobs: Sequence[JobView]) -> dict[str, _Wait]:
        ahead, found = self._outlook.starts({job.workload for job in jobs}), {}
        self.whole &= ahead.whole
        for job in jobs:
            if (start := ahead.starts.get(job.workload)) is not None:
                refusal = start.refusal
                code = PLACED if start.at_once else refusal.reason.code if refusal is not None else ""
                at = _expected(Expected(Sure.UNKNOWN) if start.state == When.NEVER else start.expected)
                message = str(refusal) if refusal is not None else ""
                found[job.workload] = _Wait(code, message, start.state, at)
        return found

    def _next(self, jobs: Sequence[JobView]) -> dict[str, _Wait]:
        """By the next step alone."""
        after, found = self._outlook.next, {}
        for job in jobs:
            if any(pod.uid in after.binds for pod in job.waiting):
                found[job.workload] = _Wait(PLACED, "", PLACED)
            else:
                refusal = refusal_of(after.state, job.workload)
                found[job.workload] = _Wait(refusal.reason.code, str(refusal), refusal.when)
        return found


def _with_name_words(jobs: Sequence[KnownJob], words: Sequence[str]) -> Sequence[KnownJob]:
    """The jobs whose names have these words."""
    lower = [word.lower() for word in words]
    return [one for one in jobs if all(word in one.name.lower() for word in lower)] if lower else jobs


def _with_words(jobs: Sequence[KnownJob], words: Sequence[str], reasons: _Reasons) -> Sequence[KnownJob]:
    """The jobs whose rows show these words."""
    lower = list(dict.fromkeys(word.lower() for word in words))
    if not lower:
        return jobs
    in_codes = {word for word in lower if any(word in code for code in _CODES)}
    missing = [(one, [word for word in lower if word not in one.shown]) for one in jobs]
    # Why a job waits is costly to find, and has no other words.
    reasons.want(one for one, lacking in missing if lacking and in_codes.issuperset(lacking))
    found = []
    for one, lacking in missing:
        reason = reasons.of(one).reason.lower() if lacking else ""
        if all(word in reason for word in lacking):
            found.append(one)
    return found


def _sorted(jobs: Sequence[KnownJob], wanted: JobFilter, state: State, reasons: _Reasons) -> Sequence[KnownJob]:
    if not wanted.sort:
        return jobs
    if wanted.sort in ("start", "reason"):
        reasons.want(jobs)
    keys: dict[str, Callable[[KnownJob], object]] = {
        "job": lambda one: by_amounts(one.name),
        "state": lambda one: one.state,
        "queue": lambda one: by_amounts(one.queue),
        "user": lambda one: by_amounts(one.user),
        "gpus": lambda one: _gpus_milli(state, one),
        "pods": lambda one: one.placed,
        "nodes": lambda one: by_amounts(" ".join(one.nodes)),
        "submitted": lambda one: one.submitted_ms // 1000,
        "start": lambda one: _seconds(_start(one, reasons.of(one))),
        "end": lambda one: _seconds(_end(state, one)),
        "reason": lambda one: by_amounts(reasons.of(one).reason),
    }
    return sorted(jobs, key=keys[wanted.sort], reverse=wanted.descending)  # type: ignore[arg-type]


def by_amounts(text: str) -> list[str | tuple[int, str]]:
    """A sort key without regard to case, for which numbers count by their amount: `node-9` comes before `node-10`."""
    parts: list[str | tuple[int, str]] = list(_DIGITS.split(text.lower()))
    for at in range(1, len(parts), 2):
        digits = str(parts[at]).lstrip("0")
        parts[at] = len(digits), digits
    return parts


def _row(state: State, now_ms: int, one: KnownJob, reasons: _Reasons) -> JobRow:
    pods, wait, lost = one.pods, reasons.of(one), 0
    priority = pods[0].priority
    if one.workloads:
        priority = state.precedence(reasons.first(one))[0]
        lost = sum(lost_milli_ms(state.shares, pod, now_ms) for pod in pods if pod.node)
    leases = {pod.lease for pod in pods}
    return JobRow(
        one.name, one.user, one.queue, one.state, requested(state, pods), _gpus_milli(state, one), len(pods),
        one.placed, one.nodes, wait.reason, wait.message, wait.when, priority, leases.pop() if len(leases) == 1 else "",
        _moment(one.submitted_ms), _start(one, wait), _end(state, one),
        dict(set.intersection(*(set(pod.labels) for pod in pods))), one.kind, -(-lost // _MINUTE),
    )  # fmt: skip


def _gpus_milli(state: State, one: KnownJob) -> int:
    if not one.workloads:
        return requested_milli(one.pods)
    held = sum(dict(state.shares.amounts(pod.uid)).get(GPU, 0) for pod in one.pods)
    return held + sum(job_of(state, workload).gpus_milli for workload in one.workloads)


def _start(one: KnownJob, wait: _Wait) -> JobTime | None:
    return wait.start if one.state == WAITING else JobTime(_moment(one.begun_ms))


def _end(state: State, one: KnownJob) -> JobTime | None:
    """When it ended, or the last of its pods that have a node is expected to end."""
    if one.state == WAITING:
        return None
    if one.ended:
        return JobTime(_moment(one.ended_ms))
    placed = (state.cluster.placements.get(pod.uid) for pod in one.pods if pod.node)
    ends = [state.expected_ends.expected(placement) for placement in placed if placement is not None]
    return _expected(max(ends, key=lambda end: (_SURE.index(end.sure), end.start_ms), default=Expected(Sure.UNKNOWN)))


def _seconds(time: JobTime | None) -> float:
    return time.at.timestamp() if time is not None and time.at is not None else 0


def _expected(expected: Expected) -> JobTime:
    at = None if expected.sure is Sure.UNKNOWN else _moment(expected.start_ms)
    return JobTime(at, expected.sure, expected.basis)


def _moment(at_ms: int) -> datetime | None:
    """The second of this time; None for 0, not known."""
    return datetime.fromtimestamp(at_ms // 1000, UTC) if at_ms else None
