# SPDX-License-Identifier: Apache-2.0
"""The commands print the same from the file and from a real Prometheus that has scraped the collector's endpoint."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dovetail.cli import cli
from dovetail.history.collector.endpoints import CollectorEndpoints
from dovetail.history.prometheus.publication import Publication
from dovetail.history.records import DAY_MS, HistoryBatch
from dovetail.history.sqlite.store import SqliteStore
from dovetail.kube import probe_server
from tests.cli.cost_history import write
from tests.patience import PATIENCE_S
from tests.terminal import environment
from tools.prometheus.server import Prometheus

pytestmark = pytest.mark.plane
JOBS = ("ns-vision/train", "eval")
COMMANDS = (
    *(f"cost --period 2026-11 --by {by}" for by in ("team", "job", "pod", "node", "gpu", "day", "label=team")),
    "cost --period 2026-11 -o focus",
    "cost --period 2026-11-03T05:00..2026-11-07T01:30 --by user --idle weighted",
    "report --period 2026-11 --by node",
    "report --period 36h",
    "idle",
    "cost --period 2026-11-03T05:00..2026-11-07T01:30 --by job -n ns-vision",
    "history --since 30d",
    *(f"history {job}" for job in JOBS),
    "advise",
    "capacity --period 2026-11",
)


@contextmanager
def listening(published: Path, token: Path) -> Iterator[int]:
    """The port of the endpoint of a collector."""
    loop, began, ports = asyncio.new_event_loop(), threading.Event(), []

    async def serve() -> None:
        async with probe_server.opened(
            "127.0.0.1:0", CollectorEndpoints("nothing", published, token).answers()
        ) as port:
            ports.append(port)
            began.set()
            await end.wait()

    end = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert began.wait(PATIENCE_S)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


def printed(command: str, *source: str) -> str:
    result = CliRunner().invoke(cli, [*command.split(), *source], env=environment(200))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_commands_print_the_same_from_a_prometheus(
    prometheus_factory: Callable[..., Prometheus], tmp_path: Path
) -> None:
    store = tmp_path / "history.db"
    write(store)
    with closing(SqliteStore(store)) as file:
        pods = [replace(pod, outcome="Completed" if pod.ended_ms else "") for pod in file.pods(file.known())]
        file.write(HistoryBatch(file.known().end_ms, pods=pods))
        while file.retain(file.known().end_ms):
            pass
        assert len(list(file.pod_days(file.known()))) > 10
    publication = Publication(store, kept_ms=100 * DAY_MS)
    published = publication.publish()
    token = tmp_path / "token"
    token.write_text("a token of a scrape")
    with listening(publication.path, token) as port:
        scrape: dict[str, Any] = {"job_name": "collector", "metrics_path": "/history"}
        scrape |= {"authorization": {"credentials_file": str(token)}}
        scrape |= {"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        prometheus = prometheus_factory(config={"scrape_configs": [scrape]})
        series = 'count({__name__=~"dovetail_history_day|dovetail_history_part"})'
        prometheus.await_(lambda p: p.query(series), PATIENCE_S, "the first scrape")
        assert prometheus.query(series)[0].value == published.series
    for command in COMMANDS:
        assert printed(command, "--prometheus", prometheus.url) == printed(command, "--store", str(store)), command
