# SPDX-License-Identifier: Apache-2.0
"""The lines of a recording. docs/reference/recording.md is the description for people.

Rules: a recording is a directory of segments, JSON lines each. The first line of a segment is its header, which holds
all that is needed to begin there; every other line is one call of the core: a step, or events told to a process that
does not lead. Digests are chained: that of a step is made of the one before it and of the bytes that the line has for
its decisions, so two runs decided alike if and only if their last digests are equal.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
from msgspec import Struct, field

from dovetail.core.checkpoint import Checkpoint
from dovetail.core.decisions import Decision
from dovetail.core.events import Event
from dovetail.core.policy import Policy
from dovetail.recording.coding import Coder

FORMAT = 4
NOTHING = msgspec.Raw(b"[]")
_DIGEST_BYTES = 16


class Header(Struct, frozen=True):
    """The first line of a segment. `dovetail` is the version that wrote it, `run` names the process (it is part of the
    decision ids on pods), `segment` counts within the run, from 1; `started` is the time of the header, ISO 8601.
    `digest` is that of the step before. `checkpoint` is None where the run began with an empty state."""

    dovetail: str
    format: int
    run: str
    segment: int
    started: str
    policy: Policy
    digest: str = ""
    checkpoint: Checkpoint | None = None


class RecordedLine(Struct, frozen=True):
    """One call of the core at `now_ms`. With `step` (its number) a step, with its events, decisions and digest; without
    it, what was `told` to a process that does not lead, for which `now_ms` is a note. `raised` is the error with which
    the call ended, and with it the process: a bug, which a replay meets again."""

    now_ms: int
    step: int = 0
    told: tuple[Event, ...] = ()
    events: tuple[Event, ...] = ()
    decisions: msgspec.Raw = field(default_factory=lambda: NOTHING)
    digest: str = ""
    raised: str = ""


HEADER = Coder[Header](Header)
LINE = Coder[RecordedLine](RecordedLine)
DECISIONS = Coder[tuple[Decision, ...]](tuple[Decision, ...])
CHECKPOINT = Coder[Checkpoint](Checkpoint)


def raised_as(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def chained(digest: str, decisions: bytes | msgspec.Raw) -> str:
    """The digest of a step: blake2b of 128 bits, as hex, over the one before and the encoded decisions."""
    digested = blake2b(digest.encode(), digest_size=_DIGEST_BYTES)
    digested.update(decisions)
    return digested.hexdigest()
