# SPDX-License-Identifier: Apache-2.0
"""`dovetail events`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import now_ms
from dovetail.cli.console import Console
from dovetail.cli.named_jobs import JOB_ARGUMENT, JobSource, find, job_options
from dovetail.cli.names import complete_jobs

if TYPE_CHECKING:
    from dovetail.jobs.cluster import JobCluster
    from dovetail.jobs.life import JobLife


@click.command(name="events")
@click.argument("job", metavar=JOB_ARGUMENT, shell_complete=complete_jobs)
@job_options
@answer_option
def command(source: JobSource, job: str, form: AnswerForm) -> None:
    """Show the life of a job: what happened to it, when, and how long each step took.

    Created, refused and why, bound, started and ended, with evictions and holds in between: from the times in its
    objects, and from Events, which a cluster keeps for an hour.
    """
    from dovetail.cli.events_report import show

    name = source.name(job)

    async def read(cluster: JobCluster) -> JobLife:
        return await cluster.life(await find(cluster, name))

    answer = source.run(read)
    if form.whole:
        write_answer(form, "JobLife", answer)
    else:
        show(answer, now_ms(), Console())
