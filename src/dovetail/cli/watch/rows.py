# SPDX-License-Identifier: Apache-2.0
"""The rows of a list on the screen.

Rules
- No cell is cut: each column is as wide as its longest cell, and the list is moved sideways where the screen is
  narrower. Columns do not become narrower while the list is open, so that a row stays where it is.
- Only rows that have changed are drawn again, each up to its last cell that has. The selection stays on its row,
  wherever a new reading has that.
- The first line has the headings, and stays. Only the lines on the screen cost time, however many rows there are.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dovetail.cli.watch.tables import Grid, GridRow, Key, Order, width_of

_GAP = 2
_SIDEWAYS = 10
_BOLD, _PLAIN, _SELECTED = Style(bold=True), Style(), Style(reverse=True)
_NO_ROW = "No row has all these words."
_READING = "Reading the cluster ..."


class RowsView(ScrollView, can_focus=False):
    """A list. `empty` is shown where it has no rows."""

    DEFAULT_CSS = "RowsView { scrollbar-size: 0 0; height: 1fr; }"

    def __init__(self, empty: str, **options: Any) -> None:
        super().__init__(**options)
        self.grid: Grid | None = None
        self.order = Order()
        self.shown: list[GridRow] = []
        self._empty, self._cursor = empty, 0
        self._widths: tuple[int, ...] = ()
        self._styles: dict[str, Style] = {"": _PLAIN}

    @property
    def current(self) -> GridRow | None:
        """The selected row."""
        return self.shown[self._cursor] if self._cursor < len(self.shown) else None

    def show(self, grid: Grid) -> None:
        """Show a new reading."""
        same = self.grid is not None and self.grid.names == grid.names
        widths = tuple(map(max, self._widths, grid.widths)) if same else grid.widths
        changed = widths != self._widths
        self.grid, self._widths = grid, widths
        self._place_rows(self.current.key if self.current is not None else None)
        if changed:
            self.refresh()

    def put_in(self, order: Order) -> None:
        """Show other rows, or in another order."""
        self.order = order
        self._place_rows(self.current.key if self.current is not None else None)
        self.refresh()

    def sort_by_next(self) -> None:
        """Sort by the next column; after the last one as the rows were listed."""
        if self.grid is not None:
            last = self.order.column + 1 == len(self.grid.names)
            self.put_in(replace(self.order, column=-1 if last else self.order.column + 1, reverse=False))

    def move(self, rows: int) -> None:
        """Select the row that is so many rows further down."""
        self._select(self._cursor + rows)

    def turn(self, pages: int) -> None:
        """Go so many pages down."""
        self._select(self._cursor + pages * max(1, self.size.height - 1))

    def edge(self, side: int) -> None:
        """Go to the first row (-1) or the last one (1)."""
        self._select(0 if side < 0 else len(self.shown) - 1)

    def shift(self, steps: int) -> None:
        """Move the list sideways."""
        self.scroll_to(x=self.scroll_offset.x + steps * _SIDEWAYS, animate=False, force=True, immediate=True)

    def _select(self, index: int) -> None:
        before, self._cursor = self._cursor, max(0, min(index, len(self.shown) - 1))
        self._reach()
        for one in {before, self._cursor}:
            self.refresh(Region(0, one - self.scroll_offset.y + 1, self.size.width, 1))

    def _reach(self) -> None:
        """Scroll as far as the selected row needs, and half a page further: so not every key draws all rows again."""
        top, room = self.scroll_offset.y, max(1, self.size.height - 1)
        if not top <= self._cursor < top + room:
            self.scroll_to(y=max(0, self._cursor - room // 2), animate=False, force=True, immediate=True)

    def _place_rows(self, key: Key | None) -> None:
        """Take the rows from the reading, and draw what has changed."""
        grid = self.grid
        if grid is None:
            return
        before, top, cursor = self.shown, self.scroll_offset.y, self._cursor
        self.shown = self.order.of(grid.rows)
        places = (index for index, row in enumerate(self.shown) if row.key == key)
        self._cursor = next(places, max(0, min(cursor, len(self.shown) - 1)))
        size = Size(sum(self._widths) + _GAP * (len(self._widths) - 1), len(self.shown) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self._reach()
        if top != self.scroll_offset.y:
            # All of it is drawn anyway.
            return
        for line in range(1, self.size.height):
            self._draw_changes(line, before, cursor)

    def _draw_changes(self, line: int, before: list[GridRow], cursor: int) -> None:
        index = line - 1 + self.scroll_offset.y
        old = before[index] if index < len(before) else None
        new = self.shown[index] if index < len(self.shown) else None
        if old is None and new is None and index:
            return
        if old is None or new is None or old.key != new.key or (index == cursor) != (index == self._cursor):
            self.refresh(Region(0, line, self.size.width, 1))
            return
        changed = [was != now for was, now in zip(old.cells, new.cells, strict=True)]
        if any(changed):
            last = len(changed) - changed[::-1].index(True)
            right = sum(self._widths[:last]) + _GAP * last - self.scroll_offset.x
            self.refresh(Region(0, line, max(0, min(right, self.size.width)), 1))

    def render_line(self, y: int) -> Strip:
        """A line of the screen."""
        width, left = self.size.width, self.scroll_offset.x
        if self.grid is None:
            return Strip([Segment(_READING if y == 0 else "", _PLAIN)]).crop_extend(0, width, _PLAIN)
        index = y - 1 + self.scroll_offset.y
        if y == 0:
            return self._strip([(text, "") for text in self._headings(self.grid)], _BOLD).crop_extend(
                left, left + width, _PLAIN
            )
        if index < len(self.shown):
            style = _SELECTED if index == self._cursor else _PLAIN
            return self._strip(self.shown[index].cells, style).crop_extend(left, left + width, style)
        note = "" if self.shown or y > 1 else _NO_ROW if self.grid.rows else self._empty
        return Strip([Segment(note, _PLAIN)]).crop_extend(0, width, _PLAIN)

    def _headings(self, grid: Grid) -> list[str]:
        arrow = "↓" if self.order.reverse else "↑"
        return [text + arrow * (number == self.order.column) for number, text in enumerate(grid.headings)]

    def _strip(self, cells: Any, style: Style) -> Strip:
        """The cells in their columns."""
        grid = self.grid
        assert grid is not None
        segments = []
        for (text, colour), width, right in zip(cells, self._widths, grid.to_the_right, strict=True):
            blanks = " " * (width - width_of(text))
            if colour not in self._styles:
                self._styles[colour] = Style.parse(colour)
            padded = blanks + text if right else text + blanks
            segments.append(Segment(padded, style + self._styles[colour]))
            segments.append(Segment(" " * _GAP, style))
        return Strip(segments[:-1]).simplify()
