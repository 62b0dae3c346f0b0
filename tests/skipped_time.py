# SPDX-License-Identifier: Apache-2.0
"""Waits that cost no time: whenever nothing is to be done in the event loop until a timer, the clocks jump to it.

Rules
- For tests whose servers and clients run in one loop, as a scheduler on a playground: what one has sent the other can
  read at once. So when no socket is readable nothing is under way.
- While work takes time it passes as ever, so timers and answers still come in any order. (In the hours of
  `benchmarks.virtual_time` work takes none.)
- Nothing jumps while the loop waits for one of its own threads (`asyncio.to_thread`, names that are resolved). It does
  not know of child processes and of other threads: not for tests that wait for these.
- What a clock shows is the real time and what was skipped. It is given to everything that asks `time`, also where a
  function has one of its clocks as a default. Not to `datetime.now`, which shows the real time.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

from dovetail.apiserver.store import Store
from dovetail.operator.gpu_search.gpu_searches import GpuSearches
from dovetail.playground import Playground
from dovetail.scheduler.clock import Clock

_SECONDS = ("time", "monotonic")
_NANOSECONDS = ("time_ns", "monotonic_ns")
_HAVE_DEFAULTS: tuple[Callable[..., None], ...] = (
    Clock.__init__,
    GpuSearches.__init__,
    Playground.__init__,
    Store.__init__,
)
"""Functions of which a parameter has one of these clocks as its default."""


class _Clocks:
    """Those of `time`, ahead by what was skipped."""

    def __init__(self) -> None:
        self.skipped_s = 0.0
        seconds = {name: self._ahead(getattr(time, name), 1) for name in _SECONDS}
        nanoseconds = {name: self._ahead(getattr(time, name), 10**9) for name in _NANOSECONDS}
        self.functions = seconds | nanoseconds | {"clock_gettime_ns": self._ahead(time.clock_gettime_ns, 10**9)}

    def _ahead(self, real: Callable[..., Any], per_second: int) -> Callable[..., Any]:
        kind = type(real(time.CLOCK_MONOTONIC) if real is time.clock_gettime_ns else real())
        return lambda *arguments: real(*arguments) + kind(self.skipped_s * per_second)

    @contextmanager
    def shown(self) -> Iterator[None]:
        ours = {getattr(time, name): function for name, function in self.functions.items()}
        with ExitStack() as patches:
            for function in _HAVE_DEFAULTS:
                for kind in ("__defaults__", "__kwdefaults__"):
                    patches.enter_context(_replaced(function, kind, ours))
            patches.enter_context(mock.patch.multiple(time, **self.functions))
            yield


@contextmanager
def _replaced(function: Any, kind: str, ours: dict[Any, Any]) -> Iterator[None]:
    def shown(default: Any) -> Any:
        return ours.get(default, default) if callable(default) else default

    before = getattr(function, kind)
    match before:
        case dict():
            setattr(function, kind, {name: shown(default) for name, default in before.items()})
        case tuple():
            setattr(function, kind, tuple(map(shown, before)))
    try:
        yield
    finally:
        setattr(function, kind, before)


class _Waits:
    """How a loop waits: for what is under way elsewhere as ever, for a timer not at all."""

    def __init__(self, loop: AbstractEventLoop, clocks: _Clocks) -> None:
        self._loop: Any = loop
        self._clocks = clocks
        self._select = self._loop._selector.select
        self._run_in_executor = self._loop.run_in_executor
        self._elsewhere = 0

    def select(self, timeout: float | None = None) -> Any:
        ready = self._select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self._elsewhere:
            return self._select(timeout)
        self._clocks.skipped_s += timeout
        return []

    def run_in_executor(self, *arguments: Any) -> asyncio.Future[Any]:
        self._elsewhere += 1
        future: asyncio.Future[Any] = self._run_in_executor(*arguments)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        self._elsewhere -= 1

    @contextmanager
    def made(self) -> Iterator[None]:
        with (
            mock.patch.object(self._loop._selector, "select", self.select),
            mock.patch.object(self._loop, "run_in_executor", self.run_in_executor),
        ):
            yield


@asynccontextmanager
async def skipped_waits() -> AsyncIterator[None]:
    """In this block the running loop skips its waits."""
    clocks = _Clocks()
    with clocks.shown(), _Waits(asyncio.get_running_loop(), clocks).made():
        yield
