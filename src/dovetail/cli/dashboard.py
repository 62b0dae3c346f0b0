# SPDX-License-Identifier: Apache-2.0
"""`dovetail dashboard`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console
from dovetail.cli.extras import needs
from dovetail.cli.log import log_options, start_log
from dovetail.cli.service import address_option, first_of, serve
from dovetail.kube.api.errors import KubeError

LISTEN = "127.0.0.1:10359"
_OWN = ("127.0.0.1", "localhost", "[::1]")
_log = logging.getLogger("dovetail.dashboard")


def _url(value: str | None) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"{value!r} is no address such as http://127.0.0.1:10351/metrics")
    return value or ""


@click.command(name="dashboard")
@cluster_options
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
@log_options
def command(
    source: ClusterSource,
    listen: str,
    authorize: bool,
    views_only: bool,
    scheduler_metrics: str,
    recording: Path | None,
    log_level: str,
    log_format: str,
) -> None:
    """Serve web pages about a cluster: fleet, queue, jobs, nodes, teams, leases and what-if, and the scheduler.

    The pages show what the commands print, and stay up to date. Read-only. On this machine they have the rights of the
    kubeconfig, and nothing else can reach them. Runs until Ctrl-C.
    """
    needs("dashboard")
    if listen.rpartition(":")[0] not in _OWN and not authorize:
        raise click.UsageError(
            f"--listen {listen} would show the cluster to all that reach it, with your rights: add --authorize"
        )
    for option, is_set in (("--authorize", authorize), ("--views-only", views_only)):
        if is_set and source.files:
            raise click.UsageError(f"{option} asks an API server; --file has none")
    from dovetail.dashboard import serve as dashboard

    start_log(log_level, log_format)
    try:
        listening = dashboard.bound(listen)
    except OSError as error:
        raise click.ClickException(f"--listen {listen}: {error}") from error
    host, port = listening.getsockname()[:2]

    def ready() -> None:
        Console().print(f"http://{host}:{port}/ shows {shown}. Ctrl-C ends it.", highlight=False)

    if source.config is None:
        from dovetail.dashboard.copied_cluster import CopiedCluster

        read, shown = source.read(), ", ".join(source.files)
        copy = CopiedCluster(shown, source.policy, source.scheduler_name, source.now_ms)
        copy.put_read(read)
        cluster = dashboard.ShownCluster(
            source.policy, source.scheduler_name, copy=copy, metrics_url=scheduler_metrics, recording=recording
        )
    else:
        shown = source.config.server
        cluster = dashboard.ShownCluster(
            source.policy, source.scheduler_name, source.config, None, views_only, scheduler_metrics, recording
        )
    try:
        serve(dashboard.run(cluster, listening, authorize=authorize, ready=ready), _log)
    except* (KubeError, OSError) as errors:
        raise click.ClickException(f"{shown}: {first_of(errors)}") from None
