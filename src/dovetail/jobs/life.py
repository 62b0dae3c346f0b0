# SPDX-License-Identifier: Apache-2.0
"""The life of a job: what happened to it and when, from the times in its objects and from Events.

Rules
- Times are those of the components that wrote them: the API server (created, deleted), the scheduler (refused, bound,
  evicted) and the kubelet (started, ended). They have clocks of their own, most of them in whole seconds.
- A step that several pods took has the time of the first and of the last of them.
- Reasons come from Events, which a cluster keeps for an hour: what is older is not known, and only the last reason is,
  from the condition of a pod that still waits. Pods that are gone are known by their names, as controllers make them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from dovetail.core.reasons import Reason, When
from dovetail.jobs.finding import NamedJob
from dovetail.jobs.holds import is_held
from dovetail.jobs.kinds import at, text_at
from dovetail.jobs.pods import UNTRIED, JobPod
from dovetail.jobs.waiting import failure, why_waiting
from dovetail.kube.api.client import Client
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import EVENTS
from dovetail.kube.objects.base import ObjectMeta, Wire, epoch_ms

REFUSED = "refused"
"""The step of a job that the scheduler could not place."""
_REFUSAL, _BOUND = "FailedScheduling", "Scheduled"
_EVENTS_OF_SCHEDULER = {
    "WaitingForEvictions": "makes room",
    "PreemptionGivenUp": "gave up the room",
    "Preempted": "preempted",
    "Moved": "moved",
    "Drained": "drained",
    "GangReleased": "gang released",
    "GangBroken": "gang broken",
}  # fmt: skip
"""Reasons of the scheduler's Events, and what they are called here."""
_OF_OTHERS = {"Suspended": "suspended", "Resumed": "resumed", "Killing": "stopped", "OOMKilling": "out of memory"}
_OF_AGENT = {
    "NetworkEnvironmentSet": "network set",
    "NetworkEnvironmentWrong": "network variables",
    "NetworkEnvironmentLacking": "network lacks",
}
_SCHEDULED = "PodScheduled"
_NAMES = {"job": r"{}(-\d+)?-[a-z0-9]{{5}}", "jobset": r"{}-.+-\d+-\d+-[a-z0-9]{{5}}"}
"""By kind what its pods are called, whose names differ from run to run; {} is the name of the object."""
_ORDER = ("created", "pods created", "refused", "bound", "started", "ended")


class LifeStep(Struct, frozen=True):
    """A step that `pods` pods (0: the job itself) took from `at_ms` to `last_ms`, in epoch ms. `after_ms` is the time
    since the step before, 0 for the first."""

    step: str
    at_ms: int
    last_ms: int
    pods: int
    detail: str
    after_ms: int = 0


class JobLife(Struct, frozen=True):
    """The steps in the order of their times. `pods` is how many pods there are. `unknown` states what is not known."""

    job: str
    pods: int
    state: str
    steps: tuple[LifeStep, ...]
    unknown: tuple[str, ...] = ()


class JobEventSeries(Wire, frozen=True):
    count: int = 0
    last_observed_time: datetime | None = None


