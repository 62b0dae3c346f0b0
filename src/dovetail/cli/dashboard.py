# SPDX-License-Identifier: Apache-2.0
"""`dovetail dashboard`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource
from msgspec import Struct

from dovetail.cli.cluster import ClusterSource, late_cluster_options
from dovetail.cli.console import Console
from dovetail.cli.extras import needs
from dovetail.cli.history_store import HistorySource, past_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.price_options import book_of, price_options
from dovetail.cli.service import address_option, first_of, serve
from dovetail.kube.api.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from dovetail.cost.price_sources import PriceSources

LISTEN = "127.0.0.1:10359"
_OWN = ("127.0.0.1", "localhost", "[::1]")
_WITH_REPLAY = ("--replay", "--listen", "--scheduler-name", "--log-level", "--log-format")
_log = logging.getLogger("dovetail.dashboard")


def _url(value: str | None) -> str:
    try:
        parts = urlsplit(value or "http://127.0.0.1")
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise click.BadParameter(f"{value!r} is no address such as http://127.0.0.1:10351/metrics")
    return value or ""


class _Asked(Struct, frozen=True):
    """The options of their own."""

    authorize: bool
    views_only: bool
    scheduler_metrics: str
    recording: Path | None
    replay: Path | None
    actions: bool
    past: HistorySource
    prices: PriceSources


@click.command(name="dashboard")
@late_cluster_options
@address_option("--listen", LISTEN, "HOST:PORT for the pages; port 0 for a free one.")
@click.option(
    "--authorize", is_flag=True,
    help="Show each user what the API server lets the bearer token of the request see. Needed for other addresses than "
    "127.0.0.1.",
)  # fmt: skip
@click.option(
    "--views-only", is_flag=True,
    help="Ask the running scheduler alone, and wait where there is none; without this the cluster is followed there.",
)  # fmt: skip
@click.option(
    "--scheduler-metrics", metavar="URL", callback=lambda _c, _p, value: _url(value),
    help="Where the scheduler has its metrics, for the page about it, as http://127.0.0.1:10351/metrics.",
)  # fmt: skip
@click.option(
    "--recording", metavar="PATH", type=click.Path(exists=True, path_type=Path),
    help="The recording of the scheduler: its decisions can be opened.",
)  # fmt: skip
@click.option(
    "--replay", metavar="PATH", type=click.Path(exists=True, path_type=Path),
    help="Show a recorded or simulated day instead, with a time bar. No cluster is asked.",
)  # fmt: skip
@click.option(
    "--actions", is_flag=True,
    help="Let viewers drain nodes, notify owners and suspend jobs, each with the own rights.",
)  # fmt: skip
@past_options
@price_options
@log_options
def command(cluster: Callable[[], ClusterSource], listen: str, log_level: str, log_format: str, **options: Any) -> None:
    """Serve web pages about a cluster: fleet, queue, jobs, nodes, teams, leases, costs, waste, what-if, the scheduler.

    The pages show what the commands print, and stay up to date. Read-only without --actions. On this machine they have
    the rights of the kubeconfig, and nothing else can reach them. Costs and waste are of the history: that of the
    collector of the cluster, or with --store or --prometheus another one. Runs until Ctrl-C.
    """
    needs("dashboard")
    asked = _Asked(**options)
    if asked.replay is not None:
        start_log(log_level, log_format)
        _replay(asked.replay, listen)
        return
    source = cluster()
    if listen.rpartition(":")[0] not in _OWN and not asked.authorize:
        raise click.UsageError(
            f"--listen {listen} would show the cluster to all that reach it, with your rights: add --authorize"
        )
    of_server = (
        ("--authorize", asked.authorize), ("--views-only", asked.views_only), ("--actions", asked.actions),
    )  # fmt: skip
    for option, is_set in of_server:
        if is_set and source.files:
            raise click.UsageError(f"{option} asks an API server; --file has none")
    asked.past.check_prices(asked.prices)
    if "-" in asked.prices.files:
        raise click.UsageError("--prices - reads standard input once: name a file, which is read again for each answer")
    book_of(asked.prices)
    from dovetail.dashboard import serve as dashboard
    from dovetail.dashboard.past_process import ReadHistory

    history = None
    if not asked.past.asks:
        past = asked.past
        history = ReadHistory(str(past.store or ""), past.prometheus, past.matchers, asked.prices)
    start_log(log_level, log_format)
    listening, url = _bound(listen)

    def ready(key: str) -> None:
        Console().print(f"{url}{key} shows {shown}. Ctrl-C ends it.", highlight=False)

    if source.config is None:
        from dovetail.dashboard.copied_cluster import CopiedCluster

        read, shown = source.read(), ", ".join(source.files)
        copy = CopiedCluster(shown, source.policy, source.scheduler_name, source.now_ms)
        copy.put_read(read)
        config, still = None, copy
    else:
        shown = source.config.server
        config, still = source.config, None
    shown_cluster = dashboard.ShownCluster(
        source.policy, source.scheduler_name, config, still, history, asked.views_only, asked.scheduler_metrics,
        asked.recording, asked.actions,
    )  # fmt: skip
    try:
        serve(dashboard.run(shown_cluster, listening, authorize=asked.authorize, ready=ready), _log)
    except* (KubeError, OSError) as errors:
        raise click.ClickException(f"{shown}: {first_of(errors)}") from None


def _bound(listen: str) -> tuple[socket, str]:
    """A socket at this address, and its URL. Raises ClickException."""
    from dovetail.dashboard import serve as dashboard

    try:
        listening = dashboard.bound(listen)
    except OSError as error:
        raise click.ClickException(f"--listen {listen}: {error}") from error
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return listening, f"http://{host}:{port}/"


def _replay(path: Path, listen: str) -> None:
    """Serve the pages of a recorded day."""
    context = click.get_current_context()
    set_options = [
        max(one.opts, key=len) for one in context.command.params
        if one.name and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
    ]  # fmt: skip
    if wrong := [one for one in set_options if one not in _WITH_REPLAY]:
        raise click.UsageError(f"--replay shows a recording alone: leave out {', '.join(wrong)}")
    if listen.rpartition(":")[0] not in _OWN:
        raise click.UsageError(f"--listen {listen} would show the recording to all that reach it: use 127.0.0.1")
    from dovetail.dashboard import serve as dashboard
    from dovetail.dashboard.day_pages import DayPages
    from dovetail.dashboard.recorded_day import RecordedDay
    from dovetail.recording.reader import BadRecording

    try:
        day = RecordedDay(path)
    except BadRecording as error:
        raise click.ClickException(str(error)) from error
    listening, url = _bound(listen)

    def ready() -> None:
        size = f"{day.size_bytes / (1 << 20):.1f} MiB"
        Console().print(f"{url} shows {path}, {size}, which is being read. Ctrl-C ends it.", highlight=False)

    serve(dashboard.run_replay(DayPages(day, context.params["scheduler_name"]), listening, ready), _log)
