# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue`."""

from __future__ import annotations

import click
from rich.markup import escape

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.output import (
    LOOK_AHEAD_ENDED,
    ago,
    count,
    gpus,
    looking_ahead,
    output_option,
    start,
    write_json,
)
from dovetail.core.reasons import When
from dovetail.kube.objects.views import WAITING_JOBS
from dovetail.kube.reading.views import ViewRequest
from dovetail.views.jobs import JobNotFound
from dovetail.views.queue_positions import QueuePosition, queue_positions


@click.command(name="queue")
@click.argument("queue", required=False, default="")
@cluster_options
@click.option("--basis", is_flag=True, help="Also show what each expected start is based on, or why it is not known.")
@output_option
def command(source: ClusterSource, queue: str, basis: bool, output: str) -> None:
    """List the waiting jobs in queue order: of all queues, or of QUEUE and the queues below it.

    Shows why each job waits, and its latest start: for that the scheduler's own core looks ahead on a copy of the
    cluster. The running scheduler answers, if there is one; else the cluster is read. Writes nothing.
    """
    asked = ViewRequest(WAITING_JOBS, source.namespace, query={"queue": queue} if queue else {})
    answer = source.ask(asked, QueuePosition)
    if answer is None:
        state = source.state()
        try:
            with looking_ahead() as watch:
                answer = queue_positions(state, source.now_ms, queue, watch)
        except JobNotFound as error:
            raise click.ClickException(str(error)) from error
    if output == "json":
        write_json(answer)
    else:
        show(answer, Console(), basis=basis)


def show(answer: QueuePosition, console: Console, *, basis: bool = False) -> None:
    """Print the waiting jobs as a table."""
    others = f"{count(answer.elsewhere, 'job')} of other namespaces {'waits' if answer.elsewhere == 1 else 'wait'}."
    if not answer.jobs and answer.elsewhere:
        console.print(f"No job of yours waits; {others}")
        return
    if not answer.jobs:
        console.print(f"No job waits{f' in queue {answer.queue}' if answer.queue else ''}.")
        return
    more = (prose("based on"),) if basis else ()
    table = Table("", "job", "queue", "GPUs", "waiting", "reason", "starts", *more)
    for one in answer.jobs:
        basis_text = (escape(one.expected.basis),) if basis else ()
        table.add_row(
            str(one.position), one.job, one.queue, gpus(one.gpus_milli), ago(one.since_ms, answer.now_ms), one.code,
            "never" if one.state == When.NEVER else start(one.expected, answer.now_ms), *basis_text,
        )  # fmt: skip
    console.print(table)
    if answer.elsewhere:
        console.print(others)
    unknown = sum(not one.expected.start_ms and one.state != When.NEVER for one in answer.jobs)
    if unknown and not basis:
        console.print(f"The start of {count(unknown, 'job')} is not known: --basis shows why.")
    if not answer.whole:
        console.print(LOOK_AHEAD_ENDED)
