# SPDX-License-Identifier: Apache-2.0
"""The log of commands that run until they are stopped: one line on standard error for each record, as text or JSON.

Rules
- As text, a line has local time, level, logger and message. As JSON, it is one object with `time` (RFC 3339, UTC),
  `level`, `logger`, `message`, `error` with the traceback if there is one, and further fields of the record
  (`extra={"fields": ...}`), such as `pod` and `node` of a bind.
- The scheduler logs each bind, so a line must cost only microseconds: the text of a second is formatted once and used
  for all records of that second, and a record does not look up its source line, thread and process.
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
    """The options `--log-level` and `--log-format`, whose values `start_log` takes."""
    level = click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="The least level that is logged.",
    )
    form = click.option(
        "--log-format", type=click.Choice((TEXT, JSON)), default=TEXT, show_default=True,
        help="Text lines, or one JSON object per line.",
    )  # fmt: skip
    return level(form(command))


def start_log(level: str, form: str = TEXT) -> None:
    """Log to standard error, from this level on."""
    # The documented way to stop the logging module from looking up the source line of each record.
    logging._srcfile = None
    logging.setLogRecordFactory(_Record)
    handler = _Lines()
    handler.setFormatter(_Json() if form == JSON else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Record(logging.LogRecord):
    """A record with only what the formatters below read, and those of libraries with a handler of their own, as
    uvicorn: these call logging.Formatter.format. logging itself reads `filename` and `lineno` where it reports that a
    record cannot be formatted."""

    filename, lineno = "", 0
    exc_text = stack_info = None

    def __init__(
        self, name: str, level: int, path: str, line: int, msg: object, args: Any, exc_info: Any, *_: object
    ) -> None:
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        # logging's rule: a single mapping has the values of %(name)s in the message.
        self.msg, self.args, self.exc_info = msg, args[0] if args and isinstance(args[0], Mapping) else args, exc_info
        self.created = time.time()


class _Lines(logging.StreamHandler[TextIO]):
    """A handler that does not flush, as standard error writes each line at once."""

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
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()
