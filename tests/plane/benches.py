# SPDX-License-Identifier: Apache-2.0
"""Where tests of agents run: against the broker in memory on its virtual clock, or against a scheduler on a playground.

Two nodes, a and b, of eight GPUs each. Terms are of seconds, as on the playground they pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from dovetail.core.bargaining.types import Plane as PlaneRecord
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.plane import FakeBroker, KubernetesBroker, Plane
from dovetail.plane.broker import Broker
from dovetail.plane.fake import QUEUE
from tests.patience import PATIENCE_S
from tests.scheduler.leased import LEASES, REQUESTS, LeasedCluster

T = TypeVar("T")
GRACE_MS = 4000
HEARTBEAT_MS = 500
SECOND = 1 / 60
"""In minutes."""


class Bench(Protocol):
    """`agents` have a plane of their name each, in a namespace of their name."""

    broker: Broker

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """The result of the work."""

    async def until(self, condition: Callable[[], object]) -> None: ...

    def maintain(self, node: str) -> None:
        """Leases on the node are revoked."""

    def leases(self) -> set[str]:
        """The live leases, as the broker has them, by id."""

    def requests(self) -> set[str]:
        """The requests that were not withdrawn, by id."""


class FakeBench:
    def __init__(self) -> None:
        planes = [
            PlaneRecord(f"{one}/{one}", QUEUE, grace_ms=GRACE_MS, idle_ms=0, heartbeat_ms=0) for one in ("one", "two")
        ]
        self.broker = FakeBroker({"a": 8, "b": 8}, planes=planes)

    async def run(self, work: Coroutine[object, object, T]) -> T:
        return await self.broker.run(work)

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(1000):
            if condition():
                return
            await self.broker.advance(100)
        raise TimeoutError

    def maintain(self, node: str) -> None:
        self.broker.maintain(node)

    def leases(self) -> set[str]:
        return {lease.id for lease in self.broker.leases}

    def requests(self) -> set[str]:
        return set(self.broker.requests)


class ClusterBench:
    def __init__(self, cluster: LeasedCluster, client: Client) -> None:
        self.cluster = cluster
        self.cluster_client = client
        self.broker = KubernetesBroker(client)

    async def run(self, work: Coroutine[object, object, T]) -> T:
        return await asyncio.wait_for(work, PATIENCE_S)

    async def until(self, condition: Callable[[], object]) -> None:
        await self.cluster.until(condition)

    def maintain(self, node: str) -> None:
        asked = {"id": "m", "by": "test", "reason": "test", "drain": "Evict", "requested": "2026-01-01T00:00:00Z"}
        self.cluster.playground.put(
            {
                "apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": node},
                "spec": {"maintenance": asked},
            }
        )  # fmt: skip

    def leases(self) -> set[str]:
        return {_id(one) for one in self.objects(LEASES) if one.get("status", {}).get("state") != "Ended"}

    def requests(self) -> set[str]:
        return {_id(one) for one in self.objects(REQUESTS)}

    def objects(self, collection: str) -> list[dict[str, Any]]:
        return list(self.cluster.playground.store.list(collection))


def _id(document: dict[str, Any]) -> str:
    return f"{document['metadata']['namespace']}/{document['metadata']['name']}"


@asynccontextmanager
async def cluster_bench(**options: Any) -> AsyncIterator[ClusterBench]:
    """A playground whose scheduler runs; `options` are fields of the control planes."""
    spec = {"grace": f"{GRACE_MS // 1000}s", "heartbeat": "0s"} | options
    async with (
        LeasedCluster.opened("one", "two", **spec) as cluster,
        cluster.scheduler(),
        Client(ClusterConfig(cluster.playground.url)) as client,
    ):
        yield ClusterBench(cluster, client)


def plane(bench: Bench, name: str = "one", **options: Any) -> Plane:
    return Plane(bench.broker, f"{name}/{name}", heartbeat_ms=HEARTBEAT_MS, **options)
