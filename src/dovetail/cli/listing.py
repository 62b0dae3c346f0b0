# SPDX-License-Identifier: Apache-2.0
"""The conventions of commands that list something: the same options, and the same forms of the answer.

Rules
- A list is a table of columns. Their names are stable: --columns, --sort-by and the first line of csv have them.
- In tables times are relative; in csv, JSON and YAML they are absolute (RFC 3339). An empty cell is - in a table.
- JSON, YAML and JSONPath are of the whole answer, with `apiVersion` and `kind`; an answer that is a list has them in
  each element. csv has all columns, wide ones too; so has the table with -o wide.
- `name` prints of each row the name that other commands take, a line each.
- States have colours, nothing else has; only on a terminal, and not with NO_COLOR.
- Control characters are blanks, in each form but JSON and YAML, which escape them: a row of csv is one line. A text of
  csv that a spreadsheet would run as a formula has a ' before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cli.answer_form import FORM_HELP, JSON, YAML, AnswerForm, metavar, read_output
from dovetail.cli.answer_form import TABLE as _PLAIN
from dovetail.cli.console import Console, Table, TableColumn
from dovetail.cli.output import foreign, printable
from dovetail.views.csv_text import csv_text

if TYPE_CHECKING:
    from dovetail.core.model import Requirement

T = TypeVar("T")
Value: TypeAlias = str | int | float | datetime | None
_WIDE, _CSV, _NAME = "wide", "csv", "name"
_OUTPUTS = (_PLAIN, _WIDE, JSON, YAML, _NAME, _CSV)
_NOTHING, _GONE = "-", "Gone"


class Shown(Struct, frozen=True):
    """How a table is printed: at `now_ms`, and `whole` if nothing may be left out of a cell, as in a pipe."""

    now_ms: int
    whole: bool


class ListColumn(Struct, Generic[T], frozen=True):
    """A column of a list. Scripts get `value`, and rows are sorted by it; None is nothing. `text` is what a table has,
    if it is not the value. `wide` columns are only in wide tables. Cells of `prose` break between words. `styles` are
    the colours of states. `rank` is what rows are sorted by, if that is not the value."""

    name: str
    value: Callable[[T], Value]
    text: Callable[[T, Shown], str] | None = None
    heading: str | None = None
    wide: bool = False
    prose: bool = False
    to_the_right: bool = False
    styles: Mapping[str, str] = {}
    rank: Callable[[T], Value] | None = None


class ListColumns(Struct, Generic[T], frozen=True):
    """The columns of a list. A row is called what the column `named_by` has. With --watch, the column `state` shows
    that a row is not in the list any more."""

    columns: tuple[ListColumn[T], ...]
    named_by: str
    state: str = ""

    def column(self, name: str) -> ListColumn[T]:
        """Raises KeyError."""
        return {one.name: one for one in self.columns}[name]

    def name(self, row: T) -> str:
        return str(self.column(self.named_by).value(row))

    def gone(self) -> ListColumns[T]:
        """The columns of rows that are not in the list any more."""
        shows = [one if one.name != self.state else replace(one, value=_is_gone, text=None) for one in self.columns]
        return replace(self, columns=tuple(shows))


class ListForm(AnswerForm, frozen=True):
    """The form of a list that was asked for. `columns` () are those of the output; `sort_by` "" keeps the order."""

    headers: bool = True
    columns: tuple[str, ...] = ()
    sort_by: str = ""

    @property
    def plain(self) -> bool:
        """Whether nothing was asked for: then a command may print more than one table."""
        return self == TABLE

    @property
    def notes(self) -> bool:
        """Whether sentences may stand below the table."""
        return self.headers and self.output in (_PLAIN, _WIDE)


TABLE = ListForm()
"""The form where nothing was asked for."""


def list_options(
    listing: ListColumns[Any], more: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a list; the command gets a `form` in their place. `more` are forms that it writes itself."""
    names = [one.name for one in listing.columns]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def formed(output: str, no_headers: bool, columns: tuple[str, ...], sort_by: str, **rest: Any) -> None:
            output, template = read_output(output, (*_OUTPUTS, *more))
            form = ListForm(output, template, not no_headers, columns, sort_by)
            if (form.whole or output in more) and (columns or sort_by):
                option = "--columns" if columns else "--sort-by"
                raise click.UsageError(f"{option} goes with -o table, wide, name or csv: {output} has the whole answer")
            command(form=form, **rest)

        found: Callable[..., None] = formed
        for option in reversed(_options(names, (*_OUTPUTS, *more))):
            found = option(found)
        return found

    return decorate


def _options(
    names: Sequence[str], outputs: Sequence[str]
) -> list[Callable[[Callable[..., None]], Callable[..., None]]]:
    return [
        click.option(
            "-o", "--output", metavar=metavar(outputs), default=_PLAIN, show_default=True, help=FORM_HELP,
        ),
        click.option("--no-headers", is_flag=True, help="Print rows alone: no headings, and no sentences below them."),
        click.option(
            "--columns", metavar="NAME,NAME...", callback=lambda _ctx, _param, text: _columns(text, names),
            help=f"The columns of the table or of csv, of {', '.join(names)}.",
        ),
        click.option(
            "--sort-by", metavar="[-]NAME", default="", callback=lambda _ctx, _param, text: _sort_by(text, names),
            help="Sort the rows by this column; with - before it the largest first.",
        ),
    ]  # fmt: skip


