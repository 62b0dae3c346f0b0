# SPDX-License-Identifier: Apache-2.0
"""The process: the source, the board and the web server, until cancelled."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from msgspec import Struct
from starlette.types import ASGIApp

from dovetail.core.policy import Policy
from dovetail.dashboard.access import Accesses, OwnAccess, ReviewedAccess
from dovetail.dashboard.actions import Actions
from dovetail.dashboard.app import SchedulerSources, app_of
from dovetail.dashboard.board import PageBoard
from dovetail.dashboard.copied_cluster import CopiedCluster, follow
from dovetail.dashboard.day_pages import DayPages
from dovetail.dashboard.past_process import ReadHistory
from dovetail.dashboard.past_sources import CollectorHistory, NoHistory, OwnHistory, WithBudgets
from dovetail.dashboard.recorded_decisions import DecisionSource, RecordedDecisions, SchedulersDecisions
from dovetail.dashboard.replay_app import replay_app
from dovetail.dashboard.responses import EndsQuietly
from dovetail.dashboard.scheduler_metrics import SchedulerMetrics
from dovetail.dashboard.share_samples import ShareSamples
from dovetail.dashboard.sources import PredictingSource, SchedulerViews, ViewSource
from dovetail.dashboard.viewers import Viewers
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.reviews import Reviews
from dovetail.kube.objects.views import NODE_HOLDERS
from dovetail.kube.reading.views import NoSuchObject, NotServed, NoView, ViewRequest, ask_view

_LAST_BYTES_S = 1


class ShownCluster(Struct, frozen=True):
    """What is shown: the cluster of `config`, or `copy`, one that stands still. `ours` is the name of the scheduler.
    `history` is what is read of the past; without it the collector of the cluster is asked. With `views_only` nothing
    but the running scheduler is asked. `metrics_url` is where that has its metrics, and `recording` what it writes,
    where these are known. With `actions` viewers may change the cluster, each with the own rights."""

    policy: Policy
    ours: str
    config: ClusterConfig | None = None
    copy: CopiedCluster | None = None
    history: ReadHistory | None = None
    views_only: bool = False
    metrics_url: str = ""
    recording: Path | None = None
    actions: bool = False


def bound(address: str) -> socket.socket:
    """A socket at HOST:PORT or [HOST]:PORT, port 0 for any. Raises OSError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, int(port)), family=family)


async def run(
    cluster: ShownCluster, listening: socket.socket, *, authorize: bool, ready: Callable[[str], None]
) -> None:
    """Serve the pages until cancelled; `ready` is called when they are there, with what follows their address: the key
    of actions, "" for none. With `authorize` the API server decides
    what the user of each token may see. Raises KubeError."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        client = None
        if cluster.config is not None:
            client = await stack.enter_async_context(Client(cluster.config, user_agent="dovetail-dashboard"))
        source = await _source(cluster, client, tasks)
        accesses: Accesses = OwnAccess()
        if authorize:
            assert client is not None
            accesses = ReviewedAccess(Reviews(client))
        board = PageBoard(source, cluster.policy.fabric, now_ms, await _past(cluster, client, stack))
        samples = None
        if cluster.copy is None:
            samples = ShareSamples(source, now_ms)
            tasks.create_task(samples.run())
        scheduler = SchedulerSources(
            SchedulerMetrics(cluster.metrics_url, now_ms) if cluster.metrics_url else None,
            _decisions(cluster, source),
            samples,
        )
        actions = None
        if cluster.actions and cluster.config is not None:
            actions = Actions(Viewers(cluster.config, tokens=authorize), board, now_ms)
        await stack.enter_async_context(serving(board, accesses, listening, scheduler, actions))
        ready(f"#key={actions.viewers.key}" if actions is not None and actions.viewers.key else "")
        await asyncio.get_running_loop().create_future()


async def run_replay(pages: DayPages, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the pages of a recorded day until cancelled; `ready` is called when they are there."""
    async with listening_app(replay_app(pages), listening):
        ready()
        await asyncio.get_running_loop().create_future()


async def _source(cluster: ShownCluster, client: Client | None, tasks: asyncio.TaskGroup) -> PredictingSource:
    """The running scheduler where the API server has its views, else a copy of the cluster."""
    if cluster.copy is not None:
        return cluster.copy
    assert cluster.config is not None and client is not None
    if not cluster.views_only:
        try:
            await ask_view(client, ViewRequest(NODE_HOLDERS, cluster.config.namespace, query={"node": ""}))
        except NotServed:
            copy = CopiedCluster(cluster.config.server, cluster.policy, cluster.ours)
            tasks.create_task(follow(copy, cluster.config, cluster.ours))
            return copy
        except (NoView, NoSuchObject):
            pass
    return SchedulerViews(cluster.config, client)


def _decisions(cluster: ShownCluster, source: PredictingSource) -> DecisionSource | None:
    if cluster.recording is not None:
        return RecordedDecisions(cluster.recording)
    return SchedulersDecisions(source) if isinstance(source, SchedulerViews) else None


async def _past(cluster: ShownCluster, client: Client | None, stack: AsyncExitStack) -> ViewSource:
    own: ViewSource = NoHistory()
    if cluster.history is not None:
        own = await stack.enter_async_context(aclosing(OwnHistory(cluster.history)))
    if cluster.config is None or client is None:
        return own
    if cluster.history is None:
        own = CollectorHistory(cluster.config, client)
    return WithBudgets(own, cluster.config)


class _Server(uvicorn.Server):
    """Leaves signals to the command. `ready` is set when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    board: PageBoard,
    accesses: Accesses,
    listening: socket.socket,
    scheduler: SchedulerSources = SchedulerSources(),  # noqa: B008
    actions: Actions | None = None,
) -> AsyncIterator[None]:
    async with listening_app(app_of(board, accesses, scheduler, actions), listening, board.close):
        yield


@asynccontextmanager
async def listening_app(
    app: ASGIApp, listening: socket.socket, close: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """The application is served; `close` is called before that ends."""
    config = uvicorn.Config(
        EndsQuietly(app), log_level="warning", access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=_LAST_BYTES_S, timeout_keep_alive=60, limit_concurrency=2048,
    )  # fmt: skip
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.ready.wait()
        yield
    finally:
        close()
        server.should_exit = True
        await task


def now_ms() -> int:
    """The time of this machine in epoch milliseconds."""
    return time.time_ns() // 1_000_000
