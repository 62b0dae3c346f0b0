# SPDX-License-Identifier: Apache-2.0
"""`dovetail top`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import INCOMPLETE
from dovetail.cli.prometheus import access_of, authority_option, tenant_option, token_option
from dovetail.cli.snapshots import facts_in, snapshot_option

if TYPE_CHECKING:
    from dovetail.cli.top.screen import Screen
    from dovetail.cli.top.sources import TopSource
    from dovetail.views.top import By, Order, Top
    from dovetail.views.top_rows import TopReading

_AGAIN_S = 1.5


@click.command(name="top")
@click.option("--by", type=click.Choice(["node", "job", "team", "replica"]), default="node", show_default=True,
              help="A line for each GPU by node, for each job, for each team (queue, else namespace), or for each "
              "replica of an inference engine (with --prometheus).")  # fmt: skip
@click.option("--sort", "order", type=click.Choice(["name", "use", "memory", "power", "temperature", "class"]),
              default="name", show_default=True, help="Order of the lines; the highest number is first.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and end. Default if the output is not a terminal.")
@click.option("--filter", "words", metavar="WORDS", default="", help="Only GPUs with all these words in a name.")
@click.option("--prometheus", "url", metavar="URL", envvar="DOVETAIL_PROMETHEUS", default="",
              help="Read this Prometheus in place of the exporters.")  # fmt: skip
@token_option
@authority_option
@tenant_option
@snapshot_option
@kubeconfig_options
@answer_option
def command(
    kubeconfig: str | None,
    context: str | None,
    files: tuple[str, ...],
    by: By,
    order: Order,
    once: bool,
    words: str,
    form: AnswerForm,
    url: str,
    token: str | None,
    authority: str | None,
    tenant: str,
) -> None:
    """Show which pod computes on which GPU now, and what bounds it.

    On a terminal the screen is live: ? lists the keys. Reads the metrics of the agents, or of dcgm-exporter, through
    the API server, or from a Prometheus. Users that may not read these see which pods hold which GPUs, as the running
    scheduler answers: their own, and others as one. It changes nothing.
    """
    from dovetail.cli.top.report import coloured
    from dovetail.cli.top.screen import Screen, started
    from dovetail.cli.top.sources import ExporterSource, PrometheusSource
    from dovetail.views.top import TopQuery, top
    from dovetail.views.top_rows import TopReading

    query, console = TopQuery(by, order, words), Console()
    if by == "replica" and not url:
        raise click.UsageError("--by replica: the metrics of inference engines are read with --prometheus")
    if files:
        _, reading = facts_in(files, "top", TopReading, kubeconfig=kubeconfig, context=context, prometheus=url)
        _print(top(reading, query), form, console)
        return
    if url:
        source: TopSource = PrometheusSource(access_of(url, token, authority, tenant))
    else:
        source = ExporterSource(config_of(kubeconfig, context))
    if not form.whole and not once and console.is_terminal and sys.stdin.isatty():
        screen = started(Screen(order=order, words=words), by)
        if not run(_live(source, screen, colours=coloured(console)), source.name):
            raise click.Abort
        return
    _print(top(run(read_once(source), source.name), query), form, console)


def _print(answer: Top, form: AnswerForm, console: Console) -> None:
    from dovetail.cli.top.report import show

    if form.whole:
        write_answer(form, "Top", answer)
    else:
        show(answer, console)
    if answer.summary.unread_nodes:
        sys.exit(INCOMPLETE)


async def _live(source: TopSource, screen: Screen, *, colours: bool) -> bool:
    from dovetail.cli.top.live import live

    async with source.opened() as read:
        return await live(screen, read, source.interval_s, colours=colours)


async def read_once(source: TopSource) -> TopReading:
    """One reading, of two samples where rates need them. Raises KubeError."""
    import asyncio

    async with source.opened() as read:
        reading = await read()
        if source.window.needs_rates:
            await asyncio.sleep(_AGAIN_S)
            reading = await read()
    return reading
