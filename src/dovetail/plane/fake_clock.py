# SPDX-License-Identifier: Apache-2.0
"""A virtual clock for tests of agents (`plane.fake`)."""

from __future__ import annotations

import asyncio
import heapq


class FakeClock:
    """A clock that moves only when a test moves it. It starts at `start_ms`."""

    def __init__(self, start_ms: int = 1_000_000) -> None:
        self._now_ms = start_ms
        self._sleeping: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def now_ms(self) -> int:
        return self._now_ms

    def least_ms(self) -> int:
        """The same: this is the broker's own clock."""
        return self._now_ms

    async def sleep(self, ms: int) -> None:
        if ms <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleeping, (self._now_ms + ms, self._count, future))
        await future

    def next_ms(self) -> int | None:
        """When the next sleep ends."""
        while self._sleeping and self._sleeping[0][2].done():
            heapq.heappop(self._sleeping)
        return self._sleeping[0][0] if self._sleeping else None

    def move(self, now_ms: int) -> None:
        """Time goes on until then, and sleeps end."""
        self._now_ms = max(self._now_ms, now_ms)
        while (due_ms := self.next_ms()) is not None and due_ms <= self._now_ms:
            heapq.heappop(self._sleeping)[2].set_result(None)
