# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from dovetail.cli.answer_form import write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.columns import QUEUE
from dovetail.cli.console import Console
from dovetail.cli.listing import TABLE, ListForm, columns_of, list_options, write_rows
from dovetail.cli.output import LOOK_AHEAD_ENDED, count, looking_ahead
from dovetail.cli.queues.group import QueueGroup, complete_queues_and_verbs
from dovetail.cli.watching import watch_options, watch_rows
from dovetail.core.reasons import When

if TYPE_CHECKING:
    from dovetail.views.queue_types import QueuePosition, WaitingWorkload

_WITH_BASIS = ("position", "job", "queue", "gpus", "waiting", "reason", "starts", "basis")


@click.command(name="queue", cls=QueueGroup)
@click.argument("queue", required=False, default="", shell_complete=complete_queues_and_verbs)
@cluster_options
@click.option("--basis", is_flag=True, help="Also show what each expected start is based on, or why it is not known.")
@list_options(QUEUE)
@watch_options
def command(source: ClusterSource, queue: str, basis: bool, form: ListForm, every_s: float) -> None:
    """List the waiting jobs in queue order: of all queues, or of QUEUE and the queues below it. With a verb in place of
    QUEUE create or stop a queue; queue/NAME lists one that has the name of a verb.

    Shows why each job waits, and its latest start: for that the scheduler's own core looks ahead on a copy of the
    cluster. The running scheduler answers, if there is one; else the cluster is read. Writes nothing.
    """
    if basis and form.output == TABLE.output and not form.columns:
        form = replace(form, columns=_WITH_BASIS)
    if every_s:
        source.check_again()
        watch_rows(lambda: _rows(_answer(source, queue)), form, QUEUE, every_s, Console())
        return
    answer = _answer(source, queue)
    if form.whole:
        write_answer(form, "WaitingJobList", answer)
    else:
        show(answer, Console(), form)


def _answer(source: ClusterSource, queue: str) -> QueuePosition:
    """Raises ClickException."""
    queue = queue.removeprefix("queue/")
    answer = ask_queue(source, queue)
    if answer is not None:
        return answer
    from dovetail.views.names import JobNotFound
    from dovetail.views.queue_positions import queue_positions

    state = source.state()
    try:
        with looking_ahead() as watch:
            return queue_positions(state, source.now_ms, queue, watch)
    except JobNotFound as error:
        raise click.ClickException(str(error)) from error


def ask_queue(source: ClusterSource, queue: str = "") -> QueuePosition | None:
    """The answer of the running scheduler; None where the cluster has to be read. Raises ClickException."""
    from dovetail.kube.objects.views import WAITING_JOBS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.queue_types import QueuePosition

    asked = ViewRequest(WAITING_JOBS, source.namespace, query={"queue": queue} if queue else {})
    return source.ask(asked, QueuePosition)


def _rows(answer: QueuePosition) -> tuple[Iterable[WaitingWorkload], int]:
    return answer.jobs, answer.now_ms


def show(answer: QueuePosition, console: Console, form: ListForm = TABLE) -> None:
    """Print the waiting jobs as a list."""
    if answer.jobs or not form.notes:
        write_rows(form, QUEUE, answer.jobs, answer.now_ms, console)
    if not form.notes:
        return
    others = f"{count(answer.elsewhere, 'job')} of other namespaces {'waits' if answer.elsewhere == 1 else 'wait'}."
    if answer.elsewhere:
        console.print(others if answer.jobs else f"No job of yours waits; {others}")
    elif not answer.jobs:
        console.print(f"No job waits{f' in queue {answer.queue}' if answer.queue else ''}.")
    unknown = sum(not one.expected.start_ms and one.state != When.NEVER for one in answer.jobs)
    if unknown and all(column.name != "basis" for column in columns_of(form, QUEUE)):
        console.print(f"The start of {count(unknown, 'job')} is not known: --basis shows why.")
    if not answer.whole:
        console.print(LOOK_AHEAD_ENDED)
