# SPDX-License-Identifier: Apache-2.0
"""Commands that run until they are told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

import click
import uvloop

from dovetail.cli.watchdog import watched


def serve(work: Coroutine[Any, Any, None], log: logging.Logger, *, watchdog_s: float = 0.0) -> None:
    """Do it until SIGTERM or SIGINT. What it raises is raised, as a group where it is one. `watchdog_s`: see
    `watchdog`; 0 for none."""

    async def until_told() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            with watched(watchdog_s):
                await task
        except asyncio.CancelledError:
            log.info("told to stop")

    uvloop.run(until_told())


def first_of(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The first error inside, however deep the groups are nested."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def address(value: str) -> str:
    """HOST:PORT, or nothing. Raises BadParameter."""
    _, colon, port = value.rpartition(":")
    if value and not (colon and port.isdecimal() and 0 <= int(port) < 65536):
        raise click.BadParameter("needs HOST:PORT with a port below 65536, such as 127.0.0.1:10351")
    return value
