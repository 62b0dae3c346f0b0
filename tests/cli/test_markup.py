# SPDX-License-Identifier: Apache-2.0
"""Markup is read as rich reads it, and a pipe gets what rich writes into one."""

from __future__ import annotations

import io

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich import markup as rich_markup
from rich.errors import MarkupError

from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.markup import escape, plain
from tests.terminal import Terminal

MARKUP = st.lists(st.sampled_from([*"ab[]\\/#@ =\n\r\aé字", "[bold]", "[/]", "[/bold]", "\\[", "a/b"])).map("".join)


@given(MARKUP)
def test_text_is_escaped_as_by_rich(text: str) -> None:
    assert escape(text) == rich_markup.escape(text)


@given(MARKUP)
def test_without_colours_the_text_is_that_of_rich(text: str) -> None:
    try:
        shown = rich_markup.render(text, emoji=False).plain
    except MarkupError:
        return
    controls = dict.fromkeys((7, 8, 11, 12, 13))
    assert plain(text).translate(controls) == shown.translate(controls)


@given(MARKUP, st.lists(st.tuples(MARKUP, MARKUP, MARKUP), max_size=3), st.booleans())
@pytest.mark.slow
def test_a_pipe_gets_what_rich_writes(text: str, rows: list[tuple[str, str, str]], marked: bool) -> None:
    table = Table("name", right("[number]"), prose("why"))
    for row in rows:
        table.add_row(*(cell.translate({7: None, 13: None}) for cell in row))
    for one in (text, table):
        ours, theirs = io.StringIO(), io.StringIO()
        try:
            Console(file=theirs, markup=marked).rich.print(one)
        except MarkupError:
            continue
        Console(file=ours, markup=marked).print(one)
        assert ours.getvalue() == theirs.getvalue()


@pytest.mark.parametrize("environment", [
    {}, {"FORCE_COLOR": "1"}, {"FORCE_COLOR": ""}, {"TTY_COMPATIBLE": "1"}, {"TTY_COMPATIBLE": "0", "FORCE_COLOR": "1"},
])  # fmt: skip
@pytest.mark.parametrize("tty", [False, True])
def test_a_terminal_is_what_rich_holds_for_one(
    environment: dict[str, str], tty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    out.isatty = lambda: tty  # type: ignore[method-assign]
    console = Console(file=out)
    assert console.is_terminal == console.rich.is_terminal


def test_without_markup_a_terminal_shows_tables_as_they_are_written() -> None:
    table = Table("[name]")
    table.add_row("[bold]x[/bold]")
    out = Terminal()
    console = Console(file=out, markup=False)
    console.rich.size = 80, 50
    console.print(table)
    assert click.unstyle(out.getvalue()).split() == ["[name]", "[bold]x[/bold]"]
