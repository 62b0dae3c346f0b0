# SPDX-License-Identifier: Apache-2.0
"""Tables of prices in CSV: their lines and cells, and what is wrong with which.

Rules: the first line names the columns, in any order. Blank lines are skipped, and with `comments` those that begin
with #.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from datetime import date
from decimal import Decimal

from msgspec import Struct

NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class PriceError(Exception):
    """A problem of a price file. `line` counts from 1; `column` is "" if the problem is not in one column."""

    def __init__(self, file: str, line: int, column: str, rule: str) -> None:
        super().__init__(file, line, column, rule)
        self.file, self.line, self.column, self.rule = file, line, column, rule

    def __str__(self) -> str:
        where = f", column {self.column}" if self.column else ""
        return f"{self.file}:{self.line}{where}: {self.rule}"


class PriceRow(Struct, frozen=True):
    """A line of the table: its cells by column. A column that the file does not have is empty."""

    cells: dict[str, str]
    file: str
    line: int

    def wrong(self, column: str, expected: str) -> PriceError:
        return PriceError(self.file, self.line, column, f"{self.cells[column]!r} is not {expected}")

    def text(self, column: str) -> str:
        if not self.cells[column]:
            raise self.wrong(column, "a name")
        return self.cells[column]

    def scaled(self, column: str, scale: int, what: str) -> int:
        """A number above 0, times `scale` and rounded down."""
        cell = self.cells[column]
        found = int(Decimal(cell) * scale) if NUMBER.fullmatch(cell) else 0
        if found <= 0:
            raise self.wrong(column, f"{what} above 0, such as 8 or 0.5")
        return found

    def day(self, column: str) -> str:
        cell = self.cells[column]
        try:
            if not _DATE.fullmatch(cell):
                raise ValueError
            date.fromisoformat(cell)
        except ValueError as error:
            raise self.wrong(column, "a date such as 2026-07-20") from error
        return cell


def head_of(text: str) -> list[str]:
    """The names of the columns, or what stands in their place."""
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return [name.strip() for name in first.split(",")]


def rows(
    text: str, file: str, columns: Collection[str], needed: Collection[str], comments: bool = False
) -> Iterator[PriceRow]:
    """The rows of a CSV file with some of `columns`, all that are `needed` among them. Raises PriceError."""
    kept = ("" if comments and line.startswith("#") else line for line in text.splitlines())
    lines = csv.reader(kept, strict=True)
    try:
        head: list[str] = []
        for cells in lines:
            if not cells:
                continue
            if not head:
                head = [name.strip() for name in cells]
                _check_head(head, file, lines.line_num, columns, needed)
                continue
            if len(cells) != len(head):
                raise PriceError(file, lines.line_num, "", f"has {len(cells)} cells, the first line names {len(head)}")
            found = dict.fromkeys(columns, "") | dict(zip(head, (cell.strip() for cell in cells), strict=True))
            yield PriceRow(found, file, lines.line_num)
        if not head:
            _check_head(head, file, 1, columns, needed)
    except csv.Error as error:
        raise PriceError(file, lines.line_num, "", f"is not CSV: {error}") from error


def _check_head(head: list[str], file: str, line: int, columns: Collection[str], needed: Collection[str]) -> None:
    for name in head:
        if name not in columns or head.count(name) > 1:
            rule = "is there twice" if name in columns else f"is not known; expected are {', '.join(columns)}"
            raise PriceError(file, line, repr(name), rule)
    for name in needed:
        if name not in head:
            raise PriceError(file, line, name, f"is missing; the first line must name {', '.join(needed)}")
