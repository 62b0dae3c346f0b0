# SPDX-License-Identifier: Apache-2.0
"""The pages of the screen: what all of them have, and the one with the lists.

A page has a question, which is asked of each new reading of the cluster while the page is the one that is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol, cast

from msgspec.structs import replace
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from dovetail.cli.watch.keys import BINDINGS
from dovetail.cli.watch.reading import WatchedCluster
from dovetail.cli.watch.rows import RowsView
from dovetail.cli.watch.tables import LISTS, Grid

NAMES = tuple(one.name for one in LISTS)
_ENDS = ("q", "quit", "q!")
_NOTE_S = 5.0
_FOOT = "enter open  / filter  s sort  ? keys  q end"


class Watching(Protocol):
    """What pages need of the program. `place` is when the cluster was read, and which it is; `fault` is why it cannot
    be read, or ""."""

    watched: WatchedCluster
    fault: str

    @property
    def place(self) -> str: ...

    def ask(self) -> None:
        """Ask the question of the page now, of the last reading."""

    def read_now(self) -> None:
        """Do not wait for the end of the interval."""

    def show_list(self, name: str) -> None:
        """Go to this list."""

    def show_next_list(self, step: int) -> None:
        """Go to the list that is so many further."""

    def show_why(self, job: str, nodes: tuple[str, ...]) -> None:
        """Go to the page that explains the job."""

    def show_nodes(self, job: str, nodes: tuple[str, ...]) -> None:
        """Go to the node, or to the list of several."""

    def show_keys(self) -> None:
        """Go to the list of keys."""


class WatchPage(Screen[None]):
    """A page: a line of what it is, a line of when the cluster was read, its body, and a line of keys or of input."""

    BINDINGS: ClassVar[list[BindingType]] = [*BINDINGS]
    foot = _FOOT
    ready = False
    """Whether its lines are there. It is seen a moment before."""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="place", markup=False)
        yield Static(id="fault", markup=False)
        yield from self.body()
        yield Input(id="prompt", select_on_focus=False)
        yield Static(Text(self.foot), id="foot", markup=False)

    def on_mount(self) -> None:
        prompt = self.query_one("#prompt", Input)
        prompt.cursor_blink = False
        prompt.display = False
        self.query_one("#fault").display = False
        self.ready = True
        self.on_screen_resume()

    def on_screen_resume(self) -> None:
        if self.ready:
            self.show_reading()
            self.watching.ask()

    @property
    def watching(self) -> Watching:
        """The program that it is a page of."""
        return cast(Watching, self.app)

    def body(self) -> Iterable[Widget]:
        """What is between head and foot."""
        return ()

    def title_text(self) -> Text:
        """What it is."""
        return Text()

    def question(self) -> Callable[[], object] | None:
        """The function that gets the content from each reading, in another thread; None for a fixed page."""
        return None

    def answer(self, found: Any) -> None:
        """Show what was asked."""

    def show_reading(self) -> None:
        """Show what it is, when the cluster was read, and why it cannot be read."""
        self._set("head", self.title_text())
        self._set("place", Text(self.watching.place))
        self._set("fault", Text(self.watching.fault))
        for line in self.query("#fault"):
            if line.display != bool(self.watching.fault):
                line.display = not line.display

    def _set(self, name: str, text: Text) -> None:
        """Change a line; one that is the same is not drawn again. At the end of the program the lines are gone before
        the page is."""
        for line in self.query(f"#{name}").results(Static):
            if line.content != text:
                line.update(text)

    def note(self, text: str) -> None:
        """Show a sentence in place of the keys for a while."""
        self._set("foot", Text(text))
        self.set_timer(_NOTE_S, lambda: self._set("foot", Text(self.foot)))

    # What keys do. A page has those of its own.

    def action_list(self, name: str) -> None:
        self.watching.show_list(name)

    def action_next_list(self, step: int) -> None:
        self.watching.show_next_list(step)

    def action_move(self, rows: int) -> None:
        """Move the selection or the text."""

    def action_shift(self, steps: int) -> None:
        """Move sideways."""

    def action_turn(self, pages: int) -> None:
        """Move by pages."""

    def action_edge(self, side: int) -> None:
        """Move to the first row or line, or to the last one."""

    def action_open(self) -> None:
        """Go a step deeper."""

    def action_why(self) -> None:
        """Explain the job."""

    def action_node(self) -> None:
        """Show the node."""

    def action_sort(self) -> None:
        """Sort by the next column."""

    def action_reverse(self) -> None:
        """Sort the other way round."""

    def action_filter(self) -> None:
        """Begin to type words."""

    def action_back(self) -> None:
        if not self.close_prompt():
            self.leave()

    def leave(self) -> None:
        """Go back to the page before."""
        self.app.pop_screen()

    def action_command(self) -> None:
        self.open_prompt(":")

    def action_read(self) -> None:
        self.watching.read_now()

    def action_keys(self) -> None:
        self.watching.show_keys()

    def action_quit(self) -> None:
        self.app.exit(0)

    # The line of input.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While the line of input is open keys belong to it, but the one that closes it."""
        return self.ready and (action == "back" or not self.query_one("#prompt", Input).display)

    def open_prompt(self, first: str) -> None:
        """Read a line, which begins with : or /."""
        prompt = self.query_one("#prompt", Input)
        prompt.value, prompt.display = first, True
        prompt.cursor_position = len(first)
        self.query_one("#foot").display = False
        self.set_focus(prompt)

    def close_prompt(self) -> bool:
        """Close it; False if it was not open."""
        prompt = self.query_one("#prompt", Input)
        if not prompt.display:
            return False
        prompt.display = False
        self.query_one("#foot").display = True
        self.set_focus(None)
        return True

    def on_input_changed(self, event: Input.Changed) -> None:
        prompt = self.query_one("#prompt", Input)
        if prompt.display and not event.value:
            # The first character was deleted, too.
            self.close_prompt()
        elif prompt.display and event.value.startswith("/"):
            self.typed(event.value[1:])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not self.close_prompt():
            # It was closed by the one before, with which this key came at once.
            self.action_open()
        elif event.value.startswith(":"):
            self._command(event.value[1:].strip())

    def typed(self, words: str) -> None:
        """Filter by these words, while they are typed."""

    def _command(self, name: str) -> None:
        if name in _ENDS:
            self.action_quit()
        elif name in NAMES:
            self.action_list(name)
        elif name:
            near = get_close_matches(name, NAMES, 1)
            self.note(f"there is no :{name}; {f'did you mean :{near[0]}? T' if near else 't'}here are "
                      f"{', '.join(f':{one}' for one in NAMES)} and :q")  # fmt: skip


