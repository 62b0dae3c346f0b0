# SPDX-License-Identifier: Apache-2.0
"""The screen through several readings: what is drawn again, what stays, and what is shown of a cluster that cannot be
read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec.structs import replace
from textual.geometry import Region

from dovetail.cli.cluster import ClusterSource
from dovetail.cli.scheduling import TIGHTEST, PolicyChoice
from dovetail.cli.watch.reading import WatchedCluster
from dovetail.cli.watch.screen import WatchApp
from dovetail.cli.watch.tables import Grid
from dovetail.kube.api.config import load_config
from dovetail.views.held_types import NodeHolder
from dovetail.views.job_list import job_list
from dovetail.views.job_types import JobFilter, JobList
from dovetail.views.node_holders import node_holders
from dovetail.views.node_types import NodeList
from dovetail.views.nodes import node_list
from dovetail.views.queue_positions import queue_positions
from dovetail.views.queue_types import QueuePosition
from dovetail.views.why import why
from dovetail.views.why_types import Explanation
from tests.cli.clusters import command_cluster
from tests.cli.clusters import node as live_node
from tests.cli.listed_jobs import GPU, Document, cluster, node, pod
from tests.cli.watch.watched import AT_MS, Screen, screen, source, watched, write

DOWN = "https://10.0.0.1:6443: GET /api: no reply"


class Changing(WatchedCluster):
    """A cluster that is read again and again, from a file in its place; while it is `down` it cannot be read, and while
    it is not `open` a read waits."""

    changes = True

    def __init__(self, folder: Path, documents: list[Document]) -> None:
        super().__init__(source(write(folder, documents)), JobFilter())
        self._folder = folder
        self.down = False
        self.open = threading.Event()
        self.open.set()
        self.reads = self.at_once = self.waits = self.most_at_once = 0
        self._lock = threading.Lock()

    def put(self, documents: list[Document]) -> None:
        write(self._folder, documents)

    def read(self) -> None:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if not self.open.is_set():
                self.waits += 1
                self.open.wait()
            if self.down:
                raise click.ClickException(DOWN)
            super().read()
            self.reads += 1
        finally:
            with self._lock:
                self.at_once -= 1


async def again(seen: Screen, found: Changing, times: int = 2) -> None:
    """Wait until it was read again, and this is shown."""
    wanted = found.reads + times
    await seen.until(lambda: found.reads >= wanted)


async def test_rows_come_change_and_go_and_the_selection_stays_on_its_row(tmp_path: Path) -> None:
    found = Changing(tmp_path, [node("g1"), pod("b", {GPU: "1"}, "g1"), pod("d", {GPU: "1"}, "g1")])
    async with screen(found, every_s=0.02) as seen:
        await seen.shows("ml/d")
        await seen.press("down")
        assert seen.selected == "ml/d"
        found.put([node("g1"), *(pod(name, {GPU: "1"}, "g1") for name in "abcd")])
        await seen.shows("ml/a")
        assert [row.name for row in seen.rows.shown] == ["ml/a", "ml/b", "ml/c", "ml/d"] and seen.selected == "ml/d"
        found.put([node("g1"), pod("a", {GPU: "1"}, "g1"), pod("c", {GPU: "1"})])
        await seen.until(lambda: [row.name for row in seen.rows.shown] == ["ml/a", "ml/c"])
        assert seen.selected == "ml/c" and "Waiting" in seen.text()


@pytest.mark.slow
async def test_the_page_of_a_job_follows_it(tmp_path: Path) -> None:
    found = Changing(tmp_path, [node("g1"), pod("a", {GPU: "1"}, "g1"), pod("b", {GPU: "16"})])
    async with screen(found, every_s=0.02) as seen:
        await seen.shows("ml/b")
        await seen.press("end", "enter")
        await seen.shows("ml/b cannot start unless the pod or the cluster is changed")
        found.put([node("g1"), pod("b", {GPU: "8"}, "g1")])
        await seen.shows("ml/b is on node g1")


async def test_rows_stay_while_the_cluster_cannot_be_read_and_show_their_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Changing(tmp_path, cluster())
    async with screen(found, every_s=0.02) as seen:
        await seen.shows("ml/next")
        monkeypatch.setattr("dovetail.cli.watch.screen.now_ms", lambda: AT_MS + 95_000)
        found.down = True
        old = f"{DOWN}; what is shown is 1 min 35 s old; tried again every 0 s"
        await seen.until(lambda: seen.line("fault") == old)
        assert len(seen.rows.shown) == 7
        # The rows can still be used.
        await seen.press("2")
        await seen.until(lambda: len(seen.rows.shown) == 3)
        assert seen.line("fault") == old
        found.down = False
        await seen.until(lambda: not seen.line("fault"))


@pytest.mark.slow
async def test_a_cluster_that_cannot_be_read_at_first(tmp_path: Path) -> None:
    found = Changing(tmp_path, cluster())
    found.down = True
    async with screen(found, every_s=0.02) as seen:
        await seen.until(lambda: seen.line("fault") == f"{DOWN}; tried again every 0 s")
        assert seen.text().startswith("Reading the cluster ...")
        await seen.press("enter", "n", "s", "slash", "x", "escape", "2")
        found.down = False
        await seen.until(lambda: len(seen.rows.shown) == 3)


def test_before_and_after_its_pages_the_program_has_none(tmp_path: Path) -> None:
    """A read may end then."""
    assert WatchApp(Changing(tmp_path, cluster()), every_s=1.0).page is None


@pytest.mark.slow
async def test_a_live_cluster_until_its_api_server_is_gone(tmp_path: Path) -> None:
    with command_cluster(tmp_path, live_node("g1")) as live:
        job = pod("train", {GPU: "8"}, "g1")
        job["metadata"]["namespace"] = "team-a"
        live.put(job)
        config = load_config(str(live.config))
        found = WatchedCluster(ClusterSource(PolicyChoice(scoring=TIGHTEST), "dovetail", (), config), JobFilter())
        async with screen(found, every_s=0.1) as seen:
            await seen.shows("team-a/train")
            assert seen.line("place").startswith("read 2") and seen.line("place").endswith(config.server)
            await asyncio.to_thread(live.wait, live.playground.stop())
            await seen.until(lambda: config.server in seen.line("fault"))
            assert "team-a/train" in seen.text() and " old; tried again every 0 s" in seen.line("fault")


async def test_keys_are_answered_during_a_read_and_there_is_one_at_a_time(tmp_path: Path) -> None:
    found = Changing(tmp_path, cluster())
    async with screen(found, every_s=0.02) as seen:
        await seen.shows("ml/next")
        found.open.clear()
        try:
            await seen.until(lambda: found.waits > 0)
            await seen.press("r", "down", "down", "r", "down")
            assert found.waits == 1 and seen.rows.current is seen.rows.shown[3]
        finally:
            found.open.set()
        await again(seen, found)
        assert found.most_at_once == 1


def changed(grid: Grid, row: int, column: int, text: str) -> Grid:
    """The grid with another text in one of its cells."""
    old = grid.rows[row]
    cells = (*old.cells[:column], (text, ""), *old.cells[column + 1 :])
    return replace(grid, rows=(*grid.rows[:row], replace(old, cells=cells), *grid.rows[row + 1 :]))


async def test_only_what_has_changed_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with screen(watched(write(tmp_path))) as seen:
        await seen.shows("ml/next")
        await seen.idle()
        grid, drawn = seen.rows.grid, list[tuple[Any, ...]]()
        assert grid is not None
        monkeypatch.setattr(seen.rows, "refresh", lambda *regions, **_: drawn.append(regions))
        seen.rows.show(grid)
        assert drawn == []
        reason = grid.names.index("reason")
        seen.rows.show(changed(grid, 2, reason, "x"))
        right = sum(grid.widths[: reason + 1]) + 2 * (reason + 1)
        assert drawn == [(Region(0, 3, right, 1),)]
        # A wider column moves those after it.
        drawn.clear()
        wide = tuple(width + 80 * (number == reason) for number, width in enumerate(grid.widths))
        seen.rows.show(replace(changed(grid, 2, reason, "x" * 80), widths=wide))
        assert () in drawn


async def test_ten_thousand_rows_cost_what_a_screen_full_costs(tmp_path: Path) -> None:
    file = write(tmp_path, [node("g1"), pod("a", {GPU: "1"}, "g1")])
    async with screen(watched(file), size=(100, 30)) as seen:
        await seen.shows("ml/a")
        await seen.idle()
        grid = seen.rows.grid
        assert grid is not None
        first = grid.rows[0]
        names = [f"ml/j{i}" for i in range(10_000)]
        rows = tuple(replace(first, key=(name, 1), name=name, cells=((name, ""), *first.cells[1:])) for name in names)
        lines = list[int]()
        render, view = seen.rows.render_line, seen.rows
        view.render_line = lambda y: (lines.append(y), render(y))[1]  # type: ignore[method-assign]
        view.show(replace(grid, rows=rows))
        await seen.press("end")
        assert seen.selected == "ml/j9999" and "ml/j9999" in seen.text()
        await seen.press("pageup", "pageup", "home")
        assert seen.selected == "ml/j0"
        assert 0 < len(lines) < 10 * view.size.height


class Forbidden(WatchedCluster):
    """A cluster that the user may not read, beside a scheduler that answers from a file."""

    def __init__(self, folder: Path, documents: list[Document], *, answers: bool = True, older: bool = False) -> None:
        super().__init__(source(write(folder, documents)), JobFilter())
        self.answers = answers
        self.older = older

    def read(self) -> None:
        behind = self.source.read()

        def forbidden(_: ClusterSource, **__: object) -> None:
            raise click.ClickException("you may not list nodes")

        def asked(_: ClusterSource, request: Any, kind: type[Any]) -> Any:
            views: dict[Any, Any] = {
                JobList: lambda: job_list(behind.state, AT_MS, self._wanted, most_ahead=9),
                QueuePosition: lambda: queue_positions(behind.state, AT_MS),
                Explanation: lambda: Explanation(job=why(behind.state, f"{request.namespace}/{request.name}", AT_MS)),
            }
            if not self.older:
                views[NodeList] = lambda: node_list(behind.state, behind.feed.node_records.gpu_node)
                views[tuple[NodeHolder, ...]] = lambda: node_holders(behind.state, request.query["node"])
            return views[kind]() if self.answers and kind in views else None

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClusterSource, "read", forbidden)
            patch.setattr(ClusterSource, "ask", asked)
            super().read()
            self.page = self.why("ml/a" if self.older else "ml/b", ("g1",))
            if not self.older and self.answers:
                self.holders = self.node("g1").holders


def test_a_user_of_one_namespace_sees_what_the_scheduler_answers(tmp_path: Path) -> None:
    found = Forbidden(tmp_path, [node("g1"), pod("a", {GPU: "8"}, "g1"), pod("b", {GPU: "8"})])
    found.read()
    assert [row.name for row in found.jobs().rows] == ["ml/a", "ml/b"]
    assert [row.name for row in found.queue().rows] == ["ml/b"]
    assert "NoNodeFits" in found.page.text(200) and found.page.nodes == ("g1",)
    assert [row.name for row in found.nodes().rows] == ["g1"]
    assert [row.name for row in found.holders.rows] == ["ml/a"]


def test_an_older_scheduler_answers_no_nodes_and_the_other_lists_stay(tmp_path: Path) -> None:
    found = Forbidden(tmp_path, [node("g1"), pod("a", {GPU: "8"}, "g1")], older=True)
    found.read()
    assert [row.name for row in found.jobs().rows] == ["ml/a"]
    for ask in (found.nodes, lambda: found.node("g1")):
        with pytest.raises(click.ClickException, match="the running scheduler does not answer which nodes there are"):
            ask()


def test_without_a_scheduler_that_answers_the_reason_is_that_of_the_reading(tmp_path: Path) -> None:
    found = Forbidden(tmp_path, [node("g1")], answers=False)
    with pytest.raises(click.ClickException, match="you may not list nodes"):
        found.read()
    assert not found.known
