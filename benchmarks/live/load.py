# SPDX-License-Identifier: Apache-2.0
"""The backlog: everything of a scenario is in the API server before the scheduler starts.

Rules: a kind after the other, each created by as many connections as keep the API server busy.
"""

import asyncio
from collections.abc import Iterable, Iterator

from benchmarks.live.claims import ClaimScenario
from benchmarks.live.scenario import NAMESPACE, Document, Scenario, SeenPod
from dovetail.kube.client import Client
from dovetail.kube.listing import list_all
from dovetail.kube.resources import PODS, Resource

CONNECTIONS = 64
POLL_S = 0.5


async def fill(client: Client, scenario: Scenario | ClaimScenario, scheduler_name: str) -> None:
    """Create all objects of `scenario`, and wait for what controllers make of them. Raises ApiError."""
    for resource, documents in scenario.kinds(scheduler_name):
        await _create(client, resource, documents)
    while scenario.controllers:
        if scenario.ready((await list_all(client, PODS, SeenPod)).objects.values()):
            break
        await asyncio.sleep(POLL_S)


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
