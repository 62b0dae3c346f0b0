# SPDX-License-Identifier: Apache-2.0
"""The loop of `dovetail top` on a terminal: readings, keys and sizes in, frames out.

Rules
- A frame is one write: each line over the old one, and nothing is cleared first, so nothing flickers; terminals that
  know synchronized output show it at once. It is written when something has changed.
- A reading that fails is shown, and tried again; the last one stays. Keys are answered while a reading is under way.
- The terminal gets back its screen, its cursor and its keys at any end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

from dovetail.cli.top.keys import pressed
from dovetail.cli.top.lines import painted
from dovetail.cli.top.screen import Screen
from dovetail.kube.api.errors import KubeError
from dovetail.views.top_rows import TopReading

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
_TICK_S = 1.0


async def live(
    screen: Screen, read: Callable[[], Awaitable[TopReading]], interval_s: float, *, colours: bool = True
) -> bool:
    """Show readings until a key ends it: then True, and False after an interrupt (Ctrl-C)."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    changed.set()
    state: list[TopReading | None] = [None]

    async def reading() -> None:
        while True:
            begun_s = time.monotonic()
            if not screen.paused:
                try:
                    state[0] = await read()
                    screen.fault = ""
                except KubeError as error:
                    screen.fault = str(error)
                changed.set()
            await asyncio.sleep(max(0.1, interval_s - (time.monotonic() - begun_s)))

    async def typing(keys: asyncio.Queue[str]) -> None:
        while screen.press(await keys.get()):
            changed.set()

    async def drawing() -> None:
        while True:
            await changed.wait()
            changed.clear()
            _draw(screen, state[0], colours=colours)

    with _terminal(), pressed(sys.stdin.fileno()) as keys:
        interrupted = asyncio.Event()
        loop.add_signal_handler(signal.SIGWINCH, changed.set)
        loop.add_signal_handler(signal.SIGINT, interrupted.set)
        parts = (typing(keys), reading(), drawing(), interrupted.wait())
        tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(one) for one in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return not interrupted.is_set()
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGINT)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _draw(screen: Screen, reading: TopReading | None, *, colours: bool) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    lines = screen.frame(reading, size.columns, size.lines)
    text = "\x1b[K\r\n".join(painted(line, colours=colours) for line in lines)
    sys.stdout.write(f"{_BEGIN}{text}\x1b[K{_END}")
    sys.stdout.flush()


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
