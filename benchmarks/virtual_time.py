# SPDX-License-Identifier: Apache-2.0
"""Hours in seconds: an event loop whose clock jumps to the next timer whenever nothing else is to do.

Server and client run on one loop in one process, and talk through the loopback device: what one has sent the other can
read at once. So when no socket is readable nothing is under way, and the time until the next timer can be left out.
`time.monotonic`, `time.time` and `time.clock_gettime_ns` show this clock to everything in the process meanwhile.
Threads do not know it.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

_STUCK_S = 60.0


class VirtualClock:
    """Seconds since the epoch, and of the monotonic clock; both only move by `advance`."""

    def __init__(self, start_s: float = 1_800_000_000.0) -> None:
        self._start_s = start_s
        self.elapsed_s = 0.0

    def advance(self, seconds: float) -> None:
        self.elapsed_s += seconds

    def time(self) -> float:
        return self._start_s + self.elapsed_s

    def monotonic(self) -> float:
        return self.elapsed_s

    def clock_gettime_ns(self, _clock: int) -> int:
        return int(self.elapsed_s * 1e9)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Meanwhile the functions of `time` are those of this clock."""
        names = ("time", "monotonic", "clock_gettime_ns")
        with mock.patch.multiple(time, **{name: getattr(self, name) for name in names}):
            yield


class JumpingSelector(selectors.DefaultSelector):
    """Never waits for a timer: the clock jumps to it."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Raises RuntimeError where nothing can happen any more."""
        ready = super().select(0)
        if not ready and timeout != 0:
            # On a busy machine the kernel may deliver what was sent a moment later.
            os.sched_yield()
            ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            ready = super().select(_STUCK_S)
            if not ready:
                raise RuntimeError("no timer is set, and no socket gets anything")
            return ready
        self._clock.advance(timeout)
        return []


def run(work: Callable[[VirtualClock], Awaitable[None]]) -> None:
    """Run a coroutine function on such a loop, to its end."""
    clock = VirtualClock()

    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(JumpingSelector(clock))

    async def main() -> None:
        await work(clock)

    with clock.shown(), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def writes_of(store: Any) -> list[str]:
    """A list that gets an entry, "KIND NAME", for each write of the store from now on."""
    found: list[str] = []
    for collection in store.collections:

        def note(change: Any, name: str = collection.name) -> None:
            meta = change.object["metadata"]
            found.append(f"{name} {meta.get('namespace', '')}/{meta['name']}")

        collection.listeners.append(note)
    return found
