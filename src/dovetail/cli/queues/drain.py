# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue drain`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options, run
from dovetail.cli.console import Console
from dovetail.cli.markup import escape
from dovetail.cli.names import complete_queues
from dovetail.cli.output import TIMED_OUT
from dovetail.cli.quantities import DurationParam

if TYPE_CHECKING:
    from dovetail.kube.queue_changes import QueueView
    from dovetail.views.queue_drain_types import QueueDrainPlan, QueueDrainQuestion

_LATE_MS = 10_000
"""A scheduler writes what is new into the status of a queue within a second or two."""


@click.command(name="drain")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option("--evict", is_flag=True, help="Evict what runs, except jobs that must not be preempted.")
@click.option("--no-wait", is_flag=True, help="Do not wait until nothing runs in it.")
@click.option("--timeout", "timeout_s", type=DurationParam(), default=None, metavar="DURATION",
              help="How long to wait at most, such as 2h. Default: without end.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what runs, and when it has ended; write nothing.")
@cluster_options
@answer_option
def command(
    source: ClusterSource,
    name: str,
    evict: bool,
    no_wait: bool,
    timeout_s: float | None,
    dry_run: bool,
    form: AnswerForm,
) -> None:
    """Stop QUEUE and the queues below it, and wait until nothing runs in them.

    Shows the jobs that run there, and when each has ended. They run to their end; with --evict they are evicted, within
    disruption budgets, and wait again. The queue stays stopped until `dovetail queue resume`. Exit code 124: the time
    is over.
    """
    from dovetail.cli.queues.drain_report import show
    from dovetail.views.queue_drain_types import QueueDrainQuestion

    if source.config is None and not dry_run:
        raise click.UsageError("--file needs --dry-run: nothing can be written to files")
    question = QueueDrainQuestion(name, "HoldAndDrain" if evict else "Hold")
    plan = _ask(source, question) or _work_out(source, question)
    if form.whole:
        write_answer(form, "QueueDrainPlan", plan)
    else:
        show(plan, source.now_ms, Console())
    if dry_run or source.config is None:
        return
    import asyncio

    from dovetail.cli.queues.existing import allocated
    from dovetail.cli.wait_report import EVERY_S
    from dovetail.kube.queue_changes import stop_queue, wait_until_idle

    config, console = source.config, Console(stderr=True)
    run(stop_queue(config, name, question.stop), config.server)
    console.print(f"Queue {name} is stopped; `dovetail queue resume {name}` resumes it.")
    if no_wait:
        return
    last, began_ms = "", source.now_ms

    def shown(found: QueueView) -> None:
        nonlocal last
        text = f"Queue {name}: {allocated(found)} left." if found.allocated else f"Nothing runs in queue {name}."
        if not found.seen:
            late = source.now_ms - began_ms > _LATE_MS
            text = (
                f"Queue {name}: no scheduler has seen that it is stopped; `dovetail status` shows why." if late else ""
            )
        if text and text != last:
            console.print(escape(text))
            last = text

    async def idle() -> None:
        async with asyncio.timeout(timeout_s):
            await wait_until_idle(config, name, shown, EVERY_S)

    try:
        run(idle(), config.server)
    except TimeoutError:
        console.print("The time is over; the queue stays stopped.")
        sys.exit(TIMED_OUT)
    except KeyboardInterrupt:
        console.print("The wait has ended; the queue stays stopped.")


def _ask(source: ClusterSource, question: QueueDrainQuestion) -> QueueDrainPlan | None:
    """The answer of the running scheduler."""
    from dovetail.kube.objects.views import QUEUE_DRAIN_PLANS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.queue_drain_types import QueueDrainPlan

    body = msgspec.json.encode(question)
    return source.ask(ViewRequest(QUEUE_DRAIN_PLANS, source.namespace, body=body), QueueDrainPlan)


def _work_out(source: ClusterSource, question: QueueDrainQuestion) -> QueueDrainPlan:
    """Raises ClickException."""
    from dovetail.views.names import JobNotFound
    from dovetail.views.queue_drain import queue_drain_plan

    try:
        return queue_drain_plan(source.state(), question.queue, question.stop, source.now_ms)
    except JobNotFound as error:
        raise click.ClickException(str(error)) from error
