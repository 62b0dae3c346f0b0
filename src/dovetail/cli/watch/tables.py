# SPDX-License-Identifier: Apache-2.0
"""The rows of a list as cells of text, ready for the screen: the same as the command of that list prints.

Rules: control characters are blanks. The columns are those of a table that is not wide. A row has a key by which it is
found again in the next reading: its name, and a number where several have one name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from rich.cells import cell_len

from dovetail.cli.columns import NODES, QUEUE
from dovetail.cli.jobs import COLUMNS as JOBS
from dovetail.cli.listing import TABLE, ListColumn, ListColumns, Shown, cell_of, columns_of, heading_of
from dovetail.cli.output import gpus, indices
from dovetail.cli.watching import named_rows
from dovetail.views.held_types import HeldPart, NodeHolder

T = TypeVar("T")
_SORTED = 1
"""Room for the arrow of the column that rows are sorted by."""
Key = tuple[str, int]


class GridRow(Struct, frozen=True):
    """A row: its cells as text and style, and what it is sorted by in each column. `name` is as it is in the cluster,
    for a question about it. `nodes` are those that belong to it."""

    key: Key
    name: str
    cells: tuple[tuple[str, str], ...]
    ranks: tuple[Any, ...]
    nodes: tuple[str, ...] = ()


class Grid(Struct, frozen=True):
    """The rows of a list, and its columns: their names, headings, least widths, and whether they are numbers."""

    names: tuple[str, ...]
    headings: tuple[str, ...]
    widths: tuple[int, ...]
    to_the_right: tuple[bool, ...]
    rows: tuple[GridRow, ...]


class ListKind(Struct, frozen=True):
    """A list of the screen. `empty` is shown in place of rows."""

    name: str
    listing: ListColumns[Any]
    empty: str


LISTS = (
    ListKind("jobs", JOBS, "No job runs or waits."),
    ListKind("queue", QUEUE, "No job waits."),
    ListKind("nodes", NODES, "No GPU node is listed."),
)
"""In the order of their keys."""


def width_of(text: str) -> int:
    """The columns that the text takes on a terminal."""
    return len(text) if text.isascii() else cell_len(text)


def grid_of(
    listing: ListColumns[T], rows: Iterable[T], now_ms: int, nodes: Callable[[T], tuple[str, ...]] = lambda row: ()
) -> Grid:
    """The rows as cells at a time (epoch ms). `nodes` are those of a row."""
    columns, shown = columns_of(TABLE, listing), Shown(now_ms, whole=False)
    made = tuple(
        GridRow(
            key, listing.name(row), tuple(cell_of(one, row, shown) for one in columns),
            tuple((one.rank or one.value)(row) for one in columns), nodes(row),
        )
        for key, row in named_rows(listing, rows)
    )  # fmt: skip
    headings = tuple(map(heading_of, columns))
    return Grid(
        tuple(one.name for one in columns), headings, _widths(headings, made),
        tuple(one.to_the_right for one in columns), made,
    )  # fmt: skip


def _widths(headings: Sequence[str], rows: Sequence[GridRow]) -> tuple[int, ...]:
    widths = [width_of(one) + _SORTED for one in headings]
    for row in rows:
        for column, (text, _) in enumerate(row.cells):
            width = width_of(text)
            if width > widths[column]:
                widths[column] = width
    return tuple(widths)


class Order(Struct, frozen=True):
    """Which rows are shown, and in which order: those with all `words` in one of their cells, by a column, or as they
    were listed (-1)."""

    words: tuple[str, ...] = ()
    column: int = -1
    reverse: bool = False

    def of(self, rows: Sequence[GridRow]) -> list[GridRow]:
        """The rows that are shown; those without a value in the column are last."""
        found = [row for row in rows if all(any(word in cell.lower() for cell, _ in row.cells) for word in self.words)]
        if self.column < 0:
            return found[::-1] if self.reverse else found
        known = [row for row in found if row.ranks[self.column] not in (None, "")]
        known.sort(key=lambda row: row.ranks[self.column], reverse=self.reverse)
        return known + [row for row in found if row.ranks[self.column] in (None, "")]


def _part(part: HeldPart) -> str:
    if part.kind == "share":
        return f"{part.milli}/1000 of {f'GPU {part.device}' if part.device else 'a GPU'}"
    return part.device


def _which(row: NodeHolder) -> str:
    """The devices of a pod: `GPU 0-3`, `1/1g.10gb@0`."""
    known = [f"GPU {indices(row.gpus)}"] if row.gpus else ["not known"] if row.count else []
    return ", ".join([*known, *map(_part, row.parts)])


HOLDERS: ListColumns[NodeHolder] = ListColumns(
    (
        ListColumn("pod", lambda row: row.pod),
        ListColumn("job", lambda row: row.job),
        ListColumn("user", lambda row: row.user),
        ListColumn("queue", lambda row: row.queue),
        ListColumn("gpus", lambda row: row.count, lambda row, _: gpus(row.count * 1000), "GPUs"),
        ListColumn("which", _which),
    ),
    named_by="pod",
)
"""The columns of the holders of the GPUs of a node."""
