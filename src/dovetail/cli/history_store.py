# SPDX-License-Identifier: Apache-2.0
"""The store of history that a command reads, and the period of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dovetail.history.records import Period
from dovetail.history.store import HistoryReader, StoreError

store_option = click.option(
    "--store", metavar="FILE", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The history of the cluster, as the collector writes it.",
)  # fmt: skip


@contextmanager
def opened(store: Path) -> Iterator[HistoryReader]:
    """The history in the file. Raises ClickException, also for what goes wrong while it is read."""
    from dovetail.history.sqlite.reader import SqliteReader  # type: ignore[import-not-found]

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
    known = reader.known()
    return Period(max(known.start_ms, known.end_ms - round(seconds * 1000)), known.end_ms)
