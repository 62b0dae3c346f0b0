# SPDX-License-Identifier: Apache-2.0
"""The jobs that a command is about: the options that choose the cluster and the namespace, and names in arguments.

A command that acts on jobs uses `job_options` and gets a JobSource. It needs rights in the namespace of the job alone.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, TypeVar

import click
from msgspec import Struct

from dovetail.cli.cluster import run
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import key_of, namespace_option
from dovetail.cli.scheduling import scheduler_name_option
from dovetail.jobs.changes import NotDone
from dovetail.jobs.cluster import JobCluster
from dovetail.jobs.finding import ANY, JOB, POD, JobUnknown, NamedJob
from dovetail.jobs.kinds import kind_named
from dovetail.kube.api.config import ClusterConfig

R = TypeVar("R")
JOB_ARGUMENT = "[KIND/][NAMESPACE/]JOB"


class JobName(Struct, frozen=True):
    """A job as it is named: `prefix` is what stands before it, "" for nothing."""

    namespace: str
    name: str
    prefix: str = ANY


class JobSource(Struct, frozen=True):
    """The cluster of a command, and the namespace of names without one."""

    config: ClusterConfig
    namespace: str
    scheduler_name: str

    def name(self, text: str) -> JobName:
        """The job that is named: `x`, `team-a/x`, `job/x`, `pod/team-a/x`. A kind wins over a namespace of its name.
        Raises UsageError."""
        first, slash, rest = text.partition("/")
        prefix = first.lower() if slash and (first.lower() in (POD, JOB, "pods") or kind_named(first)) else ANY
        prefix = POD if prefix == "pods" else prefix
        key = key_of("JOB", rest if prefix else text, None, self.namespace)
        namespace, _, name = key.partition("/")
        if "/" in name:
            raise click.UsageError(f"{text!r} is not [KIND/][NAMESPACE/]JOB")
        return JobName(namespace, name, prefix)

    def names(self, texts: Sequence[str]) -> list[JobName]:
        """The same for several, each once."""
        return list(dict.fromkeys(map(self.name, texts)))

    def run(self, work: Callable[[JobCluster], Coroutine[Any, Any, R]]) -> R:
        """Run the work on the cluster. Raises ClickException with a message of one line."""

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


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """-n, --kubeconfig, --context and --scheduler-name; the command gets a `source` in their place."""

    @wraps(command)
    def sourced(
        kubeconfig: str | None, context: str | None, namespace: str | None, scheduler_name: str, **rest: Any
    ) -> None:
        config = config_of(kubeconfig, context)
        command(source=JobSource(config, namespace or config.namespace, scheduler_name), **rest)

    return kubeconfig_options(scheduler_name_option(namespace_option(sourced)))
