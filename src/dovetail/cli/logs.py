# SPDX-License-Identifier: Apache-2.0
"""`dovetail logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.named_jobs import JOB_ARGUMENT, JobSource, find, job_options
from dovetail.cli.names import complete_jobs
from dovetail.jobs.kinds import POD

if TYPE_CHECKING:
    from dovetail.jobs.cluster import JobCluster
    from dovetail.jobs.finding import NamedJob


@click.command(name="logs")
@click.argument("job", metavar=JOB_ARGUMENT, shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Wait for what is written, until the job has ended.")
@click.option("--pod", metavar="NAME", help="Only this pod of the job.")
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="Only the pod of this rank, from 0.")
@click.option("-c", "--container", default="", metavar="NAME", help="Container. Default: the first of each pod.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="Only the last lines of each pod.")
@job_options
def command(
    source: JobSource, job: str, follow: bool, pod: str | None, rank: int | None, container: str, tail: int | None
) -> None:
    """Show what the pods of a job have written.

    Lines of several pods begin with the rank of the pod, as in `[3]`, or with its name. The name of a pod shows its
    logs alone.
    """
    from dovetail.cli.logs_report import not_started, writer
    from dovetail.cli.wait_report import EVERY_S, shower
    from dovetail.jobs.logs import LogRequest

    if pod is not None and rank is not None:
        raise click.UsageError("--pod and --rank both choose a pod: use one of them")
    name = source.name(job)

    async def shown(cluster: JobCluster) -> None:
        found = await find(cluster, name)
        alone = pod or (name.name if _is_pod(found, name.name, name.prefix) and rank is None else None)
        request = LogRequest(alone, rank, container, tail)
        write = writer(found, request)
        if follow:
            await cluster.follow_logs(found, request, write, EVERY_S, shower())
            return
        late = await cluster.read_logs(request.chosen(found), request, write)
        not_started(found, late)

    source.run(shown)


def _is_pod(job: NamedJob, name: str, prefix: str) -> bool:
    """Whether the name is that of one of the pods of the job, and not of the job."""
    return prefix == POD or (job.name != name and any(pod.name == name for pod in job.pods))
