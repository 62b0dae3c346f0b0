# SPDX-License-Identifier: Apache-2.0
"""`dovetail priority`."""

from __future__ import annotations

import click
from rich.markup import escape

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.output import ago, key_of, namespace_option, output_option, span, write_json
from dovetail.views.jobs import JobNotFound
from dovetail.views.rank import STANDINGS, RankLevel, RankView, rank

_SHOWN = 20
_DECIDED = {
    "standing": "how they stand decides",
    "queue priority": "the priority of the queues decides",
    "usage": "what they used by their weight decides",
    "queue age": "they are equal: the older one comes first",
    "alone": "in no other queue here anybody waits",
}


@click.command(name="priority")
@click.argument("job")
@namespace_option
@cluster_options
@output_option
def command(source: ClusterSource, job: str, namespace: str | None, output: str) -> None:
    """Say why JOB ([NAMESPACE/]NAME) has its place in the line, who is before it, and what would change that.

    JOB is a gang, a pod, or what made the pods. The terms are those of the scheduler's own core, from the top of the
    tree of queues to the job.
    """
    key = key_of("JOB", job, namespace, source.namespace)
    state = source.state()
    try:
        answer = rank(state, key, source.now_ms)
    except JobNotFound as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        write_json(answer)
    else:
        show(answer, source.now_ms, Console())


def show(answer: RankView, now_ms: int, console: Console) -> None:
    """For people."""
    console.print(
        f"[bold]{answer.job}[/bold] is number {answer.position} of {answer.waiting} that wait: queue {answer.queue}, "
        f"priority {answer.priority}, waits {ago(answer.since_ms, now_ms)}.",
        highlight=False,
    )
    for level in answer.levels:
        _level(level, console)
    if answer.user:
        console.print(f"In queue {answer.queue} it counts for user {answer.user}.")
    if answer.before:
        console.print(f"Before it {'is' if len(answer.before) == 1 else 'are'}:")
        table = Table("job", "queue", "by", prose("why"))
        console.print_rows(table, [(one.job, one.queue, one.by, escape(one.text)) for one in answer.before], _SHOWN)
    for other in answer.overtaking:
        when = f"In {span(other.in_ms)} " if other.in_ms is not None else ""
        told = f"{when}{other.who} comes before {other.whom} if {other.condition}."
        console.print(told[0].upper() + told[1:] if not when and other.who != answer.job else told)


def _level(level: RankLevel, console: Console) -> None:
    where = f"below {level.parent}" if level.parent else "at the top"
    console.print(f"Queues {where}: {_DECIDED.get(level.by, level.by)}.")
    table = Table("", "queue", "with its first job", "priority", "used by weight", "weight", "first job")  # fmt: skip
    for one in level.terms:
        table.add_row(
            ">" if one.queue == level.own else "", one.queue, STANDINGS[one.standing], str(one.priority),
            f"{one.gpus_per_weight:g} GPUs", str(one.weight), one.head,
        )  # fmt: skip
    console.print(table)
