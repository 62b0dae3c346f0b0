# SPDX-License-Identifier: Apache-2.0
"""Which generation answers, and when the next one is made.

Rules
- The newest generation that is prepared answers, at once. An answer is as old as that.
- A new one is made while the scheduler goes on, but no faster than that it takes a PART of one core; where nobody has
  asked for a while, once a minute.
- For a name that is not found, the answer is that of a generation which is newer than the question, and than what was
  on its way here then: a pod that was created a moment ago is found.
- What users have asked of one generation is asked of the next before it takes over.
- A generation that ended is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from dovetail.aggregated.forked import ProcessEnded, TooSlow
from dovetail.aggregated.question import Question, Reply
from dovetail.viewserver.following import Following
from dovetail.viewserver.generation import Generation

PART = 0.2
"""The most of one core that generations take, unless one is waited for: then half."""
LONGEST_PAUSE_S = 60.0
SHORTEST_PAUSE_S = 1.0
ON_ITS_WAY_S = 0.2
"""The scheduler's informers and its steps take less, and then it sends calls together (`view_feed`)."""
_ASKED_S = 600.0
_PREPARED_S = 90.0
_WARM_S = 15.0
_KEPT = 512
_log = logging.getLogger(__name__)


class Generations:
    """Of one copy of the scheduler's state."""

    def __init__(self, following: Following, ours: str) -> None:
        self._following = following
        self._ours = ours
        self._newest: Generation | None = None
        self._made = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._asked_s = time.monotonic()

    async def run(self) -> None:
        """Make generations until cancelled."""
        try:
            while True:
                await self._following.begun.wait()
                cost_s = await self._make()
                await self._pause(cost_s)
        finally:
            if self._newest is not None:
                self._newest.end()

    async def ask(self, question: Question, within_s: float) -> Reply:
        """The answer. Raises TooSlow, TimeoutError."""
        self._asked_s = time.monotonic()
        frames, newer = -1, -1
        async with asyncio.timeout(within_s):
            while True:
                generation = await self._newer_than(newer)
                generation.asked.add(question)
                try:
                    reply = await self._once(generation, question, within_s)
                except ProcessEnded:
                    continue
                if reply.status == 404 and frames < 0:
                    await asyncio.sleep(ON_ITS_WAY_S)
                    frames = self._following.frames
                if reply.status != 404 or generation.frames >= frames:
                    return reply
                newer = frames - 1

    async def _once(self, generation: Generation, question: Question, within_s: float) -> Reply:
        """A question is asked once of each generation, however many wait for its answer."""
        task = generation.replies.get(question)
        if task is None:
            if len(generation.replies) >= _KEPT:
                del generation.replies[next(iter(generation.replies))]
            task = asyncio.ensure_future(generation.ask(question, within_s))
            generation.replies[question] = task
            # Where all that waited are gone, its error is nobody's.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _newer_than(self, frames: int) -> Generation:
        """The newest generation, once it has the state after more than so many frames."""
        while True:
            newest = self._newest
            if newest is not None and not newest.ended and newest.frames > frames:
                return newest
            self._wanted.set()
            async with self._made:
                await self._made.wait()

    async def _make(self) -> float:
        """Make the next generation, and end the one before. Gives the seconds that it took."""
        began_s, before = time.monotonic(), self._newest
        self._wanted.clear()
        try:
            generation = await Generation.fork(self._following, self._ours)
            await generation.prepared(_PREPARED_S)
            if before is not None:
                await self._warm(generation, before)
        except (ProcessEnded, OSError) as error:
            _log.warning("the views of this moment cannot be worked out: %s", error)
            return _PREPARED_S
        self._newest = generation
        async with self._made:
            self._made.notify_all()
        if before is not None:
            asyncio.get_running_loop().call_later(SHORTEST_PAUSE_S, _end_when_idle, before)
        return time.monotonic() - began_s

    async def _warm(self, generation: Generation, before: Generation) -> None:
        """Ask the new one what users have asked of the one before, so that nobody waits as it takes over. Raises
        ProcessEnded."""
        with suppress(TimeoutError, TooSlow):
            async with asyncio.timeout(_WARM_S):
                for question in list(before.asked)[:_KEPT]:
                    await self._once(generation, question, _WARM_S)

    async def _pause(self, cost_s: float) -> None:
        """Wait until the next generation is due: something has changed, and the cost of the last one is spread."""
        idle = time.monotonic() - self._asked_s > _ASKED_S
        pause_s = LONGEST_PAUSE_S if idle else min(LONGEST_PAUSE_S, cost_s * (1 / PART - 1))
        await asyncio.sleep(min(cost_s, LONGEST_PAUSE_S))
        with suppress(TimeoutError):
            async with asyncio.timeout(max(SHORTEST_PAUSE_S, pause_s - cost_s)):
                await self._wanted.wait()
        if self._newest is not None and not self._newest.ended and not self._wanted.is_set():
            await self._following.beyond(self._newest.frames)


def _end_when_idle(generation: Generation) -> None:
    """End it once all that wait for its answers have them."""
    if any(not task.done() for task in generation.replies.values()):
        asyncio.get_running_loop().call_later(SHORTEST_PAUSE_S, _end_when_idle, generation)
    else:
        generation.end()
