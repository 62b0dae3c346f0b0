# SPDX-License-Identifier: Apache-2.0
"""The log of programs that run on: a line on standard error for each record, for people or for programs.

Rules
- As text a line is time, level, logger, message, the time that of the machine. As JSON it is one object with `time`
  (RFC 3339, UTC), `level`, `logger`, `message`, `error` where there is a traceback, and what the record says more
  (`extra={"fields": ...}`), such as `pod` and `node` of a bind.
- A scheduler logs each bind, so a line costs microseconds: of the time only what is below a second is written anew, and
  nobody asks which line of the source, thread or process it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])

LEVELS = ("debug", "info", "warning", "error")
TEXT, JSON = "text", "json"


def log_options(command: F) -> F:
    """`--log-level` and `--log-format`, for `start_log`."""
    level = click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="The least level that is told.",
    )
    form = click.option(
        "--log-format", type=click.Choice((TEXT, JSON)), default=TEXT, show_default=True,
        help="Lines for people, or one JSON object in each.",
    )  # fmt: skip
    return level(form(command))


def start_log(level: str, form: str = TEXT) -> None:
    """To standard error, from this level on."""
    # As Python's documentation has it under "Optimization".
    for asked in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks", "_srcfile"):
        setattr(logging, asked, None)
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == JSON else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Text(logging.Formatter):
    """`2026-01-31 12:00:00,123 INFO dovetail.scheduler ...`"""

    def __init__(self) -> None:
        super().__init__()
        self._second, self._shown = 0, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._shown = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._shown},{int(record.msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {record.name} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()
