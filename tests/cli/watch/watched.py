# SPDX-License-Identifier: Apache-2.0
"""A screen on files, and what stands on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from textual.pilot import Pilot
from textual.widgets import Static

from dovetail.cli import cli
from dovetail.cli.cluster import ClusterSource
from dovetail.cli.scheduling import TIGHTEST, PolicyChoice
from dovetail.cli.watch.drill import TextView
from dovetail.cli.watch.pages import RowsPage, WatchPage
from dovetail.cli.watch.reading import WatchedCluster
from dovetail.cli.watch.rows import RowsView
from dovetail.cli.watch.screen import WatchApp
from dovetail.views.job_types import JobFilter
from tests.cli.listed_jobs import AT, cluster
from tests.patience import PATIENCE_S
from tests.terminal import environment

AT_MS = round(datetime.fromisoformat(AT).timestamp() * 1000)
Document = dict[str, Any]


def write(folder: Path, documents: list[Document] | None = None) -> str:
    """A file with the objects: those of `listed_jobs`, or others."""
    found = folder / "cluster.json"
    items = cluster() if documents is None else documents
    found.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(found)


def printed(*arguments: str, columns: int = 400) -> str:
    """What a command prints on a terminal of so many columns."""
    done = CliRunner().invoke(cli, list(arguments), env=environment(columns))
    assert done.exit_code == 0, done.output
    return click.unstyle(done.stdout)


def source(file: str) -> ClusterSource:
    return ClusterSource(PolicyChoice(scoring=TIGHTEST), "dovetail", (file,), None, AT_MS)


def watched(file: str, namespace: str = "") -> WatchedCluster:
    """The cluster in the file, read."""
    found = WatchedCluster(source(file), JobFilter(namespace=namespace))
    found.read()
    return found


@asynccontextmanager
async def screen(of: WatchedCluster, size: tuple[int, int] = (120, 30), every_s: float = 5.0) -> AsyncIterator[Screen]:
    app = WatchApp(of, every_s)
    async with app.run_test(size=size) as pilot:
        yield Screen(app, pilot)


class Screen:
    """The screen, as a user sees it."""

    def __init__(self, app: WatchApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def page(self) -> WatchPage:
        assert isinstance(self.app.screen, WatchPage)
        return self.app.screen

    @property
    def rows(self) -> RowsView:
        assert isinstance(self.page, RowsPage)
        return self.page.rows

    @property
    def selected(self) -> str:
        row = self.rows.current
        return row.name if row is not None else ""

    def line(self, name: str) -> str:
        """One of the lines head, place, fault and foot; "" where it is not seen."""
        line = self.page.query_one(f"#{name}", Static)
        return str(line.content) if line.display else ""

    def text(self) -> str:
        """All that the page has, but for its first lines and its last."""
        parts = [str(one.query_one(Static).content) for one in self.page.query(TextView)]
        for view in self.page.query(RowsView):
            if view.display:
                parts.insert(0, "\n".join(view.render_line(y).text.rstrip() for y in range(view.size.height)))
        return "\n".join(parts)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def idle(self) -> None:
        """Wait until the answers to all questions are shown. Only of files is there an end to them."""
        await self.app.workers.wait_for_complete()

    async def until(self, seen: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.page.ready or not seen():
                await self.pilot.pause(0.01)

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.page.ready or text not in self.line("head") + "\n" + self.text():
                await self.pilot.pause(0.01)
