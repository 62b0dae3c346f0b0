# SPDX-License-Identifier: Apache-2.0
"""Sentences and tables on the console. A name is never cut.

Rules
- If the output is not a terminal, nothing is wrapped: each sentence and each row is one line, so that `grep` finds a
  name and `awk` a column. Then rich is not imported: it takes a sixth of the time of a command.
- On a terminal, sentences and columns of sentences break between words. Names stay whole: a row that is wider than the
  terminal whatever breaks continues in its next line, as rows of kubectl do.
- No line ends in blanks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from dovetail.cli.markup import plain
from dovetail.cli.table import Table as Table
from dovetail.cli.table import TableColumn as TableColumn
from dovetail.cli.table import prose as prose
from dovetail.cli.table import right as right

if TYPE_CHECKING:
    from dovetail.cli.terminal import RichConsole

_CONTROLS = dict.fromkeys((7, 8, 11, 12, 13))
"""Control characters that rich prints nowhere: bell, backspace, vertical tab, form feed, carriage return."""


class Console:
    """Standard output, standard error or a file. What is printed is markup, if not `markup` is false."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, markup: bool = True) -> None:
        self._stderr, self._file, self._markup = stderr, file, markup

    @property
    def file(self) -> IO[str]:
        return self._file or (sys.stderr if self._stderr else sys.stdout)

    @property
    def is_terminal(self) -> bool:
        """As rich finds it."""
        compatible, forced = os.environ.get("TTY_COMPATIBLE", ""), os.environ.get("FORCE_COLOR")
        if compatible in ("0", "1"):
            return compatible == "1"
        if forced is not None:
            return forced != ""
        return self.file is not None and self.file.isatty()

    @cached_property
    def rich(self) -> RichConsole:
        """rich's console of the same output."""
        from dovetail.cli.terminal import RichConsole

        return RichConsole(stderr=self._stderr, file=self._file, markup=self._markup)

    @property
    def width(self) -> int:
        """In columns; in a pipe it is 80, or $COLUMNS."""
        return self.rich.width

    def print(self, *objects: Any, markup: bool | None = None, **options: Any) -> None:
        """Print texts and tables, and on a terminal what else rich prints, with its options. `markup` is that of the
        console if it is None."""
        if self.is_terminal or not all(isinstance(one, str | Table) for one in objects):
            self.rich.print(*objects, markup=markup, **options)
            return
        read = _plain if (self._markup if markup is None else markup) else _printed
        lines = [line for one in objects if isinstance(one, Table) for line in one.piped(read)]
        texts = [read(one) for one in objects if isinstance(one, str)]
        lines += " ".join(texts).split("\n") if texts or not objects else ()
        self.file.write("".join(f"{line.expandtabs(8)}\n" for line in lines))
        self.file.flush()

    def print_rows(self, table: Table, rows: Sequence[Sequence[str]], most: int) -> None:
        """Print the table with these rows; on a terminal the first `most`, and the number of the others."""
        shown = rows[:most] if self.is_terminal else rows
        for row in shown:
            table.add_row(*row)
        self.print(table)
        if len(shown) < len(rows):
            self.print(f"and {len(rows) - len(shown):,} more; a pipe or -o json shows all")


def _plain(text: str) -> str:
    return _printed(plain(text))


def _printed(text: str) -> str:
    return text.translate(_CONTROLS)
