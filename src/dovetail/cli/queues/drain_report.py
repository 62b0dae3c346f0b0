# SPDX-License-Identifier: Apache-2.0
"""The plan that `dovetail queue drain` prints."""

from __future__ import annotations

from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.markup import escape
from dovetail.cli.output import count, gpus, span, start
from dovetail.cli.queues.existing import waits
from dovetail.core.reasons import Sure
from dovetail.views.queue_drain_types import QueueDrainPlan, RunningJob

_SHOWN = 40


def show(plan: QueueDrainPlan, now_ms: int, console: Console) -> None:
    """Print the jobs that run, and when nothing does any more."""
    if plan.jobs:
        table = Table("job", "queue", right("pods"), right("GPUs"), "what", "left", prose("why"))
        rows = [
            (
                _job(job), job.queue, str(job.pods), gpus(job.gpus_milli), job.what, start(job.left, now_ms),
                escape(job.left.basis),
            )
            for job in plan.jobs
        ]  # fmt: skip
        console.print_rows(table, rows, _SHOWN)
    waiting = waits(plan.waiting)
    empty = plan.empty
    if not plan.jobs:
        console.print(f"Nothing runs in queue {plan.queue}; {waiting}.")
    elif not empty.start_ms:
        console.print(f"Queue {plan.queue}: {escape(empty.basis)}; {waiting}.")
    else:
        about = "" if empty.sure is Sure.KNOWN else "about "
        when = f"in {about}{span(empty.start_ms - now_ms)}"
        console.print(f"Nothing runs in queue {plan.queue} {when}, {escape(empty.basis)}; {waiting}.")


def _job(job: RunningJob) -> str:
    return escape(job.job) + (f" ({count(job.count, 'job')})" if job.count > 1 else "")