def selector_option(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option for a label selector; the command gets its requirements as `labels`."""
    return click.option(
        "-l", "--selector", "labels", metavar="SELECTOR", default="",
        callback=lambda _ctx, _param, value: _requirements(value), help=text,
    )  # fmt: skip


def _requirements(text: str) -> tuple[Requirement, ...]:
    if not text:
        return ()
    from dovetail.apiserver.failures import Failure
    from dovetail.apiserver.selectors import parse_labels

    try:
        return parse_labels(text)
    except Failure as error:
        raise click.BadParameter(str(error)) from error


def _columns(text: str | None, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(_known(one.strip(), names) for one in text.split(",")) if text is not None else ()


def _sort_by(text: str, names: Sequence[str]) -> str:
    return "-" * text.startswith("-") + _known(text.removeprefix("-"), names) if text else ""


def _known(name: str, names: Sequence[str]) -> str:
    """The name of a column. Raises BadParameter."""
    if name in names:
        return name
    from difflib import get_close_matches

    near = get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]}? There" if near else "there"
    raise click.BadParameter(f"there is no column {name!r}; {meant} are {', '.join(names)}")


def write_rows(form: ListForm, listing: ListColumns[T], rows: Iterable[T], now_ms: int, console: Console) -> None:
    """Write the rows as a table, as csv or by their names."""
    ListPrinter(form, console).print(listing, arranged(form, listing, rows), now_ms)


class ListPrinter:
    """Prints rows in a form. What is printed later goes on below: it has no headings, and the same columns."""

    def __init__(self, form: ListForm, console: Console) -> None:
        self._form, self._console = form, console
        self._headers = form.headers
        self._widths: Sequence[int] = ()

    def print(self, listing: ListColumns[T], rows: Sequence[T], now_ms: int) -> None:
        """Print the rows, as at this time (epoch ms)."""
        if self._form.output == _NAME:
            for row in rows:
                click.echo(printable(listing.name(row)))
        elif self._form.output == _CSV:
            self._print_csv(columns_of(self._form, listing), rows)
        elif rows or self._headers:
            shown = Shown(now_ms, self._form.output == _WIDE or not self._console.is_terminal)
            self._print_table(columns_of(self._form, listing), rows, shown)
        self._headers = False

    def _print_csv(self, columns: Sequence[ListColumn[T]], rows: Iterable[T]) -> None:
        """RFC 4180, but lines end with a line feed."""
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        if self._headers:
            writer.writerow([one.name for one in columns])
        for row in rows:
            writer.writerow([csv_cell(one.value(row)) for one in columns])

    def _print_table(self, columns: Sequence[ListColumn[T]], rows: Iterable[T], shown: Shown) -> None:
        made = Table(*map(_heading, columns), show_header=self._headers)
        made.widths = self._widths or made.widths
        for row in rows:
            made.add_row(*[_cell(column, row, shown) for column in columns])
        self._console.print(made)
        self._widths = made.widths


def arranged(form: ListForm, listing: ListColumns[T], rows: Iterable[T]) -> list[T]:
    """The rows in the order that was asked for: those without a value last."""
    if not form.sort_by:
        return list(rows)
    column = listing.column(form.sort_by.removeprefix("-"))
    rank = column.rank or column.value
    keyed = [(rank(row), row) for row in rows]
    known = [pair for pair in keyed if pair[0] not in (None, "")]
    known.sort(key=_first, reverse=form.sort_by.startswith("-"))
    return [row for _, row in known] + [row for key, row in keyed if key in (None, "")]


def _is_gone(row: object) -> str:
    return _GONE


def _first(pair: tuple[Any, T]) -> Any:
    return pair[0]


def columns_of(form: ListForm, listing: ListColumns[T]) -> Sequence[ListColumn[T]]:
    """The columns that are printed."""
    if form.columns:
        return [listing.column(name) for name in form.columns]
    return [one for one in listing.columns if form.output != _PLAIN or not one.wide]


def heading_of(column: ListColumn[T]) -> str:
    """The heading of a column in a table."""
    return column.heading if column.heading is not None else column.name.replace("-", " ")


def cell_of(column: ListColumn[T], row: T, shown: Shown) -> tuple[str, str]:
    """The text of a cell of a table, without control characters, and its style, "" for none."""
    text = column.text(row, shown) if column.text is not None else _absolute(column.value(row))
    return printable(text) or _NOTHING, column.styles.get(text, "")


def _heading(column: ListColumn[T]) -> TableColumn:
    return TableColumn(heading_of(column), column.prose, column.to_the_right)


def _cell(column: ListColumn[T], row: T, shown: Shown) -> str:
    text, style = cell_of(column, row, shown)
    return f"[{style}]{foreign(text)}[/]" if style else foreign(text)


def _absolute(value: Value) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return "" if value is None else printable(str(value))


def csv_cell(value: Value) -> str:
    """A cell of csv. A text that a spreadsheet would run as a formula has a ' before it."""
    text = _absolute(value)
    return csv_text(text) if isinstance(value, str) else text


def time_of(at_ms: int) -> datetime | None:
    """The second of this time; None for 0, not known."""
    return datetime.fromtimestamp(at_ms // 1000, UTC) if at_ms else None
