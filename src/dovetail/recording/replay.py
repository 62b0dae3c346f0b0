# SPDX-License-Identifier: Apache-2.0
"""Replay of a recorded run.

The replay repeats every call of the core in order with the recorded arguments. The decisions must have the same bytes.
Each segment starts from its checkpoint, as the recording process did, and the checkpoint must equal that of the
replayed state. The replay stops at the first difference, because later decisions depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events, step
from dovetail.core.decisions import (
    Bind,
    Decision,
    Drain,
    EndLease,
    Evict,
    GrantLease,
    Hold,
    LeaseStatus,
    MakeOffers,
    Release,
    RequestStatus,
    RevokeLease,
    Unnominate,
)
from dovetail.core.json_text import JsonError
from dovetail.core.reasons import Refusal
from dovetail.core.state import State
from dovetail.recording.format import CHECKPOINT, DECISIONS, NOTHING, Header, RecordedLine, raised_as
from dovetail.recording.reader import BadRecording, RecordedRun, Segment

Verdict = Literal["equal", "differs", "unusable"]
Seen = Callable[[Segment, int, RecordedLine | None, list[Decision]], object]
"""Called with a line of a segment, its number and what it decided; None where the segment begins."""


class Difference(Struct, frozen=True):
    """The first call with a different result. `step` is 0 if the call was not a step. `recorded` and `replayed`
    describe the decisions that only that side has."""

    file: str
    line: int
    step: int
    now_ms: int
    recorded: tuple[str, ...]
    replayed: tuple[str, ...]


class Replay(Struct):
    """The result of a replay. `recorded_by` is the version that wrote the run, `digest` the digest of the last replayed
    step. `notes` qualify the verdict. `problem` is the reason why the run is unusable."""

    run: str
    recorded_by: str
    started: str
    segments: int = 0
    steps: int = 0
    events: int = 0
    decisions: int = 0
    seconds: float = 0.0
    digest: str = ""
    verdict: Verdict = "equal"
    difference: Difference | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()


class Differs(Exception):
    """The result of a call differs from the recorded one. Another version may have written the recording."""

    def __init__(self, difference: Difference, recorded_by: str) -> None:
        self.difference = difference
        self.recorded_by = recorded_by


def replay(run: RecordedRun, read: Callable[[int], object] = lambda _: None) -> Replay:
    """Replay a run. `read` is called with the number of bytes read so far, summed over all segments."""
    first = run.segments[0].brief
    result = Replay(run.name, first.dovetail, first.started)
    began_s = time.perf_counter()
    try:
        Player(result, read).play(run)
    except BadRecording as error:
        result.verdict, result.problem = "unusable", str(error)
    except Differs as error:
        result.verdict, result.difference = "differs", error.difference
    result.seconds = time.perf_counter() - began_s
    return result


class Player:
    """Repeats the calls of consecutive segments. `begin` and `call` raise BadRecording and Differs."""

    def __init__(self, result: Replay, read: Callable[[int], object]) -> None:
        self.state = State()
        self._result = result
        self._read = read
        self._before: Segment | None = None
        self._done_bytes = 0

    def play(self, run: RecordedRun, seen: Seen = lambda segment, number, line, decisions: None) -> None:
        """Repeat a run. `seen` is called where a segment begins, and after each call."""
        for segment in run.segments:
            header, lines = segment.read(lambda at: self._read(self._done_bytes + at))
            self.begin(segment, header)
            seen(segment, 1, None, [])
            for number, line in lines:
                seen(segment, number, line, self.call(segment, number, line))
            self._result.segments += 1
            self._done_bytes += segment.size_bytes
            self._before = segment
            if segment.cut:
                self._note(f"{segment.file} ends in the middle of a line, which was left out")

    def begin(self, segment: Segment, header: Header) -> None:
        before, result = self._before, self._result
        if before is None:
            if header.checkpoint is None and header.segment != 1:
                raise BadRecording(segment.file, 1, f"is segment {header.segment} of a run and has no checkpoint")
            if header.segment != 1:
                self._note(f"begins with segment {header.segment}: older ones are not there")
        elif header.segment == before.brief.segment:
            raise BadRecording(segment.file, 1, f"is segment {header.segment} of run {header.run}, as {before.file} is")
        elif header.segment != before.brief.segment + 1:
            missing = f"{before.brief.segment + 1}" + (
                "" if header.segment == before.brief.segment + 2 else " and more"
            )
            why = f"segment {missing} of run {header.run} is missing before it: replay the parts on their own"
            raise BadRecording(segment.file, 1, why)
        elif header.digest != result.digest or header.checkpoint is None:
            raise BadRecording(segment.file, 1, f"does not follow {before.file}, whose end is missing or was changed")
        # What is remembered may also be of a query, which is not recorded.
        elif CHECKPOINT.encode(take(self.state)) != CHECKPOINT.encode(replace(header.checkpoint, marks=None)):
            words = ("the state in the checkpoint",), ("another state, after equal decisions",)
            raise Differs(Difference(str(segment.file), 1, 0, header.checkpoint.now_ms, *words), result.recorded_by)
        result.digest = header.digest
        self.state = State(header.policy)
        if header.checkpoint is not None:
            try:
                self.state = restore(header.policy, header.checkpoint)
            except Exception as error:
                why = f"no state can be made from its checkpoint, which is damaged or was changed: {raised_as(error)}"
                raise BadRecording(segment.file, 1, why) from error

    def call(self, segment: Segment, number: int, line: RecordedLine) -> list[Decision]:
        """Repeat one call and return its decisions. Raises Differs if they are not the recorded ones."""
        result, state = self._result, self.state
        decisions: list[Decision] = []
        raised = ""
        try:
            if line.step:
                decisions = step(state, line.events, line.now_ms)
            else:
                apply_events(state, line.applied, line.now_ms)
        except Exception as error:
            # Any error of the core is part of the comparison.
            raised = raised_as(error)
        result.events += len(line.events) + len(line.applied)
        encoded = msgspec.Raw(DECISIONS.encode(tuple(decisions))) if decisions else NOTHING
        if (raised, bytes(encoded)) != (line.raised, bytes(line.decisions)):
            recorded, replayed = self._only(segment, number, line, decisions)
            recorded += (f"error: {line.raised}",) if line.raised else ()
            replayed += (f"error: {raised}",) if raised else ()
            difference = Difference(str(segment.file), number, line.step, line.now_ms, recorded, replayed)
            raise Differs(difference, result.recorded_by)
        if raised:
            self._note(f"the core ended with an error, as recorded: {raised}")
        if line.step:
            result.steps += 1
            result.decisions += len(decisions)
            result.digest = line.digest
        return decisions

    def _only(
        self, segment: Segment, number: int, line: RecordedLine, replayed: list[Decision]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The decisions that only one side has, described. If only the order differs: all decisions of both sides."""
        try:
            recorded = list(DECISIONS.decode(line.decisions))
        except JsonError as error:
            raise BadRecording(segment.file, number, f"in the decisions: {error}") from error
        only_recorded = [decision for decision in recorded if decision not in replayed]
        only_replayed = [decision for decision in replayed if decision not in recorded]
        if not only_recorded and not only_replayed:
            only_recorded, only_replayed = recorded, replayed
        return (
            tuple(described(self.state, decision) for decision in only_recorded),
            tuple(described(self.state, decision) for decision in only_replayed),
        )

    def _note(self, note: str) -> None:
        self._result.notes += (note,)


