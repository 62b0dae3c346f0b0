# SPDX-License-Identifier: Apache-2.0
"""`dovetail release`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.named_jobs import JOB_ARGUMENT, JobSource, find, job_options, printed_at_the_end
from dovetail.cli.names import complete_jobs
from dovetail.cli.output import count

if TYPE_CHECKING:
    from dovetail.jobs.cluster import JobCluster


@click.command(name="release")
@click.argument("jobs", metavar=f"{JOB_ARGUMENT}...", shell_complete=complete_jobs, nargs=-1, required=True)
@job_options
def command(source: JobSource, jobs: tuple[str, ...]) -> None:
    """Let jobs start that are held, or that are suspended.

    A job that `dovetail hold` held has kept its place in the queue. Of one that was suspended (spec.suspend) the
    controller makes new pods.
    """
    names = source.names(jobs)

    async def released(cluster: JobCluster) -> None:
        for name in names:
            job = await find(cluster, name)
            found = await cluster.release(job)
            what = "resumed: its controller makes its pods" if found.resumed else "released"
            pods = f", {count(found.pods, 'pod')} may start" if found.pods else ""
            answers.append(f"{job.title}: {what}{pods}.")

    with printed_at_the_end() as answers:
        source.run(released)
