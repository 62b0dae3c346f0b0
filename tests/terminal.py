# SPDX-License-Identifier: Apache-2.0
"""Terminals that tests print on: theirs wrap, pipes do not."""

from __future__ import annotations

import io
from collections.abc import Callable

import click

from dovetail.cli.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def environment(columns: int) -> dict[str, str]:
    """In which a command prints as on a terminal of so many columns that knows no colours."""
    return {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": str(columns), "LINES": "50"}


def on_terminal(show: Callable[[Console], None], columns: int) -> str:
    """What stands on a terminal then, without colours."""
    out = Terminal()
    console = Console(file=out)
    console.rich.size = (columns, 50)
    show(console)
    return click.unstyle(out.getvalue())
