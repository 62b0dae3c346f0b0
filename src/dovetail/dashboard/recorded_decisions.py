# SPDX-License-Identifier: Apache-2.0
"""A decision of the scheduler, opened: from a recording on this machine, or by the running scheduler from its own.

Rules
- A recording on this machine is repeated in a thread, and viewers take turns (`aggregated.turns`). Only users that may
  see all namespaces may ask.
- The running scheduler is asked with the token of the viewer: RBAC and the bounds of its predictions are those of that
  user. So a pod of the dashboard needs no recording, and no right to one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event
from typing import Protocol

import msgspec

from dovetail.aggregated.turns import Turns
from dovetail.core.json_text import decode_json
from dovetail.dashboard.page_types import DecisionPage
from dovetail.dashboard.sources import PredictingSource
from dovetail.kube.objects.views import RECORDED_DECISIONS
from dovetail.kube.reading.views import ViewRequest
from dovetail.recording.decided import DecidedRun
from dovetail.viewserver.recorded import DecisionQuestion, repeated

A_MINUTE, MOST_WAITING = 20, 16


class DecisionSource(Protocol):
    """Opens decisions."""

    async def page(self, decision: str, user: str) -> DecisionPage:
        """The page for a user, by Authorization header. Raises BadQuestion."""


class RecordedDecisions:
    """Of the recording in this folder or file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turns = Turns("decision", A_MINUTE, MOST_WAITING)

    async def page(self, decision: str, user: str) -> DecisionPage:
        async def opened() -> DecisionPage:
            abandoned = Event()
            try:
                found = await asyncio.to_thread(repeated, self._path, decision, abandoned=abandoned.is_set)
            finally:
                # Where the pages end meanwhile, the process waits for the thread.
                abandoned.set()
            return _page(found)

        return await self._turns.take(user, opened)


class SchedulersDecisions:
    """Of the recording of the running scheduler."""

    def __init__(self, source: PredictingSource) -> None:
        self._source = source

    async def page(self, decision: str, user: str) -> DecisionPage:
        body = msgspec.json.encode(DecisionQuestion(decision))
        found = await self._source.predict(ViewRequest(RECORDED_DECISIONS, "", body=body), user)
        return _page(decode_json(found.answer, DecidedRun))


def _page(found: DecidedRun) -> DecisionPage:
    return DecisionPage(
        f"{found.run}-{found.step}", found.now_ms, found.events, found.waiting, found.decided, found.rooms,
        found.raised, f"{Path(found.file).name}, line {found.line}",
    )  # fmt: skip
