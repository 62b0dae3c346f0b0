# SPDX-License-Identifier: Apache-2.0
"""The load: the backlog, which exists before the scheduler starts, and the stream of pods afterwards.

Rules: the backlog is created kind by kind, over as many connections as keep the API server busy. A pod of the stream
counts as created when the server has confirmed it. When a pod has run for its time, its status is set to finished, as
its kubelet would do; the object stays.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator

from benchmarks.live.claims import ClaimScenario
from benchmarks.live.scenario import NAMESPACE, Document, Scenario, SeenPod
from dovetail.kube.api.client import STRATEGIC_PATCH, Client
from dovetail.kube.api.decoding import Identified
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import PODS, Resource

CONNECTIONS = 64
FINISHERS = 64
POLL_S = 0.5


async def fill(client: Client, scenario: Scenario | ClaimScenario, scheduler_name: str) -> None:
    """Create all objects of `scenario`, and wait for the objects that controllers create. Raises ApiError."""
    for resource, documents in scenario.kinds(scheduler_name):
        await _create(client, resource, documents)
    while scenario.controllers:
        if scenario.ready((await list_all(client, PODS, SeenPod)).objects.values()):
            break
        await asyncio.sleep(POLL_S)


class Stream:
    """Creates the pods of `scenario` after its backlog, and finishes all bound pods.

    created_s: the creation time (time.monotonic()) of each pod by uid.
    """

    def __init__(self, client: Client, scenario: Scenario | ClaimScenario, scheduler_name: str) -> None:
        self.created_s: dict[str, float] = {}
        self._client = client
        self._run_s = scenario.run_s
        self._arrivals = scenario.arrivals(scheduler_name)
        self._running: asyncio.Queue[tuple[float, SeenPod]] = asyncio.Queue()

    async def feed(self) -> None:
        """Create each pod when it is due. Raises ApiError."""
        start_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for due_s, document in self._arrivals:
                await asyncio.sleep(start_s + due_s - time.monotonic())
                tasks.create_task(self._create(document))

    async def _create(self, document: Document) -> None:
        body = {"apiVersion": PODS.api_version, "kind": PODS.kind} | document
        made = await self._client.request("POST", PODS.path(NAMESPACE), body, decode=Identified)
        self.created_s[made.metadata.uid] = time.monotonic()

    def bound(self, pod: SeenPod) -> None:
        """Start the run time of a pod."""
        if self._run_s:
            self._running.put_nowait((time.monotonic() + self._run_s, pod))

    async def finish(self) -> None:
        """Finish pods at the end of their run time, until cancelled. Raises ApiError."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(FINISHERS):
                tasks.create_task(self._finish())

    async def _finish(self) -> None:
        while True:
            due_s, pod = await self._running.get()
            await asyncio.sleep(due_s - time.monotonic())
            path = PODS.path(pod.metadata.namespace, pod.metadata.name, "status")
            await self._client.request("PATCH", path, {"status": {"phase": "Succeeded"}}, content_type=STRATEGIC_PATCH)


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
