# SPDX-License-Identifier: Apache-2.0
"""The cluster of the screen: read again and again, and asked for what the screen shows.

Rules
- What is shown is found by the functions of the commands: `jobs`, `queue`, `nodes` and `why`.
- Where the cluster may not be read, the running scheduler is asked, as by the commands.
- All of this takes time. It is done in one thread of its own, one thing after the other: so keys are answered
  meanwhile, and there are never two reads at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from io import StringIO
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cli.cluster import ClusterSource
from dovetail.cli.columns import NODES, QUEUE
from dovetail.cli.console import Console
from dovetail.cli.jobs import COLUMNS as JOBS
from dovetail.cli.jobs import MOST_AHEAD, ask_jobs
from dovetail.cli.listing import TABLE, write_rows
from dovetail.cli.nodes import NodeFilter, ask_nodes
from dovetail.cli.nodes_report import show_more
from dovetail.cli.output import moment
from dovetail.cli.queue import ask_queue
from dovetail.cli.watch.tables import HOLDERS, Grid, grid_of
from dovetail.cli.why import ask_why, explained, show_answers
from dovetail.kube.objects.views import NODE_HOLDERS
from dovetail.kube.reading.live_cluster import LiveCluster
from dovetail.kube.reading.views import ViewRequest
from dovetail.views.held_types import NodeHolder
from dovetail.views.job_list import job_list
from dovetail.views.job_states import UNFINISHED
from dovetail.views.job_types import JobFilter, JobList
from dovetail.views.node_holders import node_holders
from dovetail.views.node_types import NodeList
from dovetail.views.nodes import node_list
from dovetail.views.queue_positions import queue_positions
from dovetail.views.queue_types import QueuePosition
from dovetail.views.why_types import Why, WhyQuestion

if TYPE_CHECKING:
    from dovetail.views.why_types import AnyWhy

T = TypeVar("T")
_HEIGHT = 1000


class _Paper(StringIO):
    """A text that is laid out as on a terminal."""

    def isatty(self) -> bool:
        return True


class PrintedPage(Struct, frozen=True):
    """A text that is printed for a width, with colours for states, and the nodes that it is about."""

    print: Callable[[Console], None]
    nodes: tuple[str, ...] = ()

    def text(self, columns: int) -> str:
        """The text for a terminal of so many columns, with its escape sequences."""
        paper = _Paper()
        console = Console(file=paper)
        console.rich.size = columns, _HEIGHT
        self.print(console)
        return paper.getvalue()


class NodePage(Struct, frozen=True):
    """A node: what `dovetail nodes NODE` prints, and the holders of its GPUs."""

    page: PrintedPage
    holders: Grid


class _Answers(Struct, frozen=True):
    """Those of the running scheduler, where the cluster may not be read."""

    jobs: JobList
    queue: QueuePosition
    nodes: NodeList | None
    """None where an older scheduler does not know them."""


class WatchedCluster:
    """The cluster as it was read last. `read` and all questions raise ClickException."""

    def __init__(self, source: ClusterSource, wanted: JobFilter) -> None:
        self.source = source
        self._wanted = replace(wanted, states=UNFINISHED)
        self._cluster: LiveCluster | None = None
        self._answers: _Answers | None = None
        self.read_ms = 0

    @property
    def name(self) -> str:
        """The API server, or the files."""
        return self.source.config.server if self.source.config is not None else ", ".join(self.source.files)

    @property
    def changes(self) -> bool:
        """Whether it is worth to read it again."""
        return not self.source.files

    @property
    def known(self) -> bool:
        """Whether it was read."""
        return self._cluster is not None or self._answers is not None

    @property
    def read_at(self) -> str:
        """The time that is shown: `2026-11-22 12:00:00 UTC`."""
        return moment(self.read_ms).partition(".")[0] + " UTC"

    def read(self) -> None:
        """Read it. It stays as it was where that fails."""
        try:
            cluster, answers = self.source.read(), None
        except click.ClickException:
            cluster, answers = None, self._asked()
            if answers is None:
                raise
        self._cluster, self._answers = cluster, answers
        self.read_ms = self.source.now_ms

    def _asked(self) -> _Answers | None:
        jobs = ask_jobs(self.source, self._wanted, MOST_AHEAD)
        queue = ask_queue(self.source) if jobs is not None else None
        if jobs is None or queue is None:
            return None
        return _Answers(jobs, queue, ask_nodes(self.source, NodeFilter()))

    def _read_cluster(self) -> LiveCluster:
        if self._cluster is None:
            raise click.ClickException("the cluster was not read yet")
        return self._cluster

    def jobs(self) -> Grid:
        """The rows of `dovetail jobs`."""
        if self._answers is not None:
            answer = self._answers.jobs
        else:
            answer = job_list(self._read_cluster().state, self.read_ms, self._wanted, most_ahead=MOST_AHEAD)
        return grid_of(JOBS, answer.jobs, self.read_ms, lambda row: row.nodes)

    def queue(self) -> Grid:
        """Those of `dovetail queue`."""
        if self._answers is not None:
            answer = self._answers.queue
        else:
            answer = queue_positions(self._read_cluster().state, self.read_ms)
        return grid_of(QUEUE, answer.jobs, self.read_ms, lambda row: _nodes(place.node for place in row.places))

    def nodes(self, only: tuple[str, ...] = ()) -> Grid:
        """Those of `dovetail nodes`; `only` these nodes, or all."""
        rows = self._node_list().nodes
        rows = tuple(row for row in rows if row.node in only) if only else rows
        return grid_of(NODES, rows, self.read_ms, lambda row: (row.node,))

    def why(self, name: str, seen: tuple[str, ...]) -> PrintedPage:
        """The text of `dovetail why NAMESPACE/NAME`. `seen` are the nodes of the job by its list; the others are those
        on which others hold what it lacks."""
        source, now_ms = self.source, self.read_ms
        if self._answers is not None and (asked := ask_why(source, WhyQuestion(name))) is not None:
            parts = asked.answers
            found = _nodes((*seen, *(node for one in parts for node in _nodes_of(one))))
            return PrintedPage(lambda console: show_answers(parts, now_ms, console), found)
        cluster = self._read_cluster()
        answers = explained(source, cluster, WhyQuestion(name), lambda started, waiting: None).answers
        found = _nodes((*seen, *(node for one in answers for node in _nodes_of(one))))
        known = tuple(node for node in found if node in cluster.state.cluster.nodes.slots)
        return PrintedPage(lambda console: show_answers(answers, now_ms, console), known)

    def node(self, name: str) -> NodePage:
        """A node. Raises ClickException where no GPU node has the name."""
        now_ms, listed = self.read_ms, self._node_list()
        rows = tuple(row for row in listed.nodes if row.node == name)
        if not rows:
            raise click.ClickException(f"no GPU node is called {name}")

        def show(console: Console) -> None:
            write_rows(TABLE, NODES, rows, now_ms, console)
            show_more(rows, now_ms, console, devices=True, budget=listed.budget)

        return NodePage(PrintedPage(show, (name,)), grid_of(HOLDERS, self._holders(name), now_ms))

    def _holders(self, name: str) -> tuple[NodeHolder, ...]:
        if self._answers is None:
            return node_holders(self._read_cluster().state, name)
        asked = ViewRequest(NODE_HOLDERS, self.source.namespace, query={"node": name})
        found = self.source.ask(asked, tuple[NodeHolder, ...])
        if found is None:
            raise click.ClickException(f"the running scheduler does not answer which pods hold the GPUs of {name}")
        return found

    def _node_list(self) -> NodeList:
        if self._answers is not None:
            if self._answers.nodes is None:
                raise click.ClickException("the running scheduler does not answer which nodes there are")
            return self._answers.nodes
        cluster = self._read_cluster()
        return node_list(cluster.state, cluster.feed.node_records.gpu_node)


def _nodes(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))


def _nodes_of(answer: AnyWhy) -> list[str]:
    """The nodes in an answer about a pod: its own, those reserved for it, and those of the pods in its way."""
    if not isinstance(answer, Why):
        return []
    reserved = [node for held in answer.reserved if held.job == answer.job for node in held.nodes]
    return [*answer.node.split(","), *reserved, *(one.node for one in answer.holders)]


class WorkThread:
    """A thread that does one piece of work after the other. The program does not wait for it at its end: a server that
    does not answer keeps no one from leaving."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="watch").start()

    async def do(self, work: Callable[[], T]) -> T:
        """The result of the work; raises what it raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put((work, future))
        return await future

    def _work(self) -> None:
        while True:
            work, future = self._waiting.get()
            try:
                self._finish(future, future.set_result, work())
            except Exception as error:
                self._finish(future, future.set_exception, error)

    def _finish(self, future: asyncio.Future[Any], finish: Callable[[Any], None], result: object) -> None:
        def in_loop() -> None:
            if not future.done():
                finish(result)

        try:
            future.get_loop().call_soon_threadsafe(in_loop)
        except RuntimeError:
            # The screen is closed.
            return
