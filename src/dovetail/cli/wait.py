# SPDX-License-Identifier: Apache-2.0
"""`dovetail wait`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dovetail.cli.console import Console
from dovetail.cli.named_jobs import JOB_ARGUMENT, JobSource, find, job_options
from dovetail.cli.names import complete_jobs
from dovetail.cli.output import TIMED_OUT
from dovetail.cli.quantities import DurationParam

if TYPE_CHECKING:
    from dovetail.jobs.cluster import JobCluster
    from dovetail.jobs.finding import NamedJob
    from dovetail.jobs.waiting import Goal

GOALS: dict[str, Goal] = {"started": "started", "done": "done", "failed": "failed"}


@click.command(name="wait")
@click.argument("job", metavar=JOB_ARGUMENT, shell_complete=complete_jobs)
@click.option("--for", "goal", type=click.Choice(list(GOALS)), default="done", show_default=True,
              help="What to wait for.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=DurationParam(), default=None, metavar="DURATION",
              help="How long to wait at most, such as 10m. Default: without end.")  # fmt: skip
@job_options
def command(source: JobSource, job: str, goal: str, timeout_s: float | None) -> None:
    """Wait until a job has started, or has ended.

    Shows on standard error how far it is, whenever that changes, and why it waits. Exit code 0: it is there. 1: it
    never will be, as it has ended otherwise or was deleted. 124: the time is over.
    """
    import asyncio

    from dovetail.cli.wait_report import EVERY_S, shower
    from dovetail.jobs.changes import NotDone
    from dovetail.jobs.waiting import failure

    name, aim = source.name(job), GOALS[goal]

    async def waited(cluster: JobCluster) -> NamedJob | None:
        found = await find(cluster, name)
        _possible(found, aim)
        try:
            async with asyncio.timeout(timeout_s):
                found, outcome = await cluster.wait(found, aim, EVERY_S, shower())
        except TimeoutError:
            return None
        if outcome != "reached":
            raise NotDone(f"{found.title} {'has succeeded' if aim == 'failed' else failure(found)}")
        return found

    reached = source.run(waited)
    if reached is None:
        Console(stderr=True).print("The time is over; the job goes on.")
        sys.exit(TIMED_OUT)


def _possible(job: NamedJob, goal: Goal) -> None:
    """Raises NotDone for a wait that would have no end."""
    from dovetail.jobs.changes import NotDone

    if goal != "started" and job.kind is not None and not job.kind.ends:
        raise NotDone(f"a {job.kind.resource.kind} serves until it is deleted: wait --for started")
