# SPDX-License-Identifier: Apache-2.0
"""A process that answers for the state at one moment: forked from the one that follows the scheduler, so that the state
is there at no cost. One for a single question, `alone`, is bounded, and yields even more."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from dovetail.aggregated.forked import Answer, Forked
from dovetail.aggregated.priority import GENERATION, ONE_QUESTION
from dovetail.aggregated.question import Question, Reply
from dovetail.viewserver.answers import ViewAnswers
from dovetail.viewserver.following import Following

MOST_ALONE_BYTES = 1 << 30
"""The memory that a process for one question may take besides what it is forked with."""
_QUESTION = msgspec.json.Decoder(Question)


class Generation(Forked):
    """The process with the state after so many `frames` of the stream."""

    frames = 0

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(pid, reader, writer)
        self.replies: dict[Question, asyncio.Task[Reply]] = {}
        """The answers, so that a question is answered once."""
        self.asked: set[Question] = set()
        """What users have asked of it."""

    @classmethod
    async def fork(cls, following: Following, ours: str, *, alone: bool = False, recording: Path | None = None) -> Self:
        """A new process for the state as it is now. Raises OSError."""
        frames, begin = following.frames, partial(_begin, following, ours, alone, recording)
        made = await cls.start(begin, *((ONE_QUESTION, MOST_ALONE_BYTES) if alone else (GENERATION, None)))
        made.frames = frames
        return made

    async def ask(self, question: Question, within_s: float) -> Reply:
        """The reply, within so many seconds from its turn on. Raises ProcessEnded, TooSlow."""
        return await self.reply(msgspec.json.encode(question), within_s)


def _begin(following: Following, ours: str, alone: bool, recording: Path | None) -> Answer:
    state = following.state
    now_ms = max(state.now_ms, time.time_ns() // 1_000_000)
    answers = ViewAnswers(state, now_ms, ours, following.objects, recording=recording)
    if not alone:
        answers.prepare()
    return lambda question: answers.answer(_QUESTION.decode(question))
