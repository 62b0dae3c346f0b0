# SPDX-License-Identifier: Apache-2.0
"""The jobs of a cluster as a list: running, waiting, and done.

Rules
- A job is all that a user made as one object: a gang, or one or several pods on their own. A gang or pod without an
  object is a job of its own. Only pods of this scheduler count. The pods inside of leases are jobs; leases and the
  requests for them are not.
- A job is Running as soon as one of its pods has a node, Ending when all its pods are being deleted, else Waiting.
- Why a job waits is what the next step of the scheduler finds for the first of it in queue order. Its start is that
  of `forecast`, if there is a look-ahead. A running job ends when the last of its pods is expected to end.
- A job is done if its pods have finished and no further pod of it exists. It Failed if the pod that ended last failed.
  It is known as long as one of its pods exists.
- Running jobs come first, by their start; then waiting jobs in queue order; then those that are done, by their end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.labels import holds
from dovetail.core.model import Pod, Requirement
from dovetail.core.preemption.victims import lost_milli_ms
from dovetail.core.queues.types import GPU
from dovetail.core.reasons import Expected, Sure, When
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE
from dovetail.kube.translate.ended import EndedPod
from dovetail.views.forecast_types import PLACED, Watch
from dovetail.views.job_states import COMPLETED, ENDING, FAILED, RUNNING, WAITING
from dovetail.views.job_types import JobFilter, JobList, JobRow, JobTime, JobView
from dovetail.views.jobs import job_id, job_of, names_of
from dovetail.views.leased import is_placeholder
from dovetail.views.names import JobNotFound, nearest
from dovetail.views.outlook import Outlook
from dovetail.views.queues import inside, queue_named
from dovetail.views.requested import requested, requested_milli
from dovetail.views.why import refusal_of

_MINUTE = 60_000_000
"""In milli-GPU times ms."""
_SURE = (Sure.KNOWN, Sure.LEARNED, Sure.UNKNOWN)
_GROUPS = {RUNNING: 0, ENDING: 0, WAITING: 1, COMPLETED: 2, FAILED: 2}


class _Listed(Struct, frozen=True):
    """A job before its reason and its times are known. `views` are its workloads that have pods that have not finished;
    of a job that is done, `ended` are all its pods."""

    name: str
    kind: str
    state: str
    queue: str
    pods: Sequence[Pod]
    views: Sequence[JobView] = ()
    ended: Sequence[EndedPod] = ()


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
    outlook: Outlook, wanted: JobFilter, ended: Iterable[EndedPod] = (), *, most_ahead: int, alone: bool = False
) -> JobList:
    """The same, for the state of an outlook. `alone`: the asker may see the namespace of the filter alone."""
    state = outlook.state
    every = [*_unfinished(state), *_done(state, ended)]
    jobs = [one for one in every if not wanted.namespace or one.pods[0].namespace == wanted.namespace]
    _check(state, jobs, wanted)
    listed = [one for one in jobs if _admitted(state, one, wanted)]
    waiting = [view for one in listed for view in one.views if view.waiting]
    order = {workload: number for number, workload in enumerate(state.queue.ordered())}
    look_ahead = len(order) <= most_ahead
    waits, whole = (_looked_ahead if look_ahead else _of_next_step)(outlook, waiting)
    rows = [_row(state, outlook.now_ms, one, waits, order) for one in listed]
    places = [min((order.get(view.workload, len(order)) for view in one.views), default=0) for one in listed]
    rows = [row for row, _ in sorted(zip(rows, places, strict=True), key=lambda pair: _rank(*pair))]
    now = datetime.fromtimestamp(outlook.now_ms // 1000, UTC)
    return JobList(now, look_ahead, whole, tuple(rows), _elsewhere(state, every, wanted) if alone else 0)


def _elsewhere(state: State, every: Iterable[_Listed], wanted: JobFilter) -> int:
    """How many jobs of other namespaces the states and the queue of the filter admit; 0 if it is about more."""
    admits = JobFilter(states=wanted.states, queue=wanted.queue)
    if replace(wanted, namespace="") != admits:
        return 0
    return sum(one.pods[0].namespace != wanted.namespace and _admitted(state, one, admits) for one in every)


def _unfinished(state: State) -> Iterator[_Listed]:
    """The jobs with pods that have not finished."""
    workloads = dict.fromkeys(
        state.workloads.workload_of(pod)
        for pod in state.workloads.pods.values()
        if pod.managed and not is_placeholder(pod)
    )
    jobs: dict[str, list[JobView]] = {}
    for workload in workloads:
        jobs.setdefault(job_id(state, workload), []).append(job_of(state, workload))
    for views in jobs.values():
        pods = [pod for view in views for pod in view.pods]
        now = WAITING
        if all(pod.deleting for pod in pods):
            now = ENDING
        elif any(pod.node for pod in pods):
            now = RUNNING
        first = views[0]
        yield _Listed(
            first.name, _kind(state.workloads.made_for(first.workload), first.workload), now, first.queue, pods, views
        )


def _done(state: State, ended: Iterable[EndedPod]) -> Iterator[_Listed]:
    """The jobs of which all pods have finished."""
    gangs = {pod.gang for pod in state.workloads.pods.values() if pod.gang}
    # Parts that start one after another are jobs of their own, and have the id of the whole in front of their names.
    unfinished = gangs | {state.workloads.top(gang) for gang in gangs} | {gang.rpartition("/")[0] for gang in gangs}
    objects = {f"{pod.namespace}/{pod.made_for}" for pod in state.workloads.pods.values() if pod.made_for}
    jobs: dict[str, list[EndedPod]] = {}
    for one in ended:
        made_for = f"{one.pod.namespace}/{one.pod.made_for}" if one.pod.made_for else ""
        if one.workload not in unfinished and made_for not in objects:
            jobs.setdefault(made_for or one.workload or LONE + one.pod.uid, []).append(one)
    for pods in jobs.values():
        last = max(pods, key=lambda one: (one.ended_ms, not one.succeeded))
        queue = state.shares.pod_queues.of(last.pod)
        now = COMPLETED if last.succeeded else FAILED
        kind = _kind(last.pod.made_for, last.workload or LONE)
        yield _Listed(last.job, kind, now, queue, [one.pod for one in pods], (), pods)


def _kind(made_for: str, workload: str) -> str:
    return made_for.partition("/")[0] or ("Pod" if workload.startswith(LONE) else "Gang")


def _check(state: State, jobs: Sequence[_Listed], wanted: JobFilter) -> None:
    """Raise JobNotFound for what the filter names and does not exist."""
    for name in wanted.names:
        if not any(_is_named(state, one, name) for one in jobs):
            known = (known for one in jobs for known in _names(state, one))
            near = nearest(name, known if "/" in name else (one.partition("/")[2] for one in known))
            raise JobNotFound(f"there is no job {name}{near}")
    if wanted.queue and all(one.queue != wanted.queue for one in jobs):
        queue_named(state, wanted.queue)
    nodes = sorted(state.cluster.nodes.slots)
    if wanted.node and not any(fnmatchcase(node, wanted.node) for node in nodes):
        raise JobNotFound(f"node {wanted.node} does not exist{nearest(wanted.node, nodes)}")


def _admitted(state: State, one: _Listed, wanted: JobFilter) -> bool:
    return (
        (not wanted.states or one.state in wanted.states)
        and (not wanted.namespace or one.pods[0].namespace == wanted.namespace)
        and (not wanted.users or one.pods[0].user in wanted.users)
        and (not wanted.queue or one.queue == wanted.queue or inside(state, one.queue, wanted.queue))
        and (not wanted.node or any(fnmatchcase(pod.node, wanted.node) for pod in one.pods))
        and (not wanted.labels or any(_labelled(pod, wanted.labels) for pod in one.pods))
        and (not wanted.names or any(_is_named(state, one, name) for name in wanted.names))
    )


def _labelled(pod: Pod, requirements: Iterable[Requirement]) -> bool:
    labels = dict(pod.labels)
    return all(holds(one, labels.get(one.key)) for one in requirements)


def _is_named(state: State, one: _Listed, name: str) -> bool:
    """Whether this is a name of the job, or a pattern of one: NAME or NAMESPACE/NAME."""
    known = _names(state, one)
    return any(fnmatchcase(one, name) or fnmatchcase(one.partition("/")[2], name) for one in known)


def _names(state: State, one: _Listed) -> Iterator[str]:
    """The NAMESPACE/NAME by which the job is found."""
    yield one.name
    for pod in one.pods:
        yield from names_of(state, pod)


def _looked_ahead(outlook: Outlook, jobs: Sequence[JobView]) -> tuple[dict[str, _Wait], bool]:
    """Why jobs wait, and when they start; whether the look-ahead did not end at its bound."""
    if not jobs:
        return {}, True
    ahead, found = outlook.starts({job.workload for job in jobs}), {}
    for job in jobs:
        if (start := ahead.starts.get(job.workload)) is not None:
            refusal = start.refusal
            code = PLACED if start.at_once else refusal.reason.code if refusal is not None else ""
            at = _expected(Expected(Sure.UNKNOWN) if start.state == When.NEVER else start.expected)
            message = str(refusal) if refusal is not None else ""
            found[job.workload] = _Wait(code, message, start.state, at)
    return found, ahead.whole


def _of_next_step(outlook: Outlook, jobs: Sequence[JobView]) -> tuple[dict[str, _Wait], bool]:
    """Why jobs wait, by the next step alone."""
    if not jobs:
        return {}, True
    after, found = outlook.next, {}
    for job in jobs:
        if any(pod.uid in after.binds for pod in job.waiting):
            found[job.workload] = _Wait(PLACED, "", PLACED)
        else:
            refusal = refusal_of(after.state, job.workload)
            found[job.workload] = _Wait(refusal.reason.code, str(refusal), refusal.when)
    return found, True


def _row(
    state: State, now_ms: int, one: _Listed, waits: Mapping[str, _Wait], order: Mapping[str, int]
) -> JobRow:  # fmt: skip
    """The row of a job; `order` are the places of waiting workloads."""
    pods = one.pods
    wait, priority = _WAITS_FOR_NOTHING, pods[0].priority
    if one.views:
        first = min(one.views, key=lambda view: order.get(view.workload, len(order)))
        wait, priority = waits.get(first.workload, wait), state.precedence(first.workload)[0]
        start, end = (_begun(pods), _end(state, pods)) if one.state != WAITING else (wait.start, None)
        held = [dict(state.shares.amounts(pod.uid)).get(GPU, 0) for pod in pods]
        milli = sum(view.gpus_milli for view in one.views) + sum(held)
    else:
        start, end, milli = _ran(one.ended, first=True), _ran(one.ended, first=False), requested_milli(pods)
        failed = max((end for end in one.ended if not end.succeeded), key=lambda end: end.ended_ms, default=None)
        if failed is not None and one.state == FAILED:
            message = f"pod {failed.pod.name}: {failed.message}" if failed.message else f"pod {failed.pod.name}"
            wait = _Wait(failed.code, message, "")
    leases = {pod.lease for pod in pods}
    lost = sum(lost_milli_ms(state.shares, pod, now_ms) for pod in pods if pod.node) if one.views else 0
    return JobRow(
        one.name, pods[0].user, one.queue, one.state, requested(state, pods), milli, len(pods),
        sum(bool(pod.node) for pod in pods), tuple(dict.fromkeys(pod.node for pod in pods if pod.node)),
        wait.reason, wait.message, wait.when, priority, leases.pop() if len(leases) == 1 else "",
        _moment(min((pod.created_ms for pod in pods if pod.created_ms), default=0)), start, end,
        dict(set.intersection(*(set(pod.labels) for pod in pods))), one.kind, -(-lost // _MINUTE),
    )  # fmt: skip


def _rank(row: JobRow, place: int) -> tuple[int, float, int, str]:
    """The sort key of a row; `place` is that in queue order."""
    time = row.start if row.state in (RUNNING, ENDING) else row.end
    at_s = time.at.timestamp() if time is not None and time.at is not None else 0
    return _GROUPS[row.state], 0 if row.state == WAITING else at_s, place, row.job


def _begun(pods: Iterable[Pod]) -> JobTime:
    return JobTime(_moment(min((pod.bound_ms for pod in pods if pod.bound_ms), default=0)))


def _end(state: State, pods: Iterable[Pod]) -> JobTime:
    """When the last of the pods that have a node is expected to end."""
    placed = (state.cluster.placements.get(pod.uid) for pod in pods if pod.node)
    ends = [state.expected_ends.expected(placement) for placement in placed if placement is not None]
    return _expected(max(ends, key=lambda end: (_SURE.index(end.sure), end.start_ms), default=Expected(Sure.UNKNOWN)))


def _ran(ended: Iterable[EndedPod], *, first: bool) -> JobTime:
    """When the first of these pods started, or the last one ended."""
    if first:
        return JobTime(_moment(min((one.started_ms for one in ended if one.started_ms), default=0)))
    return JobTime(_moment(max(one.ended_ms for one in ended)))


def _expected(expected: Expected) -> JobTime:
    at = None if expected.sure is Sure.UNKNOWN else _moment(expected.start_ms)
    return JobTime(at, expected.sure, expected.basis)


def _moment(at_ms: int) -> datetime | None:
    """The second of this time; None for 0, not known."""
    return datetime.fromtimestamp(at_ms // 1000, UTC) if at_ms else None
