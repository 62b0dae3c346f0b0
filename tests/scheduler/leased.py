# SPDX-License-Identifier: Apache-2.0
"""A playground on which agents lease GPUs from a scheduler: what tests of the negotiation on a cluster share."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.base import milli_time_text
from dovetail.playground import Playground
from dovetail.playground.lending import GROUP, control_plane, definitions, gpu_node, lending_queue
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.serve import LEASE_NAMESPACE, SchedulerOptions, run
from tests.paths import ROOT
from tests.scheduler.scripted import until

Document = dict[str, Any]
REQUESTS, LEASES, PLANES = "leaserequests.dovetail.dev", "gpuleases.dovetail.dev", "agentcontrolplanes.dovetail.dev"


@cache
def _definitions() -> list[Document]:
    """Read once: a playground takes copies."""
    return definitions(ROOT / "deploy/crds")


class LeasedCluster:
    """Two nodes with 8 GPUs each, the queue `agents`, and agents with a namespace and a plane of their name each."""

    def __init__(self, playground: Playground) -> None:
        self.playground = playground

    @classmethod
    @asynccontextmanager
    async def opened(cls, *agents: str, **plane: Any) -> AsyncIterator[LeasedCluster]:
        playground = Playground(start_delay_s=0.01)
        await playground.start()
        try:
            cluster = cls(playground)
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
            for document in (*_definitions(), namespace, lending_queue()):
                playground.put(document)
            for name in ("a", "b"):
                cluster.node(name)
            for name in agents:
                cluster.plane(name, **plane)
            yield cluster
        finally:
            await playground.stop()

    def node(self, name: str) -> None:
        self.playground.put(gpu_node(name, 8))

    @asynccontextmanager
    async def scheduler(self, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
        config = ClusterConfig(self.playground.url)
        task = asyncio.create_task(run(config, SchedulerOptions(**{"listen": "", "leader_elect": False, **options})))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def plane(self, name: str, **spec: Any) -> None:
        for document in control_plane(name, name, **{"heartbeat": "0s", "idle": "0s", "grace": "1m"} | spec):
            self.playground.put(document)

    def ask(self, agent: str, name: str, *alternatives: Document, **spec: Any) -> None:
        body: Document = {"apiVersion": GROUP, "kind": "LeaseRequest", "metadata": {"name": name, "namespace": agent}}
        body["spec"] = {"plane": agent, "alternatives": list(alternatives) or [{}]} | spec
        self.playground.put(body)

    def answer(self, agent: str, name: str, action: str, **more: Any) -> None:
        offer = self.request(agent, name)["offers"][0]["id"]
        self._write(REQUESTS, "LeaseRequest", agent, name, answer={"offer": offer, "action": action} | more)

    def act(self, agent: str, name: str, number: int, action: str, **more: Any) -> None:
        fence = self.lease(agent, name)["spec"]["fence"]
        asked = {"number": number, "fence": fence, "action": action} | more
        self._write(LEASES, "GPULease", agent, name, action=asked)

    def _write(self, collection: str, kind: str, agent: str, name: str, **spec: Any) -> None:
        """Change the spec of an object, as its agent."""
        found = copy.deepcopy(self.playground.store.get(collection, agent, name))
        assert found is not None
        found.pop("status", None)
        self.playground.put(found | {"apiVersion": GROUP, "kind": kind, "spec": found["spec"] | spec})

    def beat(self, agent: str, moment_ms: int = 0, holder: str = "") -> str:
        """A heartbeat of the plane. Returns its time as it is written."""
        at = milli_time_text(moment_ms or Clock().now_ms()).replace("Z", "000Z")
        name = {"name": agent, "namespace": agent, "labels": {"dovetail.dev/heartbeat": "true"}}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        self.playground.put(kind | {"metadata": name, "spec": {"renewTime": at, "holderIdentity": holder}})
        return at

    def pod(self, agent: str, name: str, gpus: int, lease: str = "", fence: int = 0, **spec: Any) -> None:
        annotations = {"dovetail.dev/lease": lease, "dovetail.dev/lease-fence": str(fence)} if lease else {}
        limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
        containers = [{"name": "m", "image": "i", "resources": {"limits": limits}}]
        self.playground.put(
            {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": agent, "annotations": annotations},
                "spec": {"schedulerName": "dovetail", "containers": containers} | spec,
            }
        )  # fmt: skip

    def request(self, agent: str, name: str) -> Document:
        """The status of a request."""
        found = self.playground.store.get(REQUESTS, agent, name)
        return dict(found.get("status") or {}) if found is not None else {}

    def lease(self, agent: str, name: str) -> Document:
        return dict(self.playground.store.get(LEASES, agent, name) or {})

    def state(self, agent: str, name: str) -> str:
        """The state of a lease; "" for none."""
        return str(self.lease(agent, name).get("status", {}).get("state", ""))

    def plane_status(self, agent: str) -> Document:
        return dict((self.playground.store.get(PLANES, agent, agent) or {}).get("status") or {})

    def node_of(self, agent: str, name: str) -> str:
        pod = self.playground.store.get("pods", agent, name)
        return str(pod["spec"].get("nodeName") or "") if pod is not None else "gone"

    async def settled(self) -> None:
        """The scheduler has read the cluster, and writes nothing more."""
        await until(
            lambda: all(self.plane_status(one["metadata"]["name"]) for one in self.playground.store.list(PLANES))
        )
        version = -1
        while version != self.playground.store.version:
            version = self.playground.store.version
            await asyncio.sleep(0.05)

    async def offered(self, agent: str, name: str) -> None:
        await until(lambda: self.request(agent, name).get("state") == "Offered")

    async def until(self, condition: Callable[[], object]) -> None:
        await until(lambda: bool(condition()))

    async def lease_of(self, agent: str, name: str, *alternatives: Document, **spec: Any) -> Document:
        """A lease that is Active, by a firm request. Returns its spec."""
        self.ask(agent, name, *alternatives, firm=True, **spec)
        await until(lambda: self.state(agent, name) == "Active")
        found: Document = self.lease(agent, name)["spec"]
        return found