class Regarding(Wire, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class JobEvent(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    event_time: datetime | None = None
    deprecated_first_timestamp: datetime | None = None
    deprecated_last_timestamp: datetime | None = None
    series: JobEventSeries | None = None
    reason: str = ""
    note: str = ""
    regarding: Regarding = Regarding()

    @property
    def name(self) -> str:
        """Of the object that it is about."""
        return self.regarding.name

    @property
    def first_ms(self) -> int:
        return epoch_ms(self.event_time or self.deprecated_first_timestamp or self.metadata.creation_timestamp)

    @property
    def last_ms(self) -> int:
        series = self.series.last_observed_time if self.series is not None else None
        return max(self.first_ms, epoch_ms(series or self.deprecated_last_timestamp))


async def read_events(client: Client, job: NamedJob) -> tuple[JobEvent, ...]:
    """The Events about the job, about its pods, and about pods of it that are gone, in the order of their times. Raises
    ApiError."""
    found = (await list_all(client, EVENTS.inside(job.namespace), JobEvent)).objects.values()
    uid = text_at(job.document, "metadata.uid") if job.document is not None else ""
    uids = {uid, *(pod.metadata.uid for pod in job.pods)} - {""}
    names = {pod.name for pod in job.pods}
    made = _NAMES.get(job.kind.name, "") if job.kind is not None else ""
    pattern = re.compile(made.format(re.escape(job.name))) if made else None

    def is_own(one: JobEvent) -> bool:
        if one.regarding.uid in uids:
            return True
        gone = one.name in names or (pattern is not None and bool(pattern.fullmatch(one.name)))
        return one.regarding.kind == "Pod" and gone

    return tuple(sorted(filter(is_own, found), key=lambda one: (one.first_ms, one.metadata.name)))


def life(job: NamedJob, events: Sequence[JobEvent]) -> JobLife:
    """The steps of the job."""
    # Most times are whole seconds: within one the steps come in the order in which a job takes them.
    bound = {event.regarding.uid: event.first_ms for event in events if event.reason == _BOUND}
    steps = sorted(
        [*_of_objects(job, bound), *_of_events(job, events)],
        key=lambda one: (one.at_ms // 1000, _place(one.step), one.at_ms),
    )
    found: list[LifeStep] = []
    for step in steps:
        after_ms = max(0, step.at_ms - found[-1].at_ms) if found else 0
        found.append(LifeStep(step.step, step.at_ms, step.last_ms, step.pods, step.detail, after_ms))
    return JobLife(
        f"{job.namespace}/{job.name}", len(job.pods), _state(job), tuple(found), tuple(_unknown(job, events))
    )


def _place(step: str) -> int:
    return _ORDER.index(step) if step in _ORDER else 2


def _state(job: NamedJob) -> str:
    if job.ended:
        return job.ended
    if job.suspended:
        return "suspended"
    states = {pod.state for pod in job.pods}
    if any(pod.state == "waits" and is_held(pod) for pod in job.pods):
        return "held"
    return next((state for state in ("waits", "starts", "runs", "ends") if state in states), "has no pods")


def _of_objects(job: NamedJob, bound_ms: Mapping[str, int]) -> Iterator[LifeStep]:
    """`bound_ms` are the times of binds by uid, for pods that do not show them themselves."""
    if job.document is not None:
        created_ms = _text_ms(at(job.document, "metadata.creationTimestamp"))
        if created_ms:
            yield LifeStep("created", created_ms, created_ms, 0, job.title)
    created = [epoch_ms(pod.metadata.creation_timestamp) for pod in job.pods]
    yield from _step("pods created" if job.document is not None else "created", created, "")
    bound = [
        _condition_ms(pod, _SCHEDULED) or bound_ms.get(pod.metadata.uid, 0) if pod.spec.node_name else 0
        for pod in job.pods
    ]  # fmt: skip
    nodes = dict.fromkeys(pod.spec.node_name for pod in job.pods if pod.spec.node_name)
    yield from _step("bound", bound, f"to {_some(list(nodes))}" if nodes else "")
    yield from _step("started", [_started_ms(pod) for pod in job.pods], "")
    over = [pod for pod in job.pods if pod.state in ("succeeded", "failed")]
    failed = [pod for pod in over if pod.state == "failed"]
    detail = failure(job).partition(": ")[2] if failed else "succeeded"
    yield from _step("ended", [_ended_ms(pod) for pod in over], detail)


def _of_events(job: NamedJob, events: Iterable[JobEvent]) -> Iterator[LifeStep]:
    refusals: dict[str, list[JobEvent]] = {}
    by_note: dict[tuple[str, str], list[JobEvent]] = {}
    for event in events:
        if event.reason == _REFUSAL:
            refusals.setdefault(event.note.partition(": ")[0], []).append(event)
        elif event.reason in _OF_AGENT:
            by_note.setdefault((event.reason, event.note), []).append(event)
        elif what := _EVENTS_OF_SCHEDULER.get(event.reason) or _OF_OTHERS.get(event.reason):
            about = f"{event.name}: " if event.regarding.kind == "Pod" and len(job.pods) != 1 else ""
            yield LifeStep(what, event.first_ms, event.last_ms, 1, f"{about}{event.note}")
    for (reason, note), some in by_note.items():
        pods = len({one.regarding.uid for one in some})
        first_ms, last_ms = min(one.first_ms for one in some), max(one.last_ms for one in some)
        yield LifeStep(_OF_AGENT[reason], first_ms, last_ms, pods, note)
    if len(refusals) > 1 or any(pod.spec.node_name for pod in job.pods):
        # Its pods appear before the scheduler has read their object.
        refusals.pop(f"{Reason.GANG_MISSING.code} ({When.NOT_YET})", None)
    for some in refusals.values():
        first, last_ms, pods = some[0], max(one.last_ms for one in some), len({one.regarding.uid for one in some})
        yield LifeStep(REFUSED, first.first_ms, last_ms, pods, _refusal(first.note))
    if not refusals:
        for pod in job.pods:
            if pod.state == "waits" and (at_ms := _condition_ms(pod, _SCHEDULED)):
                yield LifeStep(REFUSED, at_ms, at_ms, 1, _refusal(pod.why))
                break


def _refusal(note: str) -> str:
    """The text of a refusal without whether waiting helps: `NoNodeFits: 0/4 nodes are available`."""
    code, _, text = note.partition(": ")
    return f"{code.partition(' ')[0]}: {text}" if text else note


def _step(name: str, times_ms: Sequence[int], detail: str) -> Iterator[LifeStep]:
    known = [at_ms for at_ms in times_ms if at_ms]
    if known:
        yield LifeStep(name, min(known), max(known), len(known), detail)


def _condition_ms(pod: JobPod, kind: str) -> int:
    return next((epoch_ms(one.last_transition_time) for one in pod.status.conditions if one.type == kind), 0)


def _started_ms(pod: JobPod) -> int:
    """When its first container started."""
    times = []
    for one in pod.status.container_statuses:
        state = one.state.running or one.state.terminated
        times += [epoch_ms(state.started_at)] if state is not None else []
    return min([at_ms for at_ms in times if at_ms], default=0)


def _ended_ms(pod: JobPod) -> int:
    """When its last container ended; that it is not ready any more where no container has that time."""
    times = [
        epoch_ms(one.state.terminated.finished_at)
        for one in pod.status.container_statuses if one.state.terminated is not None
    ]  # fmt: skip
    return max(times, default=0) or _condition_ms(pod, "Ready")


def _unknown(job: NamedJob, events: Sequence[JobEvent]) -> Iterator[str]:
    if not events and why_waiting(job) == UNTRIED:
        yield f"why it waits, as {UNTRIED}"
    elif not events:
        yield "no Event is left: a cluster keeps them for an hour, and with them why the job waited"
    if job.suspended:
        yield "it is suspended: it has no pods"


def _some(names: Sequence[str], shown: int = 4) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def _text_ms(text: object) -> int:
    try:
        return epoch_ms(datetime.fromisoformat(text)) if isinstance(text, str) else 0
    except ValueError:
        return 0