def described(state: State, decision: Decision) -> str:
    """A decision as text, with the names of its pods where they are known."""
    match decision:
        case Bind():
            gpus = f", GPU {', '.join(map(str, decision.devices))}" if decision.devices else ""
            volumes = ", ".join(f"{pick.claim} on {pick.volume or 'a new volume'}" for pick in decision.volumes)
            return f"bind {pod_names(state, (decision.uid,))} to {decision.node}{gpus}" + (
                f", {volumes}" if volumes else ""
            )
        case Hold() | Release():
            pods = pod_names(state, decision.uids)
            return f"{'hold' if isinstance(decision, Hold) else 'release'} {pods}: {refused(decision.refusal)}"
        case Evict():
            nodes = ", ".join(f"{pod_names(state, (uid,))} on {node}" for uid, node in decision.nominations)
            lost_gpu_s = decision.lost_milli_ms // 1_000_000
            words = (
                f"evict ({decision.cause}) {pod_names(state, decision.uids)} for {nodes}, {lost_gpu_s} GPU seconds lost"
            )
            return f"{words}: {decision.message}"
        case Drain():
            to = f" to {', '.join(decision.targets)}" if decision.targets else ""
            lost_gpu_s = decision.lost_milli_ms // 1_000_000
            source = decision.node or f"queue {decision.queue}"
            words = f"drain {pod_names(state, decision.uids)} from {source}{to}, {lost_gpu_s} GPU seconds lost"
            return f"{words}: {decision.message}"
        case Unnominate():
            return f"unnominate {pod_names(state, decision.uids)}: {decision.message}"
        case MakeOffers():
            offers = ", ".join(
                f"{one.alternative.count} devices for {one.alternative.duration_ms} ms from {_moment(one.start_ms)}"
                for one in decision.offers
            )
            return f"offer {decision.request}: {offers}"
        case RequestStatus():
            why = f": {refused(decision.refusal)}" if decision.refusal is not None else ""
            return f"request {decision.request} is {decision.state}{why}"
        case GrantLease():
            on = ", ".join(f"{one.node} {one.devices or one.instances}" for one in decision.lease.holdings)
            return f"grant {decision.lease.id} to {decision.lease.plane} until {_moment(decision.lease.end_ms)}: {on}"
        case LeaseStatus():
            why = f": {decision.refused}" if decision.refused else ""
            return f"lease {decision.lease.id} is {decision.state} until {_moment(decision.lease.end_ms)}{why}"
        case RevokeLease():
            one = decision.revocation
            return f"revoke {decision.lease} at {_moment(one.deadline_ms)} ({one.cause}): {one.message}"
        case EndLease():
            return (
                f"end lease {decision.lease} ({decision.cause}), delete {pod_names(state, decision.uids) or 'no pods'}"
            )


def _moment(at_ms: int) -> str:
    """A time as text, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def refused(refusal: Refusal) -> str:
    """A refusal as text for users."""
    return f"{refusal.reason.code} ({refusal.when}): {refusal}"


def pod_names(state: State, uids: tuple[str, ...]) -> str:
    """The pods as text: their keys where they are known, else their uids."""
    pods = state.workloads.pods
    return ", ".join(pods[uid].key if uid in pods else f"pod {uid}" for uid in uids)
