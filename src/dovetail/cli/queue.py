# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue`."""

from __future__ import annotations

import click
from rich.markup import escape

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.output import ago, count, gpus, looking_ahead, output_option, start, write_json
from dovetail.core.reasons import When
from dovetail.views.jobs import JobNotFound
from dovetail.views.queue_positions import QueuePosition, line


@click.command(name="queue")
@click.argument("queue", required=False, default="")
@cluster_options
@click.option("--basis", is_flag=True, help="Also say what each expected start rests on, or why none can be given.")
@output_option
def command(source: ClusterSource, queue: str, basis: bool, output: str) -> None:
    """Show the line of those who wait, of all queues or of QUEUE and those below it.

    In the order in which they are tried, with why each waits and when it starts at the latest: for that the scheduler's
    own core looks ahead on a copy of the cluster. Writes nothing and needs no running scheduler.
    """
    state = source.state()
    try:
        with looking_ahead() as watch:
            answer = line(state, source.now_ms, queue, watch)
    except JobNotFound as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        write_json(answer)
    else:
        show(answer, Console(), basis=basis)


def show(answer: QueuePosition, console: Console, *, basis: bool = False) -> None:
    """For people."""
    if not answer.jobs:
        console.print(f"Nobody waits{f' in queue {answer.queue}' if answer.queue else ''}.")
        return
    more = (prose("rests on"),) if basis else ()
    table = Table("", "job", "queue", "GPUs", "waits since", "reason", "starts", *more)
    for one in answer.jobs:
        rests = (escape(one.expected.basis),) if basis else ()
        table.add_row(
            str(one.position), one.job, one.queue, gpus(one.gpus_milli), ago(one.since_ms, answer.now_ms), one.code,
            "never" if one.state == When.NEVER else start(one.expected, answer.now_ms), *rests,
        )  # fmt: skip
    console.print(table)
    unknown = sum(not one.expected.start_ms and one.state != When.NEVER for one in answer.jobs)
    if unknown and not basis:
        console.print(f"Of {count(unknown, 'job')} no start is known: --basis says why.")
    if not answer.whole:
        console.print("It was not looked ahead to the end: later starts are not known.")
