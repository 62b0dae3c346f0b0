# SPDX-License-Identifier: Apache-2.0
"""`dovetail nodes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.columns import NODE_STYLES, NODES
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.listing import ListForm, list_options, selector_option, write_answer, write_rows
from dovetail.cli.output import count, foreign, span
from dovetail.cli.scheduling import quarantine_budget_option
from dovetail.cli.watching import watch_options, watch_rows
from dovetail.kube.translate.quarantine_budget import budget_of
from dovetail.views.nodes import BEYOND_BUDGET, READY, NodeHealthView, node_healths

if TYPE_CHECKING:
    from dovetail.core.model import Requirement
    from dovetail.kube.reading.state import LiveCluster


@click.command(name="nodes")
@click.argument("name", required=False, default="")
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
    shows that, and what to do.
    """
    asked = NodeFilter(name, unhealthy, labels)
    source = replace(source, quarantine_budget=budget)
    if every_s:
        source.check_again()
        watch_rows(lambda: (_nodes(source.read(), asked), source.now_ms), form, NODES, every_s, Console())
        return
    cluster = source.read()
    answer = _nodes(cluster, asked)
    if not cluster.quarantine_budget and any(one.quarantine for one in answer):
        assumed = budget_of(source.policy)
        Console(stderr=True).print(
            f"[yellow]attention:[/yellow] the scheduler's quarantine budget is not known, as no lease with it can be "
            f"read: {assumed} is assumed; set it by --quarantine-budget"
        )
    if form.whole:
        write_answer(form, "NodeHealth", answer)
        return
    if answer or not form.notes:
        write_rows(form, NODES, answer, source.now_ms, Console())
    if form.notes and not form.columns:
        one = len(answer) == 1 and answer[0].node == name
        show_more(answer, source.now_ms, Console(), devices=one, budget=cluster.state.cluster.quarantines.limit)


class NodeFilter(Struct, frozen=True):
    """Which nodes are listed: those of this name or pattern, only those that are not healthy, or with these labels."""

    name: str = ""
    unhealthy: bool = False
    labels: tuple[Requirement, ...] = ()


def _nodes(cluster: LiveCluster, asked: NodeFilter) -> tuple[NodeHealthView, ...]:
    """Raises ClickException if no GPU node has the name."""
    from dovetail.core.labels import holds

    state, reported = cluster.state, cluster.feed.node_records.gpu_node
    answer = node_healths(state, reported, asked.name, unhealthy=asked.unhealthy)
    if asked.name and not answer and not (asked.unhealthy and node_healths(state, reported, asked.name)):
        raise click.ClickException(f"no GPU node is called {asked.name}")
    return tuple(one for one in answer if all(holds(term, one.labels.get(term.key)) for term in asked.labels))


def show_more(
    answer: tuple[NodeHealthView, ...], now_ms: int, console: Console, *, devices: bool = False, budget: int = 0
) -> None:
    """Print what stands below the list: with `devices` the GPUs of the node, then maintenance, and the nodes that are
    not ready. `budget`: how many nodes may be quarantined."""
    if not answer:
        console.print("No GPU node is listed.")
        return
    if devices:
        table = Table("GPU", "uuid", "product", "state", "since", "code", prose("why"), prose("next"))
        for gpu in answer[0].devices:
            named = (str(gpu.index), _text(gpu.uuid), _text(gpu.product), _styled(gpu.state))
            table.add_row(*named, _since(gpu.since_ms, now_ms), _text(gpu.code), _text(gpu.reason), _text(gpu.next))
        console.print(table)
    for one in answer:
        if one.maintenance:
            console.print(f"{one.node} is in maintenance, by {_text(one.maintenance)}")
    _show_blocked(answer, now_ms, console, whole=devices)
    if any(one.quarantine == BEYOND_BUDGET for one in answer):
        console.print(f"The scheduler's budget allows {count(budget, 'quarantined node')} at a time.")


def _show_blocked(answer: tuple[NodeHealthView, ...], now_ms: int, console: Console, *, whole: bool) -> None:
    """The nodes that are not ready; of one node alone (`whole`) also what shows it, and its last validation."""
    found = [(one.node, one.readiness) for one in answer if one.readiness is not None]
    blocked = [(name, one) for name, one in found if one.step != READY]
    if blocked:
        table = Table("not ready", "step", "since", "reason", prose("what is missing"), prose("what to do"))
        for name, one in blocked:
            since = _since(one.since_ms, now_ms)
            table.add_row(name, _text(one.step), since, _text(one.reason), _text(one.message), _text(one.action))
        console.print(table)
    if whole:
        for _, one in found:
            if one.evidence and one.step != READY:
                console.print(f"Shown by {_text(one.evidence)}{f': {_text(one.line)}' if one.line else ''}")
            if one.validated_ms:
                devices = f"chosen {_text(one.chosen)}, allocated {_text(one.allocated)}"
                console.print(f"Validated {_since(one.validated_ms, now_ms)} ago: {devices}")


def _text(text: str) -> str:
    """Text of another writer; "-" for none."""
    return foreign(text) or "-"


def _since(since_ms: int, now_ms: int) -> str:
    return span(max(0, now_ms - since_ms)) if since_ms else "-"


def _styled(state: str) -> str:
    return f"[{NODE_STYLES[state]}]{state}[/]"
