# SPDX-License-Identifier: Apache-2.0
"""The calls of the core as a stream of frames, for a process that repeats them and so keeps an equal state.

A frame is one byte for its kind, four for the length of the rest (big-endian), and the rest: JSON, as in a recording. A
stream begins with a checkpoint. The number of decisions travels with each step, so that a copy that differs is found.
Frames of the kind REPORTED are about objects that the core does not read: a copy passes them over. They may come before
the checkpoint.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.checkpoint import Checkpoint, restore, take
from dovetail.core.cycle import apply_events, step
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.recording.calls import CoreCall
from dovetail.recording.coding import Coder
from dovetail.recording.format import RecordedLine

HEAD_BYTES = 5
_BEGUN, _RENEWED, _CALLED = b"B", b"R", b"C"
REPORTED = b"O"


class StreamBeginning(Struct, frozen=True):
    """The state that the calls after it are for."""

    policy: Policy
    checkpoint: Checkpoint


class StreamedCall(Struct, frozen=True):
    """A call, and how many decisions it led to."""

    line: RecordedLine
    decided: int = 0


_BEGINNING = Coder[StreamBeginning](StreamBeginning)
_CALL = Coder[StreamedCall](StreamedCall)


def framed(kind: bytes, payload: bytes) -> bytes:
    """One frame."""
    return kind + len(payload).to_bytes(4, "big") + payload


def begun(policy: Policy, checkpoint: Checkpoint) -> bytes:
    """The frame that begins a stream."""
    return framed(_BEGUN, _BEGINNING.encode(StreamBeginning(policy, checkpoint)))


def renewed() -> bytes:
    """The frame for a state that was restored from its own checkpoint."""
    return framed(_RENEWED, b"")


def called(call: CoreCall) -> bytes:
    """The frame of a call."""
    return framed(_CALLED, _CALL.encode(StreamedCall(call.line, len(call.decisions))))


class StreamedCopy:
    """The state of the process that sent the frames, as of the last frame that was taken."""

    def __init__(self) -> None:
        self.state = State()
        self.begun = False
        self.frames = 0

    def take(self, frame: bytes) -> None:
        """Follow one frame. Raises ValueError where the copy differs, JsonError for bytes that are no frame, and what
        the core raised there."""
        kind, payload = frame[:1], frame[HEAD_BYTES:]
        if kind == _BEGUN:
            beginning = _BEGINNING.decode(payload)
            self.state = restore(beginning.policy, beginning.checkpoint)
            self.begun = True
        elif kind == _RENEWED:
            self.state = restore(self.state.policy, take(self.state, marks=True))
        elif kind == _CALLED:
            self._repeat(_CALL.decode(payload))
        elif kind != REPORTED:
            raise ValueError(f"{kind!r} is no kind of frame")
        self.frames += 1

    def _repeat(self, call: StreamedCall) -> None:
        line = call.line
        if not line.step:
            apply_events(self.state, line.applied, line.now_ms)
            return
        decided = len(step(self.state, line.events, line.now_ms))
        if (self.state.steps, decided) != (line.step, call.decided):
            raise ValueError(
                f"step {self.state.steps} decided {decided} times, step {line.step} of the scheduler {call.decided}"
            )
