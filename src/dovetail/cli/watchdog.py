# SPDX-License-Identifier: Apache-2.0
"""A watch over the event loop from outside: a step that does not end ends the process.

Nothing that runs on the loop can tell that it stands still, and no thread of Python's either where compiled code keeps
the interpreter lock. So faulthandler's own thread does, which needs neither: the loop puts it off again and again, and
where it does not for `limit_s`, "Timeout" and the stacks of all threads go to standard error, and the process ends with
exit code 1. Whoever runs it starts it anew. Suspended (SIGSTOP), a process is ended when it goes on.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_PART = 10
"""The loop shows that it turns so many times within the limit."""


def watchdog_option(command: F) -> F:
    """Gives the command `watchdog_s`."""
    return click.option(
        "--watchdog",
        "watchdog_s",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        help="Seconds after which a step that does not end ends the process, with its stack; 0 for never.",
    )(command)


@contextmanager
def watched(limit_s: float) -> Iterator[None]:
    """The running loop is watched until the end of the block, unless `limit_s` is 0."""
    if not limit_s or sys.__stderr__ is None:
        yield
        return
    loop, stderr = asyncio.get_running_loop(), sys.__stderr__
    timer: asyncio.TimerHandle

    def turn() -> None:
        nonlocal timer
        faulthandler.dump_traceback_later(limit_s, exit=True, file=stderr)
        timer = loop.call_later(limit_s / _PART, turn)

    turn()
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()
