# SPDX-License-Identifier: Apache-2.0
"""Sentences and tables on the console. A name is never cut.

Rules
- If the output is not a terminal, nothing is wrapped: each sentence and each row is one line, so that `grep` finds a
  name and `awk` a column.
- On a terminal, sentences and columns of sentences break between words. Names stay whole: a row that is wider than the
  terminal continues in its next line, as rows of kubectl do.
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
"""The most blanks between two columns."""


class Console(rich.console.Console):
    """Standard output, standard error or a file. It does not colour numbers and paths, and `:name:` is not an emoji."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, markup: bool = True) -> None:
        super().__init__(stderr=stderr, file=file, markup=markup, highlight=False, emoji=False)

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
        text = console.render_str(self._text)
        longest = console.measure(text, options=options.update(width=_ENDLESS)).minimum
        yield from _without_blanks(console.render(text, options.update(width=max(options.max_width, longest))))


def prose(heading: str) -> Column:
    """A column of sentences, which break between words."""
    return Column(heading, overflow="fold")


def right(heading: str) -> Column:
    """A column of numbers, aligned to the right."""
    return Column(heading, justify="right", no_wrap=True, overflow="crop")


class Table(rich.table.Table):
    """A table without lines. A column that is a string is the heading of names or numbers, which never break; `prose`
    and `right` make other columns."""

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
    """The lines without the blanks at their ends."""
    for line in Segment.split_lines(rendered):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), *line[-1][1:])
        yield from (*line, Segment.line())
