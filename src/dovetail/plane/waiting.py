# SPDX-License-Identifier: Apache-2.0
"""What an agent's plane waits for: answers of the broker, news, and the end of work.

Rules
- A call that is not answered is repeated after a wait that doubles from FIRST_WAIT_MS to MOST_WAIT_MS.
- What every plane does once in a period has its own moment there for each: hundreds that start, or reach the broker
  again, at one moment do not go on at the same moments.
- All waits are by the broker's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from zlib import crc32

from dovetail.plane.broker import BrokerClock, BrokerUnavailable

FIRST_WAIT_MS = 100
MOST_WAIT_MS = 10_000
NEVER_MS = 2**62
"""A limit that does not come."""


class Backoff:
    """The waits after errors in a row."""

    def __init__(self) -> None:
        self._ms = FIRST_WAIT_MS

    def next_ms(self) -> int:
        ms, self._ms = self._ms, min(2 * self._ms, MOST_WAIT_MS)
        return ms


def until_turn_ms(plane: str, period_ms: int, now_ms: int) -> int:
    """How long until the plane's moment in a period comes, from 1 to `period_ms`."""
    return period_ms - (now_ms - crc32(plane.encode())) % period_ms


async def answered(clock: BrokerClock, call: Callable[[], Awaitable[None]], limit_ms: int = NEVER_MS) -> None:
    """Repeat the call until it is answered. Raises BrokerUnavailable once the limit has come."""
    waits = Backoff()
    while True:
        try:
            return await call()
        except BrokerUnavailable:
            if clock.now_ms() >= limit_ms:
                raise
        await clock.sleep(waits.next_ms())


async def finished(clock: BrokerClock, tasks: Collection[asyncio.Task[None]], most_ms: int) -> None:
    """Wait for these, but no longer than this: of the broker's clock, and of this machine's, since the clock of a test
    may stand still. They go on after that."""
    limit = asyncio.ensure_future(clock.sleep(most_ms))
    try:
        while (left := [task for task in tasks if not task.done()]) and not limit.done():
            waiting = [*left, limit]
            done, _ = await asyncio.wait(waiting, timeout=most_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return
    finally:
        limit.cancel()


class News:
    """Something has happened: all that wait for it go on, and check what there is now."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def put(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, clock: BrokerClock, ms: int) -> None:
        """Until there is news, or so much time has passed."""
        news = self._next
        if ms >= NEVER_MS // 2:
            await news.wait()
            return
        waiting = [asyncio.ensure_future(news.wait()), asyncio.ensure_future(clock.sleep(ms))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
