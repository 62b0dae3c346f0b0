# SPDX-License-Identifier: Apache-2.0
"""Questions that take long are worked out one at a time, in the order in which they came: so they take one core at
most. Those that wait for others than us can be taken several at a time. A user has one under way, and so many in a
minute; after one that took too long none for a minute. So many wait in all; others are refused."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dovetail.aggregated.forked import TooSlow
from dovetail.aggregated.question import BadQuestion

_MINUTE_S = 60.0
_R = TypeVar("_R")


class Turns:
    """`what` is asked, as a noun. An answer has `time_s` from its turn on, and waits for that for `wait_s`: both
    together are to be less than the minute that the API server waits for a request."""

    def __init__(
        self, what: str, a_minute: int, most_waiting: int, time_s: float = 25.0, wait_s: float = 25.0, at_once: int = 1
    ) -> None:  # fmt: skip
        self.time_s = time_s
        self._what = what
        self._a_minute = a_minute
        self._most_waiting = most_waiting
        self._wait_s = wait_s
        self._turn = asyncio.Semaphore(at_once)
        self._under_way: set[str] = set()
        self._asked: dict[str, deque[float]] = {}

    async def take(self, user: str, work: Callable[[], Awaitable[_R]]) -> _R:
        """What `work` gives, at the turn of the user. Raises BadQuestion."""
        self._admit(user)
        self._under_way.add(user)
        try:
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._turn.acquire()
            except TimeoutError as error:
                raise BadQuestion(503, f"other {self._what}s have taken {self._wait_s:g} s: ask again") from error
            try:
                return await work()
            except TooSlow as error:
                self._asked[user] = deque([time.monotonic()] * self._a_minute)
                raise BadQuestion(504, f"the {self._what} takes longer than {self.time_s:g} s") from error
            finally:
                self._turn.release()
        finally:
            self._under_way.discard(user)

    def _admit(self, user: str) -> None:
        """Raises BadQuestion for a user that asks too often."""
        if user in self._under_way:
            raise BadQuestion(429, f"a {self._what} of this user is under way: ask again after its answer")
        if len(self._under_way) >= self._most_waiting:
            raise BadQuestion(429, f"too many {self._what}s wait: ask again")
        now_s = time.monotonic()
        for name, times in list(self._asked.items()):
            while times and now_s - times[0] > _MINUTE_S:
                times.popleft()
            if not times:
                del self._asked[name]
        times = self._asked.setdefault(user, deque())
        if len(times) >= self._a_minute:
            wait_s = _MINUTE_S - (now_s - times[0])
            raise BadQuestion(
                429, f"this user has asked {self._a_minute} {self._what}s in a minute: ask again in {wait_s:.0f} s"
            )
        times.append(now_s)
