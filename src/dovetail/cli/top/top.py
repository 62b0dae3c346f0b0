# SPDX-License-Identifier: Apache-2.0
"""`dovetail top`."""

from __future__ import annotations

import asyncio
import sys
import time

import click

from dovetail.cli.cluster import run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import INCOMPLETE, output_option, write_json
from dovetail.cli.top.lines import Line, gpu_lines, group_lines, printable, summary
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.reading.gpu_exporters import GpuExporters
from dovetail.views.top import By, Order, Top, TopQuery, top
from dovetail.views.top_rows import TopWindow

_PATIENCE_S = 3.0
_AGAIN_S = 1.5
_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "reverse": "7"}
NOTHING = (
    "No GPU metrics: no pod of the agent (label app.kubernetes.io/name=dovetail-agent) or of dcgm-exporter was found. "
    "Install the agent: kubectl apply -k deploy/agent"
)


@click.command(name="top")
@click.option("--by", type=click.Choice(["node", "job", "team"]), default="node", show_default=True,
              help="A line for each GPU by node, for each job, or for each team (queue, else namespace).")  # fmt: skip
@click.option("--sort", "order", type=click.Choice(["name", "use", "memory", "power", "temperature", "class"]),
              default="name", show_default=True, help="Order of the lines; the highest number is first.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and end. Default if the output is not a terminal.")
@click.option("--filter", "words", metavar="WORDS", default="", help="Only GPUs with all these words in a name.")
@kubeconfig_options
@output_option
def command(
    kubeconfig: str | None, context: str | None, by: By, order: Order, once: bool, words: str, output: str
) -> None:
    """Show which pod computes on which GPU now, and what bounds it.

    Reads the metrics of the agents, or of dcgm-exporter, through the API server. It changes nothing.
    """
    config = config_of(kubeconfig, context)
    answer = run(_once(config, TopQuery(by, order, words)), config.server)
    if output == "json":
        write_json(answer)
    else:
        show(answer, Console())
    if answer.summary.unread_nodes:
        sys.exit(INCOMPLETE)


async def _once(config: ClusterConfig, query: TopQuery) -> Top:
    window = TopWindow()
    async with GpuExporters(config) as exporters:
        readings = await exporters.read(_PATIENCE_S)
        window.add(readings.nodes)
        if window.needs_rates:
            await asyncio.sleep(_AGAIN_S)
            readings = await exporters.read(_PATIENCE_S)
            window.add(readings.nodes)
    return top(window, query, time.time(), config.server, readings.notes)


def show(answer: Top, console: Console) -> None:
    """Print the answer: a line for each GPU, or for each job or team."""
    if not answer.summary.nodes:
        console.print(NOTHING)
        return
    colours = console.is_terminal and not console.no_color and console.color_system is not None
    lines: list[Line] = []
    if answer.by == "node":
        table = gpu_lines(answer.gpus, None)
        lines = [table.heading, *map(table.line, answer.gpus)]
    else:
        groups = group_lines(answer.groups, answer.by, None)
        lines = [groups.heading, *map(groups.line, answer.groups)]
    lines.append([(summary(answer), "")])
    lines += [[(f"node {printable(name)}: {printable(fault)}", "red")] for name, fault in answer.faults.items()]
    lines += [[(f"attention: {printable(note)}", "yellow")] for note in answer.notes]
    console.file.write("".join(f"{painted(line, colours=colours).rstrip()}\n" for line in lines))


def painted(line: Line, *, colours: bool) -> str:
    """The line with the terminal's codes for its styles."""
    if not colours:
        return "".join(text for text, _ in line)
    return "".join(f"\x1b[{_SGR[style]}m{text}\x1b[0m" if style else text for text, style in line)
