# SPDX-License-Identifier: Apache-2.0
"""The program of `dovetail watch`: it reads the cluster again and again, and keeps the pages.

Rules
- The next read begins an interval after the last one has ended, so that a slow API server is not asked more often.
- A read that fails is shown with the age of the rows, which stay; it is tried again after an interval.
- It has the colours of the terminal, for states alone, and none with NO_COLOR. Nothing moves and nothing blinks: what
  does not change costs no byte on a slow line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import click
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from dovetail.cli.cluster import now_ms
from dovetail.cli.output import printable, span
from dovetail.cli.watch.drill import JobNodesPage, KeysPage, NodeHoldersPage, WhyJobPage
from dovetail.cli.watch.pages import NAMES, ListsPage, WatchPage
from dovetail.cli.watch.reading import WatchedCluster, WorkThread

INTERRUPTED = 130
"""The exit code of Ctrl-C."""
_TICK_S = 1.0


class WatchApp(App[int]):
    """The screen. A page is a screen of Textual's; the lists are the first, and those that are opened lie on it."""

    AUTO_FOCUS = ""
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "interrupt", priority=True, show=False)]
    CSS = """
    WatchPage { background: ansi_default; color: ansi_default; }
    #head { height: 1; }
    #place, #fault { height: auto; max-height: 4; }
    #fault { text-style: bold; }
    #foot { height: 1; }
    #prompt, #prompt:focus {
        height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default;
    }
    NodeHoldersPage RowsView { height: auto; max-height: 50%; }
    """

    def __init__(self, watched: WatchedCluster, every_s: float) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self.watched = watched
        self.fault = ""
        self.lists = ListsPage()
        self._every_s = every_s
        self._thread = WorkThread()
        self._one_at_a_time = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._unread, self._gone = "", ""
        self._asked = False

    def get_default_screen(self) -> Screen[Any]:
        return self.lists

    def on_mount(self) -> None:
        if self.watched.changes:
            self.run_worker(self._read_for_ever())
        self.set_interval(_TICK_S, self._show_age)

    @property
    def place(self) -> str:
        """When the cluster was read, and which it is."""
        name = printable(self.watched.name)
        if not self.watched.known:
            return name
        return f"{'read' if self.watched.changes else 'as of'} {self.watched.read_at}  {name}"

    @property
    def page(self) -> WatchPage | None:
        """The page that is seen, once it is ready. At the begin and at the end of the program there is none."""
        pages = self.screen_stack[-1:]
        return next((page for page in pages if isinstance(page, WatchPage) and page.ready), None)

    async def _read_for_ever(self) -> None:
        while True:
            self._wanted.clear()
            await self._find(read=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._every_s)

    async def _find(self, *, read: bool) -> None:
        """Ask the question of the page, of a new reading or of the last one."""
        async with self._one_at_a_time:
            self._asked = False
            page = self.page
            question = page.question() if page is not None else None
            if not read and (question is None or not self.watched.known):
                return
            if read and not await self._read():
                return
            if page is not None and question is not None:
                await self._answer(page, question)
            self._show_age()
            if self.page is not None:
                self.page.show_reading()

    async def _read(self) -> bool:
        """Read the cluster; false if it cannot be read."""
        try:
            await self._thread.do(self.watched.read)
        except click.ClickException as error:
            self._unread = printable(error.format_message())
            self._show_age()
            return False
        self._unread = ""
        return True

    async def _answer(self, page: WatchPage, question: Callable[[], object]) -> None:
        try:
            found = await self._thread.do(question)
        except click.ClickException as error:
            # A job or a node is gone.
            self._gone = printable(error.format_message())
            return
        self._gone = ""
        if page.is_attached:
            page.answer(found)

    def _show_age(self) -> None:
        """Show what is wrong, and how old the rows are."""
        parts = [self._gone] if self._gone else []
        if self._unread:
            old = f"what is shown is {span(now_ms() - self.watched.read_ms)} old" if self.watched.known else ""
            again = f"tried again every {span(round(self._every_s * 1000))}"
            parts += filter(None, (self._unread, old, again))
        fault = "; ".join(parts)
        if fault != self.fault:
            self.fault = fault
            if self.page is not None:
                self.page.show_reading()

    def ask(self) -> None:
        """Ask the question of the page now, of the last reading."""
        if not self._asked:
            self._asked = True
            self.run_worker(self._find(read=False))

    def read_now(self) -> None:
        """Do not wait for the end of the interval."""
        self._wanted.set()

    def show_list(self, name: str) -> None:
        """Go to this list."""
        while self.screen is not self.lists:
            self.pop_screen()
        self.lists.choose(name)
        self.ask()

    def show_next_list(self, step: int) -> None:
        """Go to the list that is so many further."""
        self.show_list(NAMES[(NAMES.index(self.lists.list_name) + step) % len(NAMES)])

    def show_why(self, job: str, nodes: tuple[str, ...]) -> None:
        """Go to the page that explains the job."""
        self.push_screen(WhyJobPage(job, nodes))

    def show_nodes(self, job: str, nodes: tuple[str, ...]) -> None:
        """Go to the node, or to the list of several."""
        if len(nodes) == 1:
            self.push_screen(NodeHoldersPage(nodes[0]))
        elif nodes:
            self.push_screen(JobNodesPage(job, nodes))
        elif self.page is not None:
            self.page.note("No node is known of it.")

    def show_keys(self) -> None:
        """Go to the list of keys."""
        if not isinstance(self.screen, KeysPage):
            self.push_screen(KeysPage())

    def action_interrupt(self) -> None:
        self.exit(INTERRUPTED)
