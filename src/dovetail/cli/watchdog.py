# SPDX-License-Identifier: Apache-2.0
"""A watchdog of the event loop: if the loop is blocked for too long, the process ends.

Nothing on the loop can notice that the loop is blocked, nor can a Python thread if compiled code holds the interpreter
lock. So the watchdog is the thread of faulthandler, which needs neither. The loop restarts its timer again and again.
If it does not for `limit_s`, "Timeout" and the stacks of all threads go to standard error, and the process ends with
exit code 1, to be restarted by the kubelet. A process that was suspended (SIGSTOP) ends when it continues.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import asyncio

F = TypeVar("F", bound=Callable[..., Any])

_RESTARTS_PER_LIMIT = 10
"""How often the loop restarts the timer within the limit."""


def watchdog_option(command: F) -> F:
    """The option `--watchdog`; its value is `watchdog_s`."""
    return click.option(
        "--watchdog",
        "watchdog_s",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        help="Seconds after which a blocked event loop ends the process, with its stacks; 0 for never.",
    )(command)


@contextmanager
def watched(limit_s: float) -> Iterator[None]:
    """Watch the running loop until the end of the block, unless `limit_s` is 0."""
    if not limit_s or sys.__stderr__ is None:
        yield
        return
    import asyncio

    loop, stderr = asyncio.get_running_loop(), sys.__stderr__
    timer: asyncio.TimerHandle

    def restart() -> None:
        nonlocal timer
        faulthandler.dump_traceback_later(limit_s, exit=True, file=stderr)
        timer = loop.call_later(limit_s / _RESTARTS_PER_LIMIT, restart)

    restart()
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()
