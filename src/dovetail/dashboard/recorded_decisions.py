# SPDX-License-Identifier: Apache-2.0
"""A decision of the scheduler, opened from its recording: its step is repeated, as by `dovetail replay --decision`.

Rules: repeating takes CPU time, up to that of a whole segment, in a thread; viewers take turns (`aggregated.turns`). A
recording has the names of all namespaces, so only users that may see all of them may ask.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from dovetail.aggregated.question import BadQuestion, Reply
from dovetail.aggregated.turns import Turns
from dovetail.core.json_text import decode_json
from dovetail.dashboard.page_types import DecisionPage
from dovetail.recording.decided import DecidedRun, NotRecorded, decided
from dovetail.recording.reader import BadRecording, find
from dovetail.recording.replay import Differs

A_MINUTE, MOST_WAITING = 20, 16


class RecordedDecisions:
    """Of the recording in this folder or file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turns = Turns("decision", A_MINUTE, MOST_WAITING)

    async def page(self, decision: str, user: str) -> DecisionPage:
        """The page for a user, by Authorization header. Raises BadQuestion."""

        async def opened() -> Reply:
            return await asyncio.to_thread(self._opened, decision)

        return decode_json((await self._turns.take(user, opened)).body, DecisionPage)

    def _opened(self, decision: str) -> Reply:
        """Raises BadQuestion."""
        runs, wrong = find((self._path,))
        try:
            if not runs and wrong:
                raise wrong[0]
            found = decided(runs, decision)
        except NotRecorded as error:
            raise BadQuestion(404, str(error)) from error
        except (BadRecording, Differs) as error:
            raise BadQuestion(503, f"the recording cannot be repeated: {error}") from error
        return Reply(200, msgspec.json.encode(_page(found)))


def _page(found: DecidedRun) -> DecisionPage:
    return DecisionPage(
        f"{found.run}-{found.step}", found.now_ms, found.events, found.waiting, found.decided, found.rooms,
        found.raised, f"{Path(found.file).name}, line {found.line}",
    )  # fmt: skip
