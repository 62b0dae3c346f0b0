# SPDX-License-Identifier: Apache-2.0
"""The pages behind the lists: why a job waits, the nodes of a job, a node with the holders of its GPUs, and the keys.

Texts are those that the commands print, laid out for the width of the screen, again when that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.text import Text
from textual.containers import ScrollableContainer
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from dovetail.cli.console import Console, Table, prose
from dovetail.cli.output import printable
from dovetail.cli.watch.keys import KEYS
from dovetail.cli.watch.pages import RowsPage, WatchPage
from dovetail.cli.watch.reading import NodePage, PrintedPage
from dovetail.cli.watch.rows import RowsView
from dovetail.cli.watch.tables import Grid

_SIDEWAYS = 10


class TextView(ScrollableContainer, can_focus=False):
    """A text that is moved where the screen is too small."""

    DEFAULT_CSS = "TextView { scrollbar-size: 0 0; height: 1fr; } TextView > Static { width: auto; }"

    def __init__(self) -> None:
        self._line = Static("...", markup=False)
        super().__init__(self._line)
        self._page: PrintedPage | None = None
        self._text = ""

    def show(self, page: PrintedPage) -> None:
        """Show the text."""
        self._page = page
        text = page.text(max(1, self.size.width or self.app.size.width))
        if text != self._text:
            self._text = text
            self._line.update(Text.from_ansi(text, no_wrap=True, end=""))

    def on_resize(self, _event: Resize) -> None:
        if self._page is not None:
            self.show(self._page)

    def move(self, lines: int, columns: int = 0) -> None:
        """Move the text."""
        self.scroll_relative(columns * _SIDEWAYS, lines, animate=False, force=True, immediate=True)


class TextPage(WatchPage):
    """A page with one text."""

    foot = "esc back  ? keys  q end"

    def __init__(self) -> None:
        super().__init__()
        self.view = TextView()

    def body(self) -> Iterable[Widget]:
        yield self.view

    def action_move(self, rows: int) -> None:
        self.view.move(rows)

    def action_shift(self, steps: int) -> None:
        self.view.move(0, steps)

    def action_turn(self, pages: int) -> None:
        self.view.move(pages * max(1, self.view.size.height))

    def action_edge(self, side: int) -> None:
        self.view.scroll_to(y=0 if side < 0 else self.view.max_scroll_y, animate=False, force=True, immediate=True)


class WhyJobPage(TextPage):
    """Why a job runs there or waits. `nodes` are those that its list has."""

    foot = "enter node  esc back  ? keys  q end"

    def __init__(self, job: str, nodes: tuple[str, ...]) -> None:
        super().__init__()
        self._job, self._seen, self._known = job, nodes, nodes

    def title_text(self) -> Text:
        return Text(f"why {printable(self._job)}", no_wrap=True)

    def question(self) -> Callable[[], object]:
        watched = self.watching.watched
        return lambda: watched.why(self._job, self._seen)

    def answer(self, found: PrintedPage) -> None:
        self._known = found.nodes
        self.view.show(found)

    def action_open(self) -> None:
        self.action_node()

    def action_node(self) -> None:
        self.watching.show_nodes(self._job, self._known)


class JobNodesPage(RowsPage):
    """The nodes of a job, or those on which others hold what it lacks."""

    def __init__(self, job: str, nodes: tuple[str, ...]) -> None:
        super().__init__()
        self._job, self._seen = job, nodes
        self._view = RowsView("None of its nodes is a GPU node.")

    @property
    def rows(self) -> RowsView:
        return self._view

    def body(self) -> Iterable[Widget]:
        yield self._view

    def title_text(self) -> Text:
        return Text(f"nodes of {printable(self._job)}  {self.count_text()}", no_wrap=True)

    def question(self) -> Callable[[], object]:
        watched = self.watching.watched
        return lambda: watched.nodes(self._seen)

    def answer(self, found: Grid) -> None:
        self._view.show(found)

    def action_open(self) -> None:
        self.action_node()

    def action_node(self) -> None:
        row = self.rows.current
        if row is not None:
            self.watching.show_nodes(self._job, row.nodes)

    def action_why(self) -> None:
        self.watching.show_why(self._job, self._seen)


class NodeHoldersPage(RowsPage):
    """A node: the holders of its GPUs, and below them what `dovetail nodes NODE` prints."""

    foot = "enter why  esc back  ? keys  q end"

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node
        self._view = RowsView("No pod holds a GPU of it.")
        self._text = TextView()

    @property
    def rows(self) -> RowsView:
        return self._view

    def body(self) -> Iterable[Widget]:
        yield self._view
        yield self._text

    def title_text(self) -> Text:
        return Text(f"node {printable(self._node)}  held by {self.count_text()}", no_wrap=True)

    def question(self) -> Callable[[], object]:
        watched = self.watching.watched
        return lambda: watched.node(self._node)

    def answer(self, found: NodePage) -> None:
        self._view.show(found.holders)
        self._text.show(found.page)

    def action_turn(self, pages: int) -> None:
        self._text.move(pages * max(1, self._text.size.height))

    def action_shift(self, steps: int) -> None:
        super().action_shift(steps)
        self._text.move(0, steps)

    def action_open(self) -> None:
        self.action_why()

    def action_why(self) -> None:
        row = self.rows.current
        if row is not None:
            self.watching.show_why(row.name, (self._node,))


class KeysPage(TextPage):
    """The list of keys."""

    def on_mount(self) -> None:
        super().on_mount()
        self.view.show(PrintedPage(_print_keys))

    def title_text(self) -> Text:
        return Text("keys", no_wrap=True)


def _print_keys(console: Console) -> None:
    table = Table("key", prose("what it does"))
    for one in KEYS:
        table.add_row(one.shown, one.help)
    console.print(table)
