# SPDX-License-Identifier: Apache-2.0
"""The store of history that a command reads, and the period of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dovetail.history.records import Period
    from dovetail.history.sqlite.reader import SqliteReader
    from dovetail.history.store import HistoryReader

store_option = click.option(
    "--store", metavar="FILE", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The file of the history, which `dovetail collector` or `simulate --history` writes.",
)  # fmt: skip


@contextmanager
def opened(store: Path) -> Iterator[SqliteReader]:
    """The history in the file. Raises ClickException, also for what goes wrong while it is read."""
    from dovetail.history.sqlite.reader import SqliteReader
    from dovetail.history.store import StoreError

    try:
        reader = SqliteReader(store)
        try:
            yield reader
        finally:
            reader.close()
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def last(reader: HistoryReader, seconds: float) -> Period:
    """So long a period up to the time up to which all is known."""
    from dovetail.history.records import Period

    known = reader.known()
    return Period(max(known.start_ms, known.end_ms - round(seconds * 1000)), known.end_ms)
