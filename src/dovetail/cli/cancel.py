# SPDX-License-Identifier: Apache-2.0
"""`dovetail cancel`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dovetail.cli.listing import selector_option
from dovetail.cli.named_jobs import JOB_ARGUMENT, JobName, JobSource, find, job_options, printed_at_the_end
from dovetail.cli.names import complete_jobs, complete_queues
from dovetail.cli.output import count
from dovetail.core.labels import matches
from dovetail.core.model import LabelSelector
from dovetail.core.queues.types import DEFAULT_QUEUE, QUEUE_LABEL

if TYPE_CHECKING:
    from dovetail.core.model import Requirement
    from dovetail.jobs.cluster import JobCluster
    from dovetail.jobs.finding import NamedJob

_SHOWN = 20


@click.command(name="cancel")
@click.argument("jobs", metavar=f"{JOB_ARGUMENT}...", shell_complete=complete_jobs, nargs=-1)
@selector_option("All jobs of the namespace with these labels, as in app=train,tier!=test.")
@click.option("--all", "every", is_flag=True, help="All jobs of the namespace; with -q those of one queue.")
@click.option(
    "-q", "--queue", metavar="QUEUE", help="With --all: only the jobs of this queue.", shell_complete=complete_queues
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--any-scheduler", is_flag=True, help="Also cancel jobs that another scheduler places.")
@job_options
def command(
    source: JobSource,
    jobs: tuple[str, ...],
    labels: tuple[Requirement, ...],
    every: bool,
    queue: str | None,
    yes: bool,
    any_scheduler: bool,
) -> None:
    """Cancel jobs: delete the Job, JobSet, PyTorchJob, RayCluster ... of each, and so its pods; else the pods.

    The name of a pod stands for the job that it was made for. Shows what is deleted, and asks. Jobs that have ended,
    and jobs of other schedulers, are left alone.
    """
    if bool(jobs) + bool(labels) + every != 1:
        raise click.UsageError("name jobs, or use -l KEY=VALUE or --all")
    if queue and not every:
        raise click.UsageError("--queue goes with --all")
    names, wanted = source.names(jobs), LabelSelector(labels)

    async def found(cluster: JobCluster) -> list[NamedJob]:
        if names:
            return await _named(cluster, source, names, any_scheduler)
        where = await cluster.namespace_labels(source.namespace) if queue else {}
        named = where.get(QUEUE_LABEL, DEFAULT_QUEUE)

        def keep(job: NamedJob) -> bool:
            return not job.ended and matches(wanted, job.labels) and queue in (None, job.queue or named)

        jobs = await cluster.jobs(source.namespace, keep)
        if any_scheduler:
            return jobs
        # The objects of some kinds hold no templates: their pods name the scheduler.
        whole = [job if job.schedulers else await cluster.again(job) for job in jobs]
        return [job for job in whole if source.scheduler_name in job.schedulers]

    doomed = source.run(found)
    if not doomed:
        what = f" of queue {queue}" if queue else " with these labels" if labels else ""
        click.echo(f"There is no unfinished job{what} in namespace {source.namespace}.")
        return
    _confirm(doomed, yes)

    async def cancelled(cluster: JobCluster) -> None:
        for job in doomed:
            answers.append(f"{job.title}: {'cancelled' if await cluster.cancel(job) else 'was gone already'}.")

    with printed_at_the_end() as answers:
        source.run(cancelled)


async def _named(cluster: JobCluster, source: JobSource, names: list[JobName], any_scheduler: bool) -> list[NamedJob]:
    """The jobs of these names. Raises NotDone for one that has ended, or is another scheduler's."""
    from dovetail.jobs.changes import NotDone
    from dovetail.jobs.waiting import progress

    found: dict[str, NamedJob] = {}
    for name in names:
        job = await find(cluster, name)
        if job.ended:
            raise NotDone(f"{job.title} has ended ({progress(job)}): there is nothing to cancel")
        if (theirs := source.theirs(job)) and not any_scheduler:
            raise NotDone(f"{job.title} belongs to the scheduler {theirs}: --any-scheduler cancels it all the same")
        found[job.title] = job
    return list(found.values())


def _confirm(doomed: list[NamedJob], yes: bool) -> None:
    """Show what is deleted, and ask. Raises Abort."""
    from dovetail.jobs.waiting import progress

    if yes:
        return
    for job in doomed[:_SHOWN]:
        click.echo(f"{job.title}: {progress(job)}" if job.pods or job.kind is None else job.title, err=True)
    if len(doomed) > _SHOWN:
        click.echo(f"and {len(doomed) - _SHOWN} more", err=True)
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: --yes cancels without a question")
    click.confirm(f"Delete {count(len(doomed), 'job')}?", abort=True, err=True)
