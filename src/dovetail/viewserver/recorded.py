# SPDX-License-Identifier: Apache-2.0
"""A decision of the scheduler, opened from its recording: its step is repeated, as by `dovetail replay --decision`.

Rules: repeating takes CPU time, up to that of a whole segment, so it has a limit. A recording has the names of all
namespaces: it is for users that may see all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.aggregated.question import BadQuestion
from dovetail.recording.decided import DecidedRun, NotRecorded, decided
from dovetail.recording.reader import BadRecording, find
from dovetail.recording.replay import Differs

LIMIT_S = 20.0


class DecisionQuestion(Struct, frozen=True, rename="camel"):
    """The decision with this id, RUN-STEP."""

    decision: str


class _TakesLong(Exception):
    """It takes longer than the limit."""


def repeated(
    recording: Path, decision: str, limit_s: float = LIMIT_S, abandoned: Callable[[], bool] = lambda: False
) -> DecidedRun:  # fmt: skip
    """The step of a decision, without its record as it was written. Raises BadQuestion: 404 where it is not in the
    recording, 503 where that cannot be repeated, 504 where it takes longer than the limit, or is abandoned."""
    try:
        runs, wrong = find((recording,))
        if not runs and wrong:
            raise wrong[0]
        found = decided(runs, decision, _limit(time.monotonic() + limit_s, abandoned))
    except NotRecorded as error:
        raise BadQuestion(404, str(error)) from error
    except (BadRecording, Differs) as error:
        raise BadQuestion(503, f"the recording cannot be repeated: {error}") from error
    except OSError as error:
        raise BadQuestion(404, f"the recording cannot be read: {error}") from error
    except _TakesLong as error:
        why = (
            f"to repeat the recording up to this step takes longer than {limit_s:g} s: `dovetail replay PATH --decision"
        )
        raise BadQuestion(504, f"{why} {decision}` has no limit") from error
    return replace(found, record=msgspec.Raw(b"null"))


def _limit(ends_s: float, abandoned: Callable[[], bool]) -> Callable[[int], object]:
    """Is called while a recording is read."""

    def read(_: int) -> None:
        if time.monotonic() > ends_s or abandoned():
            raise _TakesLong

    return read
