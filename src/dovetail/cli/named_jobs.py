# SPDX-License-Identifier: Apache-2.0
"""The jobs that a command is about: the options that choose the cluster and the namespace, and names in arguments.

A command that acts on jobs uses `job_options` and gets a JobSource. It needs rights in the namespace of the job alone.
The client is imported when the cluster is asked, not when the options are declared.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from dovetail.cli.cluster import run
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import key_of, namespace_option
from dovetail.cli.scheduling import scheduler_name_option
from dovetail.jobs.kinds import ANY, JOB, POD, kind_named

if TYPE_CHECKING:
    from dovetail.jobs.cluster import JobCluster
    from dovetail.jobs.finding import NamedJob
    from dovetail.kube.api.config import ClusterConfig

R = TypeVar("R")
JOB_ARGUMENT = "[KIND/][NAMESPACE/]JOB"


class JobName(Struct, frozen=True):
    """A job as it is named: `prefix` is what stands before it, "" for nothing."""

    namespace: str
    name: str
    prefix: str = ANY


class JobSource(Struct, frozen=True):
    """The cluster of a command. `asked` is the value of --namespace, None without it."""

    config: ClusterConfig
    scheduler_name: str
    asked: str | None = None

    @property
    def namespace(self) -> str:
        """The namespace of names without one."""
        return self.asked or self.config.namespace

    def name(self, text: str) -> JobName:
        """The job that is named: `x`, `team-a/x`, `job/x`, `pod/team-a/x`. A kind wins over a namespace of its name.
        Raises UsageError."""
        first, slash, rest = text.partition("/")
        prefix = first.lower() if slash and (first.lower() in (POD, JOB, "pods") or kind_named(first)) else ANY
        prefix = POD if prefix == "pods" else prefix
        named = rest if prefix else text
        if not all(named.split("/")) or named.count("/") > 1:
            raise click.UsageError(f"{text!r} is not {JOB_ARGUMENT}")
        namespace, _, name = key_of("JOB", named, self.asked, self.namespace).partition("/")
        return JobName(namespace, name, prefix)

    def names(self, texts: Sequence[str]) -> list[JobName]:
        """The same for several, each once."""
        return list(dict.fromkeys(map(self.name, texts)))

    def run(self, work: Callable[[JobCluster], Coroutine[Any, Any, R]]) -> R:
        """Run the work on the cluster. Raises ClickException with a message of one line."""
        from dovetail.jobs.changes import NotDone
        from dovetail.jobs.cluster import JobCluster
        from dovetail.jobs.finding import JobUnknown

        async def on_cluster() -> R:
            async with JobCluster(self.config) as cluster:
                try:
                    return await work(cluster)
                except (JobUnknown, NotDone) as error:
                    raise click.ClickException(str(error)) from error

        return run(on_cluster(), self.config.server)

    def theirs(self, job: NamedJob) -> str:
        """The scheduler that the pods of the job name, where that is not ours; "" where it is."""
        if self.scheduler_name in job.schedulers or not job.schedulers:
            return ""
        return ", ".join(sorted(job.schedulers))


async def find(cluster: JobCluster, name: JobName) -> NamedJob:
    """The job of this name. Raises KubeError."""
    return await cluster.find(name.namespace, name.name, name.prefix)


@contextmanager
def printed_at_the_end() -> Iterator[list[str]]:
    """Print what was done to each job at the end, also where the next one fails: a closed pipe ends the printing, and
    must not end the work."""
    answers: list[str] = []
    try:
        yield answers
    finally:
        for answer in answers:
            click.echo(answer)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """-n, --kubeconfig, --context and --scheduler-name; the command gets a `source` in their place."""

    @wraps(command)
    def sourced(
        kubeconfig: str | None, context: str | None, namespace: str | None, scheduler_name: str, **rest: Any
    ) -> None:
        config = config_of(kubeconfig, context)
        command(source=JobSource(config, scheduler_name, namespace), **rest)

    return kubeconfig_options(scheduler_name_option(namespace_option(sourced)))
