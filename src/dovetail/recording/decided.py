# SPDX-License-Identifier: Apache-2.0
"""One recorded step, replayed and inspected: its events, the waiting jobs, the shares of the queues and its decisions.

The id of a decision is `RUN-STEP`; the bind writes it to the pod (annotation dovetail.dev/decision). The run is
replayed from the last checkpoint before the step. The waiting jobs and the status of the queues are those after the
events of the step and before its first attempt. Reservations are those after the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import msgspec
from msgspec import Struct, field
from msgspec.structs import fields, replace

from dovetail.core.bargaining.types import GpuLease, LeaseAction, LeaseRequest, Plane
from dovetail.core.cycle import apply_events
from dovetail.core.decisions import (
    Bind,
    Decision,
    EndLease,
    Evict,
    GrantLease,
    LeaseStatus,
    MakeOffers,
    RequestStatus,
    RevokeLease,
)
from dovetail.core.events import Event
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.reasons import Sure
from dovetail.core.reservations.reservation import Reservation
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE
from dovetail.recording.format import LINE, RecordedLine
from dovetail.recording.reader import RecordedRun, Segment
from dovetail.recording.replay import Player, Replay, described, pod_names, refused

_ID = re.compile(r"(.+)-([0-9]{1,18})")


class NotRecorded(Exception):
    """The recordings do not contain the decision. The message names the nearest one."""


class RecordedWaiting(Struct, frozen=True):
    """A waiting gang or lone pod. `pods` is the number of its waiting pods, `before` its last refusal before the step
    ("" if there was none), `decided` the decisions of the step about it."""

    job: str
    queue: str
    pods: int
    before: str
    decided: tuple[str, ...] = ()


class RecordedRoom(Struct, frozen=True):
    """A reservation after the step. `start_ms` is the expected start of the job (epoch ms, 0 if unknown), `sure` and
    `basis` its certainty and its derivation, `evicting` the victims."""

    job: str
    queue: str
    nodes: tuple[str, ...]
    start_ms: int
    sure: Sure
    basis: str
    evicting: tuple[str, ...]


class DecidedRun(Struct, frozen=True):
    """A step. `file` and `line` locate it and `record` is that line. `events` and `decided` describe its events and
    decisions. `waiting` lists the jobs in the order of the scheduling queue before the step. `raised` is the error that
    ended the step and the process; the step then tried no job."""

    run: str
    step: int
    now_ms: int
    file: str
    line: int
    events: tuple[str, ...] = field(name="told")
    queue_snapshots: tuple[QueueSnapshot, ...] = field(name="standings")
    waiting: tuple[RecordedWaiting, ...]
    decided: tuple[str, ...]
    rooms: tuple[RecordedRoom, ...]
    raised: str
    record: msgspec.Raw


def decided(runs: Sequence[RecordedRun], decision: str, read: Callable[[int], object] = lambda _: None) -> DecidedRun:
    """Replay the step of a decision id. `read` is called with the number of bytes read so far of its segment.

    Raises NotRecorded, or BadRecording and Differs if the segment cannot be replayed up to the step.
    """
    run, step = _found(runs, decision)
    before = [segment for segment in run.segments if segment.brief.first_step <= step]
    if not before:
        first = run.segments[0].brief.first_step
        raise NotRecorded(f"step {step} of run {run.name} is not here: its oldest segment begins with step {first}")
    segment = before[-1]
    player = Player(Replay(run.name, segment.brief.dovetail, segment.brief.started), read)
    header, lines = segment.read(read)
    player.begin(segment, header)
    last = segment.brief.first_step - 1
    for number, line in lines:
        if line.step == step:
            return _look(player, segment, number, line)
        player.call(segment, number, line)
        last = line.step or last
    after = [other.brief.first_step for other in run.segments[len(before) :]]
    nearest = f"the last one before it is {last}" if last else "the process took none"
    nearest += f", the next one here is {after[0]}" if after else ""
    raise NotRecorded(f"step {step} of run {run.name} is not here: {nearest}")


def _found(runs: Sequence[RecordedRun], decision: str) -> tuple[RecordedRun, int]:
    names = [run.name for run in runs]
    match = _ID.fullmatch(decision)
    if match is None:
        like = f"{names[0] if names else '5ba19c0e'}-12"
        raise NotRecorded(f"{decision!r} is no id: it must be RUN-STEP, like {like}, as in dovetail.dev/decision")
    if match[1] in names:
        return runs[names.index(match[1])], int(match[2])
    nearest = get_close_matches(match[1], names, n=1)
    here = f"the nearest is {nearest[0]}" if nearest else f"there are {', '.join(names) or 'none'}"
    raise NotRecorded(f"run {match[1]} is not here: {here}")


def _look(player: Player, segment: Segment, number: int, line: RecordedLine) -> DecidedRun:
    """Apply the events of the step, inspect the state, then run the step without events, which decides the same."""
    state, workloads = player.state, list[str]()
    events = tuple(_event(state, event) for event in line.events)
    call, queue_snapshots = line, tuple[QueueSnapshot, ...]()
    if not line.raised:
        apply_events(state, line.events, line.now_ms)
        call = replace(line, events=())
        workloads, queue_snapshots = state.queue.ordered(), tuple(state.queue_snapshots(state.now_ms))
    waiting = [_waiting(state, workload) for workload in workloads]
    workload_of = {pod.uid: workload for workload in workloads for pod in state.workloads.members(workload)}
    workload_of |= {one.request.id: workload for workload, one in state.requests.by_workload.items()}
    decisions = player.call(segment, number, call)
    about: dict[str, list[str]] = {}
    for decision in decisions:
        about.setdefault(workload_of.get(_concerns(decision), ""), []).append(described(state, decision))
    return DecidedRun(
        run=segment.brief.run,
        step=line.step,
        now_ms=line.now_ms,
        file=str(segment.file),
        line=number,
        events=events,
        queue_snapshots=queue_snapshots,
        waiting=tuple(
            replace(one, decided=tuple(about.get(workload, ())))
            for workload, one in zip(workloads, waiting, strict=True)
        ),
        decided=tuple(described(state, decision) for decision in decisions),
        rooms=tuple(_room(state, reservation) for reservation in state.reservations),
        raised=line.raised,
        record=msgspec.Raw(LINE.encode(line)),
    )


def _concerns(decision: Decision) -> str:
    """The uid of one pod of the gang or lone pod that the decision is about."""
    match decision:
        case Bind():
            return decision.uid
        case Evict():
            return decision.nominations[0][0]
        case MakeOffers() | RequestStatus():
            return decision.request
        case GrantLease() | LeaseStatus():
            return decision.lease.id
        case RevokeLease() | EndLease():
            return decision.lease
    return decision.uids[0]


def _waiting(state: State, workload: str) -> RecordedWaiting:
    members, placements = state.workloads.members(workload), state.cluster.placements
    one = state.requests.by_workload.get(workload)
    refusal = state.queue.refusal(workload) if one is None else one.reported
    return RecordedWaiting(
        job=_job(state, workload),
        queue=state.shares.pod_queues.of(members[0]) if members else "",
        pods=sum(1 for pod in members if not pod.node and pod.uid not in placements),
        before="" if refusal is None else refused(refusal),
    )


def _job(state: State, workload: str) -> str:
    """ "namespace/name" of a gang or of a pod."""
    if workload.startswith(LONE):
        return pod_names(state, (workload.removeprefix(LONE),))
    gang = state.workloads.gangs.get(workload)
    return workload if gang is None else f"{gang.namespace}/{gang.name}"


def _room(state: State, reservation: Reservation) -> RecordedRoom:
    names, expected = state.cluster.nodes.names, reservation.expected
    return RecordedRoom(
        job=_job(state, reservation.workload),
        queue=reservation.queue,
        nodes=tuple(dict.fromkeys(names[slot] for slot in reservation.slots)),
        start_ms=expected.start_ms,
        sure=expected.sure,
        basis=expected.basis,
        evicting=tuple(sorted(pod_names(state, (uid,)) for uid in reservation.evicting)),
    )


def _event(state: State, event: Event) -> str:
    """The class of an event and the name of its object: `PodChanged team-a/train-0`."""
    first = getattr(event, fields(event)[0].name)
    if isinstance(first, str):
        pod = state.workloads.pods.get(first)
        name = first if pod is None else pod.key
    elif isinstance(first, LeaseAction):
        name = first.lease
    elif isinstance(first, Plane | LeaseRequest | GpuLease):
        name = first.id
    else:
        name = getattr(first, "key", "") or getattr(first, "name", "")
        namespace = getattr(first, "namespace", "")
        name = name if not namespace or name.startswith(f"{namespace}/") else f"{namespace}/{name}"
    return f"{type(event).__name__} {name}"
