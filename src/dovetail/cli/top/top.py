# SPDX-License-Identifier: Apache-2.0
"""`dovetail top`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from dovetail.cli.cluster import run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import INCOMPLETE, output_option, write_json

if TYPE_CHECKING:
    from dovetail.cli.top.screen import Screen
    from dovetail.cli.top.sources import TopSource
    from dovetail.views.top import By, Order
    from dovetail.views.top_rows import TopReading

_AGAIN_S = 1.5


@click.command(name="top")
@click.option("--by", type=click.Choice(["node", "job", "team"]), default="node", show_default=True,
              help="A line for each GPU by node, for each job, or for each team (queue, else namespace).")  # fmt: skip
@click.option("--sort", "order", type=click.Choice(["name", "use", "memory", "power", "temperature", "class"]),
              default="name", show_default=True, help="Order of the lines; the highest number is first.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and end. Default if the output is not a terminal.")
@click.option("--filter", "words", metavar="WORDS", default="", help="Only GPUs with all these words in a name.")
@click.option("--prometheus", "url", metavar="URL", envvar="DOVETAIL_PROMETHEUS", default="",
              help="Read this Prometheus in place of the exporters.")  # fmt: skip
@click.option("--prometheus-token", "token", type=click.Path(exists=True, dir_okay=False),
              envvar="DOVETAIL_PROMETHEUS_TOKEN", help="File with the bearer token for it.")  # fmt: skip
@click.option("--prometheus-ca", "authority", type=click.Path(exists=True, dir_okay=False),
              envvar="DOVETAIL_PROMETHEUS_CA", help="File with the certificates of its authority.")  # fmt: skip
@kubeconfig_options
@output_option
def command(
    kubeconfig: str | None,
    context: str | None,
    by: By,
    order: Order,
    once: bool,
    words: str,
    output: str,
    url: str,
    token: str | None,
    authority: str | None,
) -> None:
    """Show which pod computes on which GPU now, and what bounds it.

    On a terminal the screen is live: ? lists the keys. Reads the metrics of the agents, or of dcgm-exporter, through
    the API server, or from a Prometheus. It changes nothing.
    """
    from dovetail.cli.top.report import coloured, show
    from dovetail.cli.top.screen import Screen, started
    from dovetail.cli.top.sources import ExporterSource, PrometheusSource
    from dovetail.kube.reading.prometheus import PrometheusAccess
    from dovetail.views.top import TopQuery, top

    if url:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise click.UsageError(f"--prometheus: {url!r} is no URL such as http://prometheus.monitoring:9090")
        source: TopSource = PrometheusSource(PrometheusAccess(url, token or "", authority or ""))
    else:
        source = ExporterSource(config_of(kubeconfig, context))
    query = TopQuery(by, order, words)
    console = Console()
    if output == "table" and not once and console.is_terminal and sys.stdin.isatty():
        screen = started(Screen(order=order, words=words), by)
        if not run(_live(source, screen, colours=coloured(console)), source.name):
            raise click.Abort
        return
    answer = top(run(_once(source), source.name), query)
    if output == "json":
        write_json(answer)
    else:
        show(answer, console)
    if answer.summary.unread_nodes:
        sys.exit(INCOMPLETE)


async def _live(source: TopSource, screen: Screen, *, colours: bool) -> bool:
    from dovetail.cli.top.live import live

    async with source.opened() as read:
        return await live(screen, read, source.interval_s, colours=colours)


async def _once(source: TopSource) -> TopReading:
    import asyncio

    async with source.opened() as read:
        reading = await read()
        if source.window.needs_rates:
            await asyncio.sleep(_AGAIN_S)
            reading = await read()
    return reading
