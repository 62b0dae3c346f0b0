# SPDX-License-Identifier: Apache-2.0
"""The jobs of one cluster: what a command can ask for and change, on one connection.

async with JobCluster(config) as cluster:
    job = await cluster.find("team-a", "train")
    await cluster.cancel(job)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from dovetail.jobs import changes, holds, logs, suspending, waiting
from dovetail.jobs.finding import Finder, NamedJob
from dovetail.jobs.kinds import ANY, Document, JobKind
from dovetail.jobs.life import JobLife, life, read_events
from dovetail.jobs.pods import JobPod
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import Served, discover
from dovetail.kube.api.errors import Forbidden, NotFound
from dovetail.kube.api.resources import NAMESPACES, Resource
from dovetail.kube.objects.base import Namespace


class JobCluster:
    """Raises KubeError from every method."""

    def __init__(self, config: ClusterConfig) -> None:
        self._client = Client(config, user_agent="dovetail")
        self._served = Served(frozenset())
        self._finder: Finder

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            self._served = await discover(self._client)
        except BaseException as error:
            await self._client.__aexit__(type(error), error, error.__traceback__)
            raise
        self._finder = Finder(self._client, self._served)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    def serves(self, resource: Resource) -> bool:
        return self._served.has(resource)

    async def find(self, namespace: str, name: str, prefix: str = ANY) -> NamedJob:
        """As `Finder.job`."""
        return await self._finder.job(namespace, name, prefix)

    async def object(self, namespace: str, name: str, kind: JobKind) -> NamedJob:
        """As `Finder.object`."""
        return await self._finder.object(namespace, name, kind)

    async def again(self, job: NamedJob) -> NamedJob:
        """As `Finder.again`."""
        return await self._finder.again(job)

    async def jobs(self, namespace: str, keep: Callable[[NamedJob], bool]) -> list[NamedJob]:
        """As `Finder.jobs`."""
        return await self._finder.jobs(namespace, keep)

    async def namespace_labels(self, namespace: str) -> dict[str, str]:
        """The labels of the namespace; none where they may not be read."""
        try:
            found = await self._client.request("GET", NAMESPACES.path(name=namespace), decode=Namespace)
        except (Forbidden, NotFound):
            return {}
        return found.metadata.labels

    async def create(
        self, documents: Sequence[Document], namespace: str, *, owned: bool = False, dry_run: bool = False
    ) -> tuple[changes.Created, ...]:
        """As `changes.create`."""
        resources = await changes.resources_of(self._client, documents)
        return await changes.create(self._client, resources, documents, namespace, owned=owned, dry_run=dry_run)

    async def cancel(self, job: NamedJob) -> bool:
        """As `changes.cancel`."""
        return await changes.cancel(self._client, job)

    async def hold(self, job: NamedJob) -> holds.HeldJob:
        """As `holds.hold`."""
        return await holds.hold(self._client, job)

    async def release(self, job: NamedJob) -> holds.HeldJob:
        """As `holds.release`."""
        return await holds.release(self._client, job)

    async def suspend(self, job: NamedJob, *, dry_run: bool = False) -> None:
        """As `suspending.suspend`."""
        await suspending.suspend(self._client, job, dry_run=dry_run)

    async def wait(
        self, job: NamedJob, goal: waiting.Goal, every_s: float, shown: Callable[[NamedJob], None]
    ) -> tuple[NamedJob, waiting.Outcome]:
        """As `waiting.wait`."""
        return await waiting.wait(self._finder, job, goal, every_s, shown)

    async def read_logs(self, pods: Sequence[JobPod], request: logs.LogRequest, write: logs.Write) -> list[JobPod]:
        """As `logs.read_logs`."""
        return await logs.read_logs(self._client, pods, request, write)

    async def follow_logs(
        self, job: NamedJob, request: logs.LogRequest, write: logs.Write, every_s: float,
        shown: Callable[[NamedJob], None],
    ) -> NamedJob:  # fmt: skip
        """As `logs.follow_logs`."""
        return await logs.follow_logs(self._client, self._finder, job, request, write, every_s, shown)

    async def life(self, job: NamedJob) -> JobLife:
        """The life of the job, with what its Events add."""
        return life(job, await read_events(self._client, job))
