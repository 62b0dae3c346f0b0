# SPDX-License-Identifier: Apache-2.0
"""Answers predictions, which take long: what a change would do, when drained nodes are empty, which moves make room,
what a request for a lease could have; and what was decided in a recorded step. Each by a process of its own, forked
from the copy of the scheduler's state, one at a time (`aggregated.turns`). The process ends after its answer; its time
and memory are bounded (`generation`)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dovetail.aggregated.forked import ProcessEnded
from dovetail.aggregated.question import BadQuestion, Question, Reply
from dovetail.aggregated.turns import Turns
from dovetail.viewserver.following import Following
from dovetail.viewserver.generation import Generation

A_MINUTE = 10
MOST_WAITING = 16
_BEGUN_S = 5.0


class WhatIfs:
    """Of one copy of the scheduler's state. `ours` is the name of the scheduler, `recording` the folder of its
    recording, if there is one."""

    def __init__(self, following: Following, ours: str, recording: Path | None = None) -> None:
        self._following = following
        self._ours = ours
        self._recording = recording
        self._turns = Turns("prediction", A_MINUTE, MOST_WAITING)

    async def ask(self, user: str, question: Question) -> Reply:
        """The answer for a user. Raises BadQuestion."""
        try:
            async with asyncio.timeout(_BEGUN_S):
                await self._following.begun.wait()
        except TimeoutError as error:
            raise BadQuestion(503, "the state of the scheduler is not there yet: ask again") from error
        return await self._turns.take(user, lambda: self._worked_out(question))

    async def _worked_out(self, question: Question) -> Reply:
        time_s = self._turns.time_s
        try:
            process = await Generation.fork(self._following, self._ours, alone=True, recording=self._recording)
        except OSError as error:
            raise BadQuestion(503, f"no process can be started: {error}") from error
        try:
            await process.prepared(time_s)
            return await process.ask(question, time_s)
        except ProcessEnded as error:
            raise BadQuestion(503, "the process ended before it answered: the question may be too large") from error
        finally:
            process.end()
