# SPDX-License-Identifier: Apache-2.0
"""Commands that run until a signal stops them."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from dovetail.cli.watchdog import watched

F = TypeVar("F", bound=Callable[..., Any])


def serve(work: Coroutine[Any, Any, None], log: logging.Logger, *, watchdog_s: float = 0.0) -> None:
    """Run `work` until SIGTERM or SIGINT; its exceptions are raised. `watchdog_s` is the limit of `watchdog.watched`,
    0 for none."""
    import asyncio

    import uvloop

    async def until_signal() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            with watched(watchdog_s):
                await task
        except asyncio.CancelledError:
            log.info("stopped by a signal")

    uvloop.run(until_signal())


def first_of(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The first error of a group, at any depth."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def address_option(name: str, default: str, help_text: str) -> Callable[[F], F]:
    """An option whose value is HOST:PORT, or empty; anything else is a usage error."""

    def checked(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        _, colon, port = value.rpartition(":")
        if value and not (colon and port.isdecimal() and 0 <= int(port) < 65536):
            raise click.BadParameter("must be HOST:PORT with a port below 65536, such as 127.0.0.1:10351")
        return value

    return click.option(name, default=default, show_default=bool(default), callback=checked, help=help_text)
