# SPDX-License-Identifier: Apache-2.0
"""The calls of the core, and the observers of each: a recording, or a process that keeps an equal state.

Rules
- All changes to the state go through `step` and `apply_events`.
- An observer only takes a call or a checkpoint; it never blocks, and never raises.
- Where one observer is due to begin again, all of them begin: the caller goes on from a state that is restored from the
  checkpoint that each observer gets. So the state of whoever repeats the calls is equal by construction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import cycle
from dovetail.core.checkpoint import Checkpoint, restore, take
from dovetail.core.decisions import Decision
from dovetail.core.events import Event
from dovetail.core.state import State
from dovetail.recording.format import DECISIONS, LINE, NOTHING, RecordedLine, chained, raised_as


class CoreCall(Struct, frozen=True):
    """A call with its arguments, and what a step decided. The line has no decisions and no digest yet."""

    line: RecordedLine
    decisions: list[Decision]


def line_of(call: CoreCall, digest: str) -> tuple[bytes, str]:
    """A call as a line of a recording, and the digest after it; `digest` is the one before it."""
    line = call.line
    if line.step:
        decisions = msgspec.Raw(DECISIONS.encode(tuple(call.decisions))) if call.decisions else NOTHING
        digest = chained(digest, decisions)
        line = replace(line, decisions=decisions, digest=digest)
    return LINE.encode(line) + b"\n", digest


class Observer(Protocol):
    @property
    def due(self) -> bool:
        """Whether it has to begin again from a checkpoint."""

    def begin(self, checkpoint: Checkpoint) -> None:
        """The calls from now on are those for a state restored from the checkpoint."""

    def cannot_begin(self, why: str) -> None:
        """It is due, and no checkpoint could be made."""

    def observe(self, call: CoreCall) -> None:
        """A call was made."""


class CoreCalls:
    """Calls the core for one state. Methods raise only the errors of the core."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def step(self, state: State, events: Iterable[Event], now_ms: int) -> list[Decision]:
        """Call `cycle.step`."""
        events, number = tuple(events), state.steps + 1
        try:
            decisions = cycle.step(state, events, now_ms)
        except Exception as error:
            self._observe(RecordedLine(now_ms, number, events=events, raised=raised_as(error)))
            raise
        self._observe(RecordedLine(now_ms, number, events=events), decisions)
        return decisions

    def apply_events(self, state: State, events: Iterable[Event], now_ms: int) -> None:
        """Call `cycle.apply_events`, if there are any."""
        events = tuple(events)
        if not events:
            return
        try:
            cycle.apply_events(state, events, now_ms)
        except Exception as error:
            self._observe(RecordedLine(now_ms, applied=events, raised=raised_as(error)))
            raise
        self._observe(RecordedLine(now_ms, applied=events))

    def renewed(self, state: State) -> State:
        """The state to continue with: if an observer is due, one that is restored from a checkpoint."""
        due = [one for one in self._observers if one.due]
        if not due:
            return state
        try:
            checkpoint = take(state, marks=True)
            restored = restore(state.policy, checkpoint)
        except Exception as error:
            for one in due:
                one.cannot_begin(f"no checkpoint could be made: {raised_as(error)}")
            return state
        for one in self._observers:
            one.begin(checkpoint)
        # They are measured, and decide nothing: a checkpoint lacks them.
        restored.headrooms.take_over(state.headrooms)
        return restored

    def _observe(self, line: RecordedLine, decisions: list[Decision] | None = None) -> None:
        for one in self._observers:
            one.observe(CoreCall(line, decisions or []))
