# SPDX-License-Identifier: Apache-2.0
"""The pages of a recorded day at a time of it: those of the live dashboard, of the state that the scheduler had then.

Rules: one time is worked out after the other, in a thread, and the last KEPT are kept; at most MOST_WAITING questions
wait.
"""

from __future__ import annotations

import asyncio

from dovetail.aggregated.question import BadQuestion
from dovetail.dashboard.board import PageBoard, Topic
from dovetail.dashboard.copied_cluster import CopiedCluster
from dovetail.dashboard.recorded_day import NoSuchTime, RecordedDay
from dovetail.dashboard.replay_types import DayView, FilmNodes
from dovetail.dashboard.sheets import Sheet
from dovetail.dashboard.sources import SourceAway
from dovetail.recording.reader import BadRecording
from dovetail.recording.replay import Differs

KEPT = 4
MOST_WAITING = 8


class DayPages:
    """`ours` is the name of the scheduler that was recorded."""

    def __init__(self, day: RecordedDay, ours: str) -> None:
        self.day = day
        self._ours = ours
        self._boards: dict[int, PageBoard] = {}
        self._turn = asyncio.Lock()
        self._waiting = 0

    def view(self) -> DayView:
        """The day as far as it is read."""
        day = self.day
        whole = day.whole
        return DayView(
            str(day.path), day.start_ms, day.shown_ms, whole,
            1000 if whole else min(999, 1000 * day.read_bytes // max(1, day.size_bytes)), day.problem,
            len(day.film.nodes), list(day.film.starts_ms), list(day.line.points), list(day.line.marks),
            day.line.marks_left_out,
        )  # fmt: skip

    def nodes(self) -> FilmNodes:
        """The nodes of the parts that are there."""
        return FilmNodes(list(self.day.film.nodes))

    async def sheet(self, topic: Topic, at_ms: int) -> Sheet:
        """A page at a time. Raises BadQuestion, SourceAway."""
        if self._waiting >= MOST_WAITING:
            raise BadQuestion(429, "other times are being worked out: try again later")
        self._waiting += 1
        try:
            async with self._turn:
                return await (await self._board(at_ms)).sheet(topic)
        finally:
            self._waiting -= 1

    async def _board(self, at_ms: int) -> PageBoard:
        """Raises BadQuestion, SourceAway."""
        board = self._boards.pop(at_ms, None)
        if board is None:
            try:
                state = await asyncio.to_thread(self.day.state_at, at_ms)
            except NoSuchTime as error:
                raise BadQuestion(404, str(error)) from error
            except (BadRecording, Differs) as error:
                raise SourceAway(f"the recording cannot be repeated: {error}") from error
            copy = CopiedCluster(str(self.day.path), state.policy, self._ours, at_ms)
            copy.put_state(state)
            board = PageBoard(copy, state.policy.fabric, lambda: at_ms)
        while len(self._boards) >= KEPT:
            del self._boards[next(iter(self._boards))]
        self._boards[at_ms] = board
        return board
