# SPDX-License-Identifier: Apache-2.0
"""The backlog: everything of a scenario is in the API server before the scheduler starts.

Rules: nodes before gangs before pods; each kind is created by as many connections as keep the API server busy.
"""

import asyncio
from collections.abc import Iterable, Iterator

from benchmarks.live.scenario import NAMESPACE, POD_GROUP, Document, Scenario
from dovetail.kube.client import Client
from dovetail.kube.resources import NODES, PODS, Resource

CONNECTIONS = 64


async def fill(client: Client, scenario: Scenario, scheduler_name: str) -> None:
    """Create all objects of `scenario`. Raises ApiError."""
    await _create(client, NODES, scenario.node_documents())
    await _create(client, POD_GROUP, scenario.gang_documents())
    await _create(client, PODS, scenario.pod_documents(scheduler_name))


async def _create(client: Client, resource: Resource, documents: Iterable[Document]) -> None:
    path = resource.path(NAMESPACE)
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}

    async def work(mine: Iterator[Document]) -> None:
        for document in mine:
            await client.request("POST", path, kind | document)

    shared = iter(documents)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(work(shared))
