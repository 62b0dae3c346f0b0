# SPDX-License-Identifier: Apache-2.0
"""`dovetail hold`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.named_jobs import JOB_ARGUMENT, JobSource, find, job_options, printed_at_the_end
from dovetail.cli.names import complete_jobs
from dovetail.cli.output import count

if TYPE_CHECKING:
    from dovetail.jobs.cluster import JobCluster
    from dovetail.jobs.finding import NamedJob
    from dovetail.jobs.holds import HeldJob


@click.command(name="hold")
@click.argument("jobs", metavar=f"{JOB_ARGUMENT}...", shell_complete=complete_jobs, nargs=-1, required=True)
@job_options
def command(source: JobSource, jobs: tuple[str, ...]) -> None:
    """Keep jobs that wait from starting, until `dovetail release`.

    Writes the annotation dovetail.dev/hold on the pods that wait, and on the object that makes them a gang. The job
    keeps its place in the queue; `dovetail why` and `dovetail queue` show it as Held. What runs goes on.
    """
    names = source.names(jobs)

    async def held(cluster: JobCluster) -> None:
        for name in names:
            job = await find(cluster, name)
            _ours(source, job)
            answers.append(_held(job, await cluster.hold(job)))

    with printed_at_the_end() as answers:
        source.run(held)


def _ours(source: JobSource, job: NamedJob) -> None:
    """Raises NotDone for a job of another scheduler, which reads no annotation of ours."""
    from dovetail.jobs.changes import NotDone

    if theirs := source.theirs(job):
        raise NotDone(f"{job.title} belongs to the scheduler {theirs}: only {source.scheduler_name} reads holds")


def _held(job: NamedJob, held: HeldJob) -> str:
    what = f"{job.title}: held"
    if held.pods:
        what += f", {count(held.pods, 'pod')} {'waits' if held.pods == 1 else 'wait'}"
    if not held.new_pods and job.kind is not None:
        what += ". Pods that are made from now on are not held"
    return f"{what}."
