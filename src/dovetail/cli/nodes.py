# SPDX-License-Identifier: Apache-2.0
"""`dovetail nodes`."""

from __future__ import annotations

import click
from msgspec.structs import replace

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.output import count, foreign, output_option, span, write_json
from dovetail.cli.scheduling import quarantine_budget_option
from dovetail.kube.translate.quarantine_budget import budget_of
from dovetail.views.nodes import BEYOND_BUDGET, IN_FORCE, READY, STATES, NodeHealthView, node_healths

_STYLES = {"healthy": "green", "degraded": "yellow", "draining": "red", "quarantined": "red", "unknown": "dim"}

_PLACED = {
    "": "",
    IN_FORCE: " (no pod is placed on it)",
    BEYOND_BUDGET: f" (it stays in use: {BEYOND_BUDGET})",
}


@click.command(name="nodes")
@click.argument("name", required=False, default="")
@cluster_options
@quarantine_budget_option("The budget of the scheduler, as `dovetail scheduler` has it. Default: read from its lease.")
@click.option("--unhealthy", is_flag=True, help="Only nodes that are not healthy, or not ready.")
@output_option
def command(source: ClusterSource, name: str, budget: str, unhealthy: bool, output: str) -> None:
    """List the GPU nodes: state, GPUs by state, since when, why, and what happens next.

    NAME is a node, or a pattern with * and ?. Of one node all GPUs are listed. The states are those that the agents
    report. Where `dovetail operator` runs, each node that is not ready is listed with its step, what blocks it, what
    shows that, and what to do.
    """
    cluster = replace(source, quarantine_budget=budget).read()
    state, reported = cluster.state, cluster.feed.node_records.gpu_node
    answer = node_healths(state, reported, name, unhealthy=unhealthy)
    if name and not answer and not (unhealthy and node_healths(state, reported, name)):
        raise click.ClickException(f"no GPU node is called {name}")
    if not cluster.quarantine_budget and any(one.quarantine for one in answer):
        assumed = budget_of(source.policy)
        Console(stderr=True).print(
            f"[yellow]attention:[/yellow] the scheduler's quarantine budget is not known, as no lease with it can be "
            f"read: {assumed} is assumed; set it by --quarantine-budget"
        )
    if output == "json":
        write_json(answer)
    else:
        one = len(answer) == 1 and answer[0].node == name
        show(answer, source.now_ms, Console(), devices=one, budget=state.cluster.quarantines.limit)


def show(
    answer: tuple[NodeHealthView, ...], now_ms: int, console: Console, *, devices: bool = False, budget: int = 0
) -> None:
    """Print the nodes, and with `devices` their GPUs. `budget`: how many nodes may be quarantined."""
    if not answer:
        console.print("No GPU node is listed.")
        return
    table = Table("node", "state", right("GPUs"), *map(right, STATES), "since", prose("why"), prose("next"))
    for one in answer:
        counts = (str(one.by_state[state]) if one.by_state else "-" for state in STATES)
        numbers = (str(one.gpus), *counts, _since(one.since_ms, now_ms))
        table.add_row(one.node, _styled(one.state), *numbers, _text(one.why), _text(one.next + _PLACED[one.quarantine]))
    console.print(table)
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
    return f"[{_STYLES[state]}]{state}[/]"
