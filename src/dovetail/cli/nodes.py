# SPDX-License-Identifier: Apache-2.0
"""`dovetail nodes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cli.answer_form import write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.columns import NODES
from dovetail.cli.console import Console
from dovetail.cli.listing import ListForm, list_options, selector_option, write_rows
from dovetail.cli.names import complete_nodes
from dovetail.cli.scheduling import quarantine_budget_option
from dovetail.cli.watching import watch_options, watch_rows

if TYPE_CHECKING:
    from dovetail.core.model import Requirement
    from dovetail.views.node_types import NodeList


@click.command(name="nodes")
@click.argument("name", required=False, default="", shell_complete=complete_nodes)
@cluster_options
@quarantine_budget_option("The budget of the scheduler, as `dovetail scheduler` has it. Default: read from its lease.")
@click.option("--unhealthy", is_flag=True, help="Only nodes that are not healthy, or not ready.")
@selector_option("Only nodes with these labels, as in pool=h100,!spot.")
@list_options(NODES)
@watch_options
def command(
    source: ClusterSource,
    name: str,
    budget: str,
    unhealthy: bool,
    labels: tuple[Requirement, ...],
    form: ListForm,
    every_s: float,
) -> None:
    """List the GPU nodes: state, GPUs by state, since when, why, and what happens next.

    NAME is a node, or a pattern with * and ?. Of one node all GPUs are listed. The states are those that the agents
    report. Where `dovetail operator` runs, each node that is not ready is listed with its step, what blocks it, what
    shows that, and what to do. The running scheduler answers, if there is one; else, and with --quarantine-budget, the
    cluster is read.
    """
    from dovetail.cli.nodes_report import show_more

    asked = NodeFilter(name, unhealthy, labels)
    source = replace(source, quarantine_budget=budget)
    if every_s:
        source.check_again()
        watch_rows(lambda: (_nodes(source, asked).nodes, source.now_ms), form, NODES, every_s, Console())
        return
    answer = _nodes(source, asked)
    if form.whole:
        write_answer(form, "NodeHealth", answer.nodes)
        return
    if answer.nodes or not form.notes:
        write_rows(form, NODES, answer.nodes, source.now_ms, Console())
    if form.notes and not form.columns:
        one = len(answer.nodes) == 1 and answer.nodes[0].node == name
        show_more(answer.nodes, source.now_ms, Console(), devices=one, budget=answer.budget)


class NodeFilter(Struct, frozen=True):
    """Which nodes are listed: those of this name or pattern, only those that are not healthy, or with these labels."""

    name: str = ""
    unhealthy: bool = False
    labels: tuple[Requirement, ...] = ()


def _nodes(source: ClusterSource, asked: NodeFilter) -> NodeList:
    """Raises ClickException if no GPU node has the name."""
    from dovetail.core.labels import holds

    found = ask_nodes(source, asked) or _read(source, asked)
    rows = [one for one in found.nodes if all(holds(term, one.labels.get(term.key)) for term in asked.labels)]
    return replace(found, nodes=tuple(rows))


def ask_nodes(source: ClusterSource, asked: NodeFilter) -> NodeList | None:
    """The answer of the running scheduler; None where the cluster has to be read. Raises ClickException."""
    from dovetail.kube.objects.views import NODE_LISTS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.node_types import NodeList

    if source.quarantine_budget:
        return None
    query = ({"name": asked.name} if asked.name else {}) | ({"unhealthy": "true"} if asked.unhealthy else {})
    return source.ask(ViewRequest(NODE_LISTS, source.namespace, query=query), NodeList)


def _read(source: ClusterSource, asked: NodeFilter) -> NodeList:
    """Raises ClickException."""
    from dovetail.kube.translate.quarantine_budget import budget_of
    from dovetail.views.names import JobNotFound
    from dovetail.views.nodes import node_list

    cluster = source.read()
    try:
        answer = node_list(
            cluster.state, cluster.feed.node_records.gpu_node, asked.name, unhealthy=asked.unhealthy
        )  # fmt: skip
    except JobNotFound as error:
        raise click.ClickException(str(error)) from error
    if not cluster.quarantine_budget and any(one.quarantine for one in answer.nodes):
        Console(stderr=True).print(
            f"[yellow]attention:[/yellow] the scheduler's quarantine budget is not known, as no lease with it can be "
            f"read: {budget_of(source.policy)} is assumed; set it by --quarantine-budget"
        )
    return answer
