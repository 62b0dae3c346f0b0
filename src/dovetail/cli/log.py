# SPDX-License-Identifier: Apache-2.0
"""The log of programs that run on: a line on standard error for each record, for people or for programs.

Rules
- As text a line is time, level, logger, message, the time that of the machine. As JSON it is one object with `time`
  (RFC 3339, UTC), `level`, `logger`, `message`, `error` where there is a traceback, and what the record says more
  (`extra={"fields": ...}`), such as `pod` and `node` of a bind.
- A scheduler logs each bind, so a line costs microseconds: of the time only what is below a second is written anew, and
  a record holds what a line shows, not which line of the source, thread or process it is of.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO, TypeVar

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
    # Of Python's own optimizations the one that spares looking for the line of the source.
    logging._srcfile = None
    logging.setLogRecordFactory(_Record)
    handler = _Lines()
    handler.setFormatter(_Json() if form == JSON else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Record(logging.LogRecord):
    """What the formatters below read of one; that it is of no file is for reports of errors in formatting it."""

    filename, lineno = "", 0

    def __init__(
        self, name: str, level: int, path: str, line: int, msg: object, args: Any, exc_info: Any, *_: object
    ) -> None:
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        # A mapping is for names in the message.
        self.msg, self.args, self.exc_info = msg, args[0] if args and isinstance(args[0], Mapping) else args, exc_info
        self.created = time.time()


class _Lines(logging.StreamHandler[TextIO]):
    """Standard error writes each line at once, so nothing is to be flushed."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


class _Text(logging.Formatter):
    """`2026-01-31 12:00:00,123 INFO dovetail.scheduler ...`"""

    def __init__(self) -> None:
        super().__init__()
        self._second, self._shown = 0, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._shown = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._shown},{int(record.created * 1000) % 1000:03d}"

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
