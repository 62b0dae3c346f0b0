# SPDX-License-Identifier: Apache-2.0
"""What rich prints: sentences, tables and colours on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, Any

import rich.console
from rich.cells import cell_len
from rich.console import ConsoleOptions
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from dovetail.cli.table import ENDLESS, Table

_HEADING = Style(bold=True)
_WORD = re.compile(r"(?:^\s+)?\S+\s*")


class RichConsole(rich.console.Console):
    """It does not colour numbers and paths, and `:name:` is not an emoji."""

    def __init__(self, *, stderr: bool, file: IO[str] | None, markup: bool) -> None:
        super().__init__(stderr=stderr, file=file, markup=markup, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which every command ends with; rich would exit with 1."""
        self.quiet = True
        raise BrokenPipeError

    def print(self, *objects: Any, **options: Any) -> None:
        """As in rich, but names are neither cut nor folded."""
        wrap = self.is_terminal
        shown = (_Rows(one) if isinstance(one, Table) else _Sentence(one) if wrap and isinstance(one, str) else one
                 for one in objects)  # fmt: skip
        super().print(*shown, **({"crop": False, "soft_wrap": not wrap} | options))


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


class _Rows:
    """A table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> Iterator[Segment]:
        def read(cell: str) -> str | Text:
            """Plain if it had no markup."""
            return console.render_str(cell) if "[" in cell or "\\" in cell else cell

        def wrapped(cell: str | Text, width: int) -> list[Text]:
            """The lines of a cell in a column of this width."""
            text = Text(cell) if isinstance(cell, str) else cell
            return list(text.wrap(console, max(width, 1), overflow="fold"))

        room = options.max_width if console.is_terminal else ENDLESS
        for line in self._table.lines(_heading, read, wrapped, room):
            found: list[Segment] = []
            text = ""
            for before, cell, after in line:
                text += before
                if isinstance(cell, str):
                    text += cell
                else:
                    found += [Segment(text), *cell.render(console)]
                    text = ""
                text += after
            yield from _without_blanks([*found, Segment(text)])


def _heading(text: str) -> str | Text:
    return Text.styled(text, _HEADING)


def _without_blanks(line: list[Segment]) -> Iterator[Segment]:
    """The line without the blanks at its end, and the end of the line."""
    while line and not line[-1].text.strip():
        line.pop()
    if line:
        line[-1] = Segment(line[-1].text.rstrip(), *line[-1][1:])
    yield from (*line, Segment.line())
