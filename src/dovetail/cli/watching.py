# SPDX-License-Identifier: Apache-2.0
"""-w: a list that is read again and again, of which the rows are printed that have changed.

Rules
- The cluster is read as without -w, once in an interval: the next read begins an interval after the last one has ended,
  so that a slow API server is not asked more often. Nothing is watched in between.
- A row is printed again when one of its printed columns has changed. Times do not count: an expected start moves with
  the clock.
- A row that is not in the list any more is printed once more, as Gone.
- A read that fails later than the first is reported on standard error, and tried again after an interval.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar

import click

from dovetail.cli.console import Console
from dovetail.cli.listing import ListColumns, ListForm, ListPrinter, Value, arranged, columns_of
from dovetail.cli.markup import escape
from dovetail.cli.output import span
from dovetail.cli.quantities import DurationParam

T = TypeVar("T")
Read = Callable[[], tuple[Iterable[T], int]]
"""Reads the rows, and the time of the answer (epoch ms). Raises ClickException."""


def watch_options(command: Callable[..., None]) -> Callable[..., None]:
    """-w and --interval; the command gets seconds as `every_s`, 0 without -w."""

    @wraps(command)
    def watching(watch: bool, interval: float, form: ListForm, **rest: Any) -> None:
        if watch and form.whole:
            raise click.UsageError(f"--watch prints rows: -o table, wide, name or csv, not {form.output}")
        command(every_s=interval if watch else 0.0, form=form, **rest)

    every = click.option(
        "--interval", type=DurationParam(), default="10s", show_default=True,
        help="With --watch: the time between two reads of the cluster.",
    )  # fmt: skip
    found: Callable[..., None] = click.option(
        "-w", "--watch", is_flag=True, help="Go on, and print each row that changes, until Ctrl-C."
    )(every(watching))
    return found


def watch_rows(read: Read[T], form: ListForm, listing: ListColumns[T], every_s: float, console: Console) -> None:
    """Print the rows, then those that change, for ever. Raises ClickException where the first read does."""
    printer, before = ListPrinter(form, console), dict[tuple[str, int], T]()
    rows, now_ms = read()
    while True:
        found = dict(named_rows(listing, arranged(form, listing, rows)))
        changed = [
            row
            for key, row in found.items()
            if key not in before or _marks(form, listing, row) != _marks(form, listing, before[key])
        ]
        printer.print(listing, changed, now_ms)
        printer.print(listing.gone(), [row for key, row in before.items() if key not in found], now_ms)
        sys.stdout.flush()
        before = found
        rows, now_ms = _read_again(read, every_s)


def _read_again(read: Read[T], every_s: float) -> tuple[Iterable[T], int]:
    """The next rows."""
    while True:
        time.sleep(every_s)
        try:
            return read()
        except click.ClickException as error:
            again = f"{escape(error.format_message())}: tried again in {span(round(every_s * 1000))}"
            Console(stderr=True).print(f"[yellow]attention:[/yellow] {again}")


def named_rows(listing: ListColumns[T], rows: Iterable[T]) -> Iterator[tuple[tuple[str, int], T]]:
    """The rows by name, and by number where several have one name."""
    numbers: Counter[str] = Counter()
    for row in rows:
        name = listing.name(row)
        numbers[name] += 1
        yield (name, numbers[name]), row


def _marks(form: ListForm, listing: ListColumns[T], row: T) -> list[Value]:
    """What a row is compared by: its columns, and of a time only whether it is known."""
    values = [column.value(row) for column in columns_of(form, listing)]
    return ["known" if isinstance(value, datetime) else value for value in values]
