# SPDX-License-Identifier: Apache-2.0
"""Answers what a change would do: each by a process of its own, forked from the copy of the scheduler's state.

Rules
- One is worked out at a time, in the order in which they came: so they take one core at most, at the lowest priority.
- A user has one under way, and A_MINUTE of them in a minute; after one that took too long none for a minute.
  MOST_WAITING wait in all; others are refused.
- A process ends after its answer, or after TIME_S; its memory is bounded (`generation`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from dovetail.viewserver.answers import BadQuestion, Question, Reply
from dovetail.viewserver.following import Following
from dovetail.viewserver.generation import Generation, GenerationEnded, TooSlow

TIME_S = 25.0
"""The time for one answer, from its turn on."""
WAIT_S = 25.0
"""The time until its turn. Both together are less than the API server waits for a request."""
A_MINUTE = 10
MOST_WAITING = 16
_MINUTE_S = 60.0


class WhatIfs:
    """Of one copy of the scheduler's state. `ours` is the name of the scheduler."""

    def __init__(self, following: Following, ours: str) -> None:
        self._following = following
        self._ours = ours
        self._turn = asyncio.Lock()
        self._under_way: set[str] = set()
        self._asked: dict[str, deque[float]] = {}

    async def ask(self, user: str, question: Question) -> Reply:
        """The answer for a user. Raises BadQuestion."""
        self._admit(user)
        self._under_way.add(user)
        try:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._following.begun.wait()
                    await self._turn.acquire()
            except TimeoutError as error:
                raise BadQuestion(503, f"other what-ifs have taken {WAIT_S:g} s: ask again") from error
            try:
                return await self._worked_out(question)
            except TooSlow as error:
                self._asked[user] = deque([time.monotonic()] * A_MINUTE)
                raise BadQuestion(504, f"the what-if takes longer than {TIME_S:g} s") from error
            finally:
                self._turn.release()
        finally:
            self._under_way.discard(user)

    async def _worked_out(self, question: Question) -> Reply:
        try:
            process = await Generation.fork(self._following, self._ours, alone=True)
        except OSError as error:
            raise BadQuestion(503, f"no process can be started: {error}") from error
        try:
            await process.prepared(TIME_S)
            return await process.ask(question, TIME_S)
        except GenerationEnded as error:
            raise BadQuestion(503, "the process ended before it answered: the change may be too large") from error
        finally:
            process.end()

    def _admit(self, user: str) -> None:
        """Raises BadQuestion for a user that asks too often."""
        if user in self._under_way:
            raise BadQuestion(429, "a what-if of this user is under way: ask again after its answer")
        if len(self._under_way) >= MOST_WAITING:
            raise BadQuestion(429, "too many what-ifs wait: ask again")
        now_s = time.monotonic()
        for name, times in list(self._asked.items()):
            while times and now_s - times[0] > _MINUTE_S:
                times.popleft()
            if not times:
                del self._asked[name]
        times = self._asked.setdefault(user, deque())
        if len(times) >= A_MINUTE:
            wait_s = _MINUTE_S - (now_s - times[0])
            raise BadQuestion(429, f"this user has asked {A_MINUTE} what-ifs in a minute: ask again in {wait_s:.0f} s")
        times.append(now_s)
