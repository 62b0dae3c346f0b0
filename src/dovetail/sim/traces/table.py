# SPDX-License-Identifier: Apache-2.0
"""A reader of CSV with a header, plain or gzip, row by row. Malformed input raises TraceError with file and line.

Rules
- A file with a name that ends in .gz is gzip; the text is UTF-8. Blank lines and unused columns are ignored.
- Numbers are plain digits: a sign, an exponent or a unit is an error.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from importlib.resources.abc import Traversable
from pathlib import Path

from msgspec import Struct

from dovetail.sim.traces.errors import TraceError

_WHOLE = re.compile(r"[0-9]{1,18}")
_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_MOST = 10**18 - 1


class TraceRow(Struct, frozen=True):
    file: str
    line: int
    values: dict[str, str]

    def error(self, field: str, message: str) -> TraceError:
        return TraceError(message, self.file, self.line, field)

    def text(self, field: str) -> str:
        """The cell as text. Raises TraceError if it is empty."""
        value = self.values[field]
        if not value:
            raise self.error(field, "is empty")
        return value

    def whole(self, field: str, least: int = 0, most: int = _MOST) -> int:
        """The cell as an integer from `least` to `most`. Raises TraceError."""
        text = self.values[field]
        if _WHOLE.fullmatch(text):
            value = int(text)
            if least <= value <= most:
                return value
        span = f"from {least} to {most}" if most < _MOST else f"of at least {least}"
        raise self.error(field, f"{text!r} must be a whole number {span}, in digits only")

    def milliseconds(self, field: str) -> int:
        """The cell, seconds with or without decimals, rounded to milliseconds. Raises TraceError."""
        text = self.values[field]
        if not _SECONDS.fullmatch(text):
            raise self.error(field, f"{text!r} must be seconds such as 90 or 90.5, in digits only")
        return round(Decimal(text) * 1000)


def read_rows(path: Path | Traversable, columns: Sequence[str]) -> Iterator[TraceRow]:
    """The rows below the header, which must have at least `columns`. Raises TraceError, also between rows."""
    file, header = str(path), list[str]()
    reader = csv.reader(_lines(path, file), strict=True)
    empty = True
    try:
        for cells in reader:
            line = reader.line_num
            if len(cells) < 2 and not "".join(cells).strip():
                continue
            if not header:
                header = cells
                _check_header(header, columns, file, line)
                continue
            if len(cells) != len(header):
                raise TraceError(f"has {len(cells)} fields where the header has {len(header)}", file, line)
            empty = False
            yield TraceRow(file, line, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise TraceError(f"is not CSV: {error}", file, reader.line_num) from error
    if empty:
        what = "has a header and no row below it" if header else "is empty"
        raise TraceError(f"{what}; needed: a header with {', '.join(columns)}, and rows", file)


def _lines(path: Path | Traversable, file: str) -> Iterator[str]:
    number = 0
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw as content:
            for number, line in enumerate(content, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"cannot be unpacked as gzip after this line: {error}", file, number) from error
    except UnicodeDecodeError as error:
        rule = "save it as UTF-8; if it is gzip, its name must end in .gz"
        raise TraceError(f"is not UTF-8 text ({error.reason}): {rule}", file, number) from error
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file) from error


def _check_header(header: list[str], columns: Sequence[str], file: str, line: int) -> None:
    found = f"found: {', '.join(header)}"
    missing = [column for column in columns if column not in header]
    if missing:
        raise TraceError(f"columns missing: {', '.join(missing)}; {found}", file, line)
    if len(set(header)) < len(header):
        raise TraceError(f"a column is there twice; {found}", file, line)
