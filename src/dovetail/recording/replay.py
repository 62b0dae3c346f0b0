# SPDX-License-Identifier: Apache-2.0
"""Deciding a recorded run again.

Rules: every call of the core is made again, in order, with the same arguments; its decisions must be the same bytes. A
segment begins with its checkpoint, as it did when it was recorded, and the checkpoint must be what the replayed state
gives. At the first difference the run ends: what follows from another decision says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step, tell
from dovetail.core.decisions import Bind, Decision, Hold, Release
from dovetail.core.state import State
from dovetail.recording.format import CHECKPOINT, DECISIONS, NOTHING, Header, Line, raised_as
from dovetail.recording.reader import BadRecording, Run, Segment

Verdict = Literal["equal", "differs", "unusable"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first call that went another way. `step` is 0 where no step was taken; `recorded` and `replayed` are the
    decisions that only one of the two has, in words."""

    file: str
    line: int
    step: int
    now_ms: int
    recorded: tuple[str, ...]
    replayed: tuple[str, ...]


@dataclass(slots=True)
class Replay:
    """What became of a run. `recorded_by` is the version that wrote it; `digest` that of the last step replayed;
    `notes` are what a reader of the verdict must know; `problem` is why the run is unusable."""

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


class _Differs(Exception):
    def __init__(self, difference: Difference) -> None:
        self.difference = difference


def replay(run: Run, read: Callable[[int], object] = lambda _: None) -> Replay:
    """Decide a run again. `read` is called with the bytes read so far, over all of its segments."""
    first = run.segments[0].brief
    result = Replay(run.name, first.dovetail, first.started)
    began_s = time.perf_counter()
    try:
        _Player(result, read).play(run)
    except BadRecording as error:
        result.verdict, result.problem = "unusable", str(error)
    except _Differs as error:
        result.verdict, result.difference = "differs", error.difference
    result.seconds = time.perf_counter() - began_s
    return result


class _Player:
    def __init__(self, result: Replay, read: Callable[[int], object]) -> None:
        self._result = result
        self._read = read
        self._state = State()
        self._before: Segment | None = None
        self._done_bytes = 0

    def play(self, run: Run) -> None:
        for segment in run.segments:
            header, lines = segment.read(lambda at: self._read(self._done_bytes + at))
            self._begin(segment, header)
            for number, line in lines:
                self._call(segment, number, line)
            self._result.segments += 1
            self._done_bytes += segment.size_bytes
            self._before = segment
            if segment.cut:
                self._note(f"{segment.file} ends in the middle of a line, which was left out")

    def _begin(self, segment: Segment, header: Header) -> None:
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
        elif CHECKPOINT.encode(take(self._state)) != CHECKPOINT.encode(header.checkpoint):
            words = ("the state in the checkpoint",), ("another state, after equal decisions",)
            raise _Differs(Difference(str(segment.file), 1, 0, header.checkpoint.now_ms, *words))
        result.digest = header.digest
        self._state = State(header.policy) if header.checkpoint is None else restore(header.policy, header.checkpoint)

    def _call(self, segment: Segment, number: int, line: Line) -> None:
        result, state = self._result, self._state
        decisions: list[Decision] = []
        raised = ""
        try:
            if line.step:
                decisions = step(state, line.events, line.now_ms)
            else:
                tell(state, line.told, line.now_ms)
        except Exception as error:
            # Whatever the core raises is what is compared.
            raised = raised_as(error)
        result.events += len(line.events) + len(line.told)
        encoded = msgspec.Raw(DECISIONS.encode(tuple(decisions))) if decisions else NOTHING
        if (raised, bytes(encoded)) != (line.raised, bytes(line.decisions)):
            recorded, replayed = self._only(segment, number, line, decisions)
            recorded += (f"error: {line.raised}",) if line.raised else ()
            replayed += (f"error: {raised}",) if raised else ()
            raise _Differs(Difference(str(segment.file), number, line.step, line.now_ms, recorded, replayed))
        if raised:
            self._note(f"the core ended with an error, as recorded: {raised}")
        if line.step:
            result.steps += 1
            result.decisions += len(decisions)
            result.digest = line.digest

    def _only(
        self, segment: Segment, number: int, line: Line, replayed: list[Decision]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What was decided by one side alone; where only the order differs, everything."""
        try:
            recorded = list(DECISIONS.decode(line.decisions))
        except msgspec.DecodeError as error:
            raise BadRecording(segment.file, number, f"in the decisions: {error}") from error
        only_recorded = [decision for decision in recorded if decision not in replayed]
        only_replayed = [decision for decision in replayed if decision not in recorded]
        if not only_recorded and not only_replayed:
            only_recorded, only_replayed = recorded, replayed
        return (
            tuple(described(self._state, decision) for decision in only_recorded),
            tuple(described(self._state, decision) for decision in only_replayed),
        )

    def _note(self, note: str) -> None:
        self._result.notes += (note,)


def described(state: State, decision: Decision) -> str:
    """A decision in words, with the names of its pods where they are known."""
    match decision:
        case Bind():
            gpus = f", GPU {', '.join(map(str, decision.devices))}" if decision.devices else ""
            volumes = ", ".join(f"{pick.claim} on {pick.volume or 'a new volume'}" for pick in decision.volumes)
            return f"bind {_pod(state, decision.uid)} to {decision.node}{gpus}" + (f", {volumes}" if volumes else "")
        case Hold() | Release():
            refusal, pods = decision.refusal, ", ".join(_pod(state, uid) for uid in decision.uids)
            word = "hold" if isinstance(decision, Hold) else "release"
            return f"{word} {pods}: {refusal.reason.code} ({refusal.when}): {refusal}"


def _pod(state: State, uid: str) -> str:
    pod = state.roster.pods.get(uid)
    return pod.key if pod is not None else f"pod {uid}"
