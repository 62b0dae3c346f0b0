# SPDX-License-Identifier: Apache-2.0
"""What commands print for people: lines and tables in which no name is ever cut.

Rules
- Where the output is no terminal nothing is wrapped: a sentence is a line and a row is a row, however long they are, so
  that `grep` finds a name and `awk` a column.
- On a terminal sentences, and columns of them, break between words. Names stay whole: a row that is too long for the
  terminal goes on in its next line, as rows of kubectl do.
- No line ends in blanks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, cast

import rich.console
import rich.table
from rich.console import ConsoleOptions
from rich.segment import Segment
from rich.table import Column

_ENDLESS = 1 << 20
_GAP = 2
"""The most that stands between two columns."""


class Console(rich.console.Console):
    """Standard output, standard error or a file. Numbers and paths are not coloured, and `:name:` is no emoji."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, markup: bool = True) -> None:
        super().__init__(stderr=stderr, file=file, markup=markup, highlight=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """As in rich, but that nothing is cut or folded."""
        whole = self.is_terminal
        shown = (_Sentence(one) if whole and isinstance(one, str) else one for one in objects)
        super().print(*shown, **({"crop": False, "soft_wrap": not whole} | options))

    def print_rows(self, table: Table, rows: Sequence[Sequence[str]], most: int) -> None:
        """The table with these rows: on a terminal the first ones, and how many more there are."""
        shown = rows[:most] if self.is_terminal else rows
        for row in shown:
            table.add_row(*row)
        self.print(table)
        if len(shown) < len(rows):
            self.print(f"and {len(rows) - len(shown):,} more: a pipe and -o json have them all")


class _Sentence:
    """Text that breaks between words and nowhere else."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> Iterator[Segment]:
        text = console.render_str(self._text)
        longest = console.measure(text, options=options.update(width=_ENDLESS)).minimum
        yield from _without_blanks(console.render(text, options.update(width=max(options.max_width, longest))))


def prose(heading: str) -> Column:
    """A column of sentences, which break between words."""
    return Column(heading, overflow="fold")


def right(heading: str) -> Column:
    """A column of numbers that end below each other."""
    return Column(heading, justify="right", no_wrap=True, overflow="crop")


class Table(rich.table.Table):
    """Rows without lines between them. Columns given by their headings hold names and numbers, which never break;
    `prose` and `right` make others."""

    def __init__(self, *columns: str | Column, **options: Any) -> None:
        each = (Column(one, no_wrap=True, overflow="crop") if isinstance(one, str) else one for one in columns)
        super().__init__(*each, **({"box": None, "pad_edge": False} | options))

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> Iterator[Segment]:
        endless = options.update(width=_ENDLESS)
        for column in self.columns:
            cells = [*([column.header] if self.show_header else []), *column.cells]
            sizes = [console.measure(cell, options=endless) for cell in cells]
            whole = column.no_wrap or not console.is_terminal
            column.min_width = max((size.maximum if whole else size.minimum for size in sizes), default=0)
        least = sum((column.min_width or 0) + _GAP for column in self.columns)
        room = options.update(width=max(options.max_width, least))
        rendered = cast(Iterator[Segment], super().__rich_console__(console, room))
        yield from _without_blanks(rendered)


def _without_blanks(rendered: Iterable[Segment]) -> Iterator[Segment]:
    """The same lines, without what is blank at their ends."""
    for line in Segment.split_lines(rendered):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), *line[-1][1:])
        yield from (*line, Segment.line())
