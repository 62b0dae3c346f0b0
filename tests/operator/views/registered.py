# SPDX-License-Identifier: Apache-2.0
"""What others do for the API of views on a playground: a scheduler registers, and the API server asks it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dovetail.aggregated.registration import ApiObjects, register
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.operator.metrics import WRITES
from dovetail.operator.rendering.stack_objects import ORDER
from dovetail.scheduler.view_process import VIEWS
from tests.operator.stack_world import World

SYSTEM = "dovetail-system"
APIS = "apiservices.apiregistration.k8s.io"
SLICES = "endpointslices.discovery.k8s.io"


def writes() -> float:
    """The operator's requests that wrote an object of a stack."""
    samples = [one for metric in WRITES.collect() for one in metric.samples if one.name.endswith("_total")]
    return sum(one.value for one in samples if one.labels["kind"] in ORDER)


class Views:
    """A scheduler and an API server, which look at each other every `every_s`, and at `look`.

    leader    address and certificate of the scheduler that leads; None: there is none
    reached   whether the API server reaches it
    """

    def __init__(self, world: World, client: Client, objects: ApiObjects) -> None:
        self._world, self._client, self._objects = world, client, objects
        self._slice = f"{objects.service}-ipv4"
        self.leader: tuple[str, str] | None = None
        self.reached = True
        self.every_s = 30

    @property
    def api(self) -> dict[str, Any] | None:
        """The APIService."""
        return self._world.get(APIS, "", self._objects.api_service)

    @property
    def addresses(self) -> list[str]:
        """What is in the EndpointSlice."""
        found = self._world.get(SLICES, SYSTEM, self._slice) or {}
        return [address for one in found.get("endpoints") or () for address in one["addresses"]]

    @property
    def registered(self) -> tuple[str, str]:
        """The address and the certificate that are registered."""
        assert self.api is not None
        return self.addresses[0], base64.b64decode(self.api["spec"].get("caBundle", "")).decode()

    async def look(self) -> None:
        """The leader registers, and the API server asks it."""
        if self.leader is not None and self._world.get(SLICES, SYSTEM, self._slice) is not None:
            await register(self._client, self._objects, SYSTEM, self.leader[0], 10352, self.leader[1])
        if (api := self.api) is None:
            return
        answered = self.leader is not None and self.reached and "caBundle" in api["spec"]
        reason = "Passed" if answered else "FailedDiscoveryCheck"
        message = "" if answered else 'no response from https://a/b: Get "https://a/b": connection refused'
        new = {"type": "Available", "status": str(answered), "reason": reason, "message": message}
        if api.get("status", {}).get("conditions") != [new]:
            self._world.playground.store.put_raw(APIS, api | {"status": {"conditions": [new]}})

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self.every_s)


@asynccontextmanager
async def views(world: World, objects: ApiObjects = VIEWS) -> AsyncIterator[Views]:
    """The scheduler and the API server, meanwhile."""
    async with Client(ClusterConfig(server=world.playground.url), user_agent="dovetail-scheduler") as client:
        found = Views(world, client, objects)
        task = asyncio.create_task(found.run())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.wait([task])