class RowsPage(WatchPage):
    """A page of which one list is in use."""

    @property
    def rows(self) -> RowsView:
        """The list in use."""
        raise NotImplementedError

    def action_move(self, rows: int) -> None:
        self.rows.move(rows)

    def action_shift(self, steps: int) -> None:
        self.rows.shift(steps)

    def action_turn(self, pages: int) -> None:
        self.rows.turn(pages)

    def action_edge(self, side: int) -> None:
        self.rows.edge(side)

    def action_sort(self) -> None:
        self.rows.sort_by_next()
        self.show_reading()

    def action_reverse(self) -> None:
        self.rows.put_in(replace(self.rows.order, reverse=not self.rows.order.reverse))
        self.show_reading()

    def action_filter(self) -> None:
        self.open_prompt("/" + " ".join(self.rows.order.words))

    def typed(self, words: str) -> None:
        self._filter(tuple(words.lower().split()))

    def _filter(self, words: tuple[str, ...]) -> None:
        self.rows.put_in(replace(self.rows.order, words=words))
        self.show_reading()

    def action_back(self) -> None:
        if self.close_prompt():
            return
        if self.rows.order.words:
            self._filter(())
        else:
            self.leave()

    def count_text(self) -> str:
        """`3 of 120, sorted by gpus`."""
        grid, order = self.rows.grid, self.rows.order
        if grid is None:
            return ""
        count = f"{len(self.rows.shown):,}" + (f" of {len(grid.rows):,}" if order.words else "")
        words = f", /{' '.join(order.words)}" if order.words else ""
        return f"{count}{words}" + (f", by {grid.names[order.column]}" if order.column >= 0 else "")


class ListsPage(RowsPage):
    """The first page: three lists, one of which is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.list_name = NAMES[0]
        self._views = {one.name: RowsView(one.empty, id=one.name) for one in LISTS}

    def body(self) -> Iterable[Widget]:
        return self._views.values()

    def on_mount(self) -> None:
        super().on_mount()
        self.choose(self.list_name)

    @property
    def rows(self) -> RowsView:
        return self._views[self.list_name]

    def choose(self, name: str) -> None:
        """Show this list."""
        self.list_name = name
        for one, view in self._views.items():
            view.display = one == name
        self.show_reading()

    def title_text(self) -> Text:
        text = Text(no_wrap=True)
        for number, name in enumerate(NAMES, 1):
            text.append(f"{number} {name}", "bold reverse" if name == self.list_name else "")
            text.append("  ")
        return text.append(self.count_text())

    def question(self) -> Callable[[], object]:
        name, ask = self.list_name, getattr(self.watching.watched, self.list_name)
        return lambda: (name, ask())

    def answer(self, found: tuple[str, Grid]) -> None:
        name, grid = found
        self._views[name].show(grid)

    def leave(self) -> None:
        """There is no page before this one."""

    def action_open(self) -> None:
        if self.list_name == "nodes":
            self.action_node()
        else:
            self.action_why()

    def action_why(self) -> None:
        row = self.rows.current
        if row is not None and self.list_name != "nodes":
            self.watching.show_why(row.name, row.nodes)

    def action_node(self) -> None:
        row = self.rows.current
        if row is not None:
            self.watching.show_nodes(row.name, row.nodes)
