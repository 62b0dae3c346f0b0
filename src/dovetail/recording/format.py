# SPDX-License-Identifier: Apache-2.0
"""The lines of a recording. docs/reference/recording.md describes the format for users.

A recording is a directory of segments in JSON Lines. The first line of a segment is its header, which holds everything
that a replay needs to start there. Every other line is one call of the core: a step, or events for a process that is
not the leader. Digests are chained: the digest of a step covers the previous digest and the encoded decisions of the
step. Two runs made the same decisions if and only if their last digests are equal.
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
    """The first line of a segment. `dovetail` is the version that wrote it. `run` names the process and is part of the
    decision ids on pods. `segment` counts from 1 within the run. `started` is the time of the header (ISO 8601).
    `digest` is the digest of the previous step. `checkpoint` is None where the run began with an empty state."""

    dovetail: str
    format: int
    run: str
    segment: int
    started: str
    policy: Policy
    digest: str = ""
    checkpoint: Checkpoint | None = None


class RecordedLine(Struct, frozen=True):
    """One call of the core at `now_ms`. With a `step` number: a step with its events, decisions and digest. Without it:
    the events (`applied`) that a process applied while it was not the leader; `now_ms` is then informational. `raised`
    is the error that ended the call and the process: a bug, which a replay reproduces."""

    now_ms: int
    step: int = 0
    applied: tuple[Event, ...] = field(default=(), name="told")
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
    """The digest of a step: BLAKE2b with 128 bits, in hex, over the previous digest and the encoded decisions."""
    digested = blake2b(digest.encode(), digest_size=_DIGEST_BYTES)
    digested.update(decisions)
    return digested.hexdigest()
