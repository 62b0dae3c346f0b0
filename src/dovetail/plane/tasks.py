# SPDX-License-Identifier: Apache-2.0
"""The tasks of an agent's plane: work that its end waits for, and loops that its end stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from dovetail.plane.broker import BrokerClock
from dovetail.plane.waiting import finished


class PlaneTasks:
    """Tasks that are done leave it by themselves."""

    def __init__(self) -> None:
        self._work: set[asyncio.Task[None]] = set()
        self._loops: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Begin work that the end of the plane waits for."""
        return _begun(work, self._work)

    def loop(self, work: Coroutine[object, object, None]) -> None:
        """Begin work that the end of the plane stops."""
        _begun(work, self._loops)

    async def close(self, clock: BrokerClock, most_ms: int) -> None:
        """Wait for the work, but no longer than this, and cancel all that is left."""
        try:
            await finished(clock, self._work, most_ms)
        finally:
            left = [*self._loops, *self._work]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def _begun(work: Coroutine[object, object, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    among.add(task)
    task.add_done_callback(among.discard)
    return task
