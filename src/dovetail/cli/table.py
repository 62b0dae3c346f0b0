# SPDX-License-Identifier: Apache-2.0
"""Tables of columns, laid out for a pipe or a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from msgspec import Struct

C = TypeVar("C")
"""The cells of a table: texts, or on a terminal rich's."""
ENDLESS = 1 << 20
_GAP = 2
"""Blanks between two columns."""


class TableColumn(Struct, frozen=True):
    """A column of a table. Cells of `wraps` break between words where the terminal is too narrow."""

    heading: str
    wraps: bool = False
    to_the_right: bool = False


def prose(heading: str) -> TableColumn:
    """A column of sentences, which break between words."""
    return TableColumn(heading, wraps=True)


def right(heading: str) -> TableColumn:
    """A column of numbers, aligned to the right."""
    return TableColumn(heading, to_the_right=True)


class Table:
    """A table without lines. A column that is a string is the heading of names or numbers, which never break; `prose`
    and `right` make other columns. Cells are markup.

    It is laid out here, as rich takes two seconds for a thousand rows. `widths` are the least widths of the columns;
    after it was printed they are those that it had, for a further table below it."""

    def __init__(self, *columns: str | TableColumn, show_header: bool = True, gap: int = _GAP) -> None:
        self._columns = [TableColumn(one) if isinstance(one, str) else one for one in columns]
        self._show_header, self._gap = show_header, gap
        self._rows: list[Sequence[str]] = []
        self.widths: Sequence[int] = [0] * len(self._columns)

    @property
    def row_count(self) -> int:
        return len(self._rows)

    def add_row(self, *cells: str) -> None:
        """Add a row; cells that are missing at its end are empty."""
        missing = [""] * (len(self._columns) - len(cells))
        self._rows.append((*cells, *missing))

    def piped(self, read: Callable[[str], str]) -> Iterator[str]:
        """Its lines in a pipe, of cells as they are read."""
        for line in self.lines(str, read, lambda cell, _: cell.split("\n"), ENDLESS):
            yield "".join(f"{before}{cell}{after}" for before, cell, after in line).rstrip()

    def lines(
        self, head: Callable[[str], C], read: Callable[[str], C], wrap: Callable[[C, int], Sequence[C | str]], room: int
    ) -> Iterator[list[tuple[str, C | str, str]]]:
        """Its lines: each heading and cell, as it is read and wrapped, with the blanks before and after it."""
        rows = [[read(cell) for cell in row] for row in self._rows]
        if self._show_header:
            rows.insert(0, [head(one.heading) for one in self._columns])
        self.widths = widths = self._fitting(rows, room)
        for row in rows:
            lines: list[Sequence[C | str]] = [row]
            if any(_width(cell) > width or "\n" in str(cell) for cell, width in zip(row, widths, strict=True)):
                wrapped = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
                lines = list(zip_longest(*wrapped, fillvalue=""))
            for line in lines:
                yield list(self._padded(line, widths))

    def _fitting(self, rows: Sequence[Sequence[C]], room: int) -> list[int]:
        """The widths of the columns. The widest columns that may wrap are narrowed until all columns fit into `room`,
        but not below their longest words. If they do not fit then, no column is narrowed: a row that goes on in the
        next line of a terminal is easier to read than many such lines."""
        cells = list(zip(*rows, strict=True)) or [()] * len(self._columns)
        widths = [max(known, *map(_width, column), 0) for known, column in zip(self.widths, cells, strict=True)]
        room -= self._gap * (len(widths) - 1)
        if sum(widths) <= room:
            return widths
        whole = least = tuple(widths)
        for number, one in enumerate(self._columns):
            if one.wraps:
                words = (word for cell in cells[number] for word in str(cell).split())
                least = (*least[:number], max(map(_columns_of, words), default=0), *least[number + 1 :])
        for level in range(max(whole), 0, -1) if sum(least) <= room else ():
            widths = [max(low, min(high, level)) for low, high in zip(least, whole, strict=True)]
            if sum(widths) <= room:
                break
        return widths

    def _padded(self, cells: Sequence[C | str], widths: Sequence[int]) -> Iterator[tuple[str, C | str, str]]:
        gap = " " * self._gap
        for cell, width, column in zip(cells, widths, self._columns, strict=True):
            blanks = " " * (width - _width(cell))
            yield (blanks, cell, gap) if column.to_the_right else ("", cell, blanks + gap)


def _width(cell: object) -> int:
    """The width of its longest line."""
    text = str(cell)
    if text.isascii() and "\n" not in text:
        return len(text)
    return max(map(_columns_of, text.splitlines()), default=0)


def _columns_of(text: str) -> int:
    """The columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
