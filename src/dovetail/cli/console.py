# SPDX-License-Identifier: Apache-2.0
"""Sentences and tables on the console. A name is never cut.

Rules
- If the output is not a terminal, nothing is wrapped: each sentence and each row is one line, so that `grep` finds a
  name and `awk` a column.
- On a terminal, sentences and columns of sentences break between words. Names stay whole: a row that is wider than the
  terminal whatever breaks continues in its next line, as rows of kubectl do.
- No line ends in blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import IO, Any, TypeAlias

import rich.console
from msgspec import Struct
from rich.cells import cell_len
from rich.console import ConsoleOptions
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

_ENDLESS = 1 << 20
_GAP = 2
"""Blanks between two columns."""
_HEADING = Style(bold=True)
_WORD = re.compile(r"(?:^\s+)?\S+\s*")
_Cell: TypeAlias = str | Text


class Console(rich.console.Console):
    """Standard output, standard error or a file. It does not colour numbers and paths, and `:name:` is not an emoji."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, markup: bool = True) -> None:
        super().__init__(stderr=stderr, file=file, markup=markup, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which every command ends with; rich would exit with 1."""
        self.quiet = True
        raise BrokenPipeError

    def print(self, *objects: Any, **options: Any) -> None:
        """As in rich, but names are neither cut nor folded."""
        wrap = self.is_terminal
        shown = (_Sentence(one) if wrap and isinstance(one, str) else one for one in objects)
        super().print(*shown, **({"crop": False, "soft_wrap": not wrap} | options))

    def print_rows(self, table: Table, rows: Sequence[Sequence[str]], most: int) -> None:
        """Print the table with these rows; on a terminal the first `most`, and the number of the others."""
        shown = rows[:most] if self.is_terminal else rows
        for row in shown:
            table.add_row(*row)
        self.print(table)
        if len(shown) < len(rows):
            self.print(f"and {len(rows) - len(shown):,} more; a pipe or -o json shows all")


class _Sentence:
    """Text that breaks only between words."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> Iterator[Segment]:
        for written in console.render_str(self._text).split(allow_blank=True):
            for line in written.divide(_breaks(written.plain, options.max_width)):
                yield from _without_blanks(list(line.render(console)))


def _breaks(line: str, width: int) -> Iterator[int]:
    """Where the line goes on in a next one. A word that is wider than the terminal has a line of its own."""
    used = 0
    for word in _WORD.finditer(line):
        if used and used + cell_len(word.group().rstrip()) > width:
            yield word.start()
            used = 0
        used += cell_len(word.group())


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
        self._rows: list[Sequence[_Cell]] = []
        self.widths: Sequence[int] = [0] * len(self._columns)

    @property
    def row_count(self) -> int:
        return len(self._rows)

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; cells that are missing at its end are empty."""
        missing = [""] * (len(self._columns) - len(cells))
        self._rows.append((*cells, *missing))

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> Iterator[Segment]:
        rows: list[Sequence[_Cell]] = [[_read(console, cell) for cell in row] for row in self._rows]
        if self._show_header:
            rows.insert(0, [Text.styled(one.heading, _HEADING) for one in self._columns])
        self.widths = widths = self._fitting(rows, options.max_width if console.is_terminal else _ENDLESS)
        for row in rows:
            lines: list[Sequence[_Cell]] = [row]
            if any(_width(cell) > width or "\n" in str(cell) for cell, width in zip(row, widths, strict=True)):
                wrapped = [_wrapped(console, cell, width) for cell, width in zip(row, widths, strict=True)]
                lines = list(zip_longest(*wrapped, fillvalue=""))
            for line in lines:
                yield from self._line(console, line, widths)

    def _fitting(self, rows: Sequence[Sequence[_Cell]], room: int) -> list[int]:
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
                least = (*least[:number], max(map(cell_len, words), default=0), *least[number + 1 :])
        for level in range(max(whole), 0, -1) if sum(least) <= room else ():
            widths = [max(low, min(high, level)) for low, high in zip(least, whole, strict=True)]
            if sum(widths) <= room:
                break
        return widths

    def _line(self, console: rich.console.Console, cells: Sequence[_Cell], widths: Sequence[int]) -> Iterator[Segment]:
        line: list[Segment] = []
        text = ""
        for cell, width, column in zip(cells, widths, self._columns, strict=True):
            blanks = " " * (width - _width(cell))
            before, after = (blanks, "") if column.to_the_right else ("", blanks)
            text += before
            if isinstance(cell, str):
                text += cell
            else:
                line.append(Segment(text))
                line += cell.render(console)
                text = ""
            text += after + " " * self._gap
        line.append(Segment(text))
        yield from _without_blanks(line)


def _read(console: rich.console.Console, cell: _Cell) -> _Cell:
    """The cell without its markup: plain if it had none."""
    marked = isinstance(cell, str) and ("[" in cell or "\\" in cell)
    return console.render_str(str(cell)) if marked else cell


def _width(cell: _Cell) -> int:
    """The width of its longest line."""
    text = str(cell)
    if text.isascii() and "\n" not in text:
        return len(text)
    return max(map(cell_len, text.splitlines()), default=0)


def _wrapped(console: rich.console.Console, cell: _Cell, width: int) -> list[Text]:
    """The lines of a cell in a column of this width."""
    text = Text(cell) if isinstance(cell, str) else cell
    return list(text.wrap(console, max(width, 1), overflow="fold"))


def _without_blanks(line: list[Segment]) -> Iterator[Segment]:
    """The line without the blanks at its end, and the end of the line."""
    while line and not line[-1].text.strip():
        line.pop()
    if line:
        line[-1] = Segment(line[-1].text.rstrip(), *line[-1][1:])
    yield from (*line, Segment.line())
