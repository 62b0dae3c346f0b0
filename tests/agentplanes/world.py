# SPDX-License-Identifier: Apache-2.0
"""A host cluster (the playground), an endpoint on disk, a broker in memory, and the carrier between them.

The binder stands in for the scheduler: it binds a pod with a lease to a node of that live lease if it shows its fence,
and others to any node. Whenever a pod of the host changes, the rules are checked that hold at every moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from dovetail.agentplanes import names
from dovetail.agentplanes.carrier import CarriedPlane, PlaneCarrier
from dovetail.agentplanes.endpoint import EndpointWrite, PlaneEndpoint
from dovetail.agentplanes.facts import FINISHED, CarryLimits
from dovetail.agentplanes.host_pod import HostTarget
from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.objects import Key, Object, labels_of, text_at
from dovetail.apiserver.planes.host import PlaneHost
from dovetail.apiserver.planes.plane import CATALOGUE
from dovetail.apiserver.planes.registry import PlaneName
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.resources import PODS
from dovetail.plane.fake import FakeBroker
from dovetail.playground import RUN_SECONDS, Playground
from tests.scheduler.scripted import until

NAMESPACE, NAME, UID = "agent-tuner", "tuner", "plane-uid"
JOBS = "jobs.batch"


class Killed(Exception):
    """The process ends here."""


class Kills:
    """Raises Killed before or after a write, once `left` writes have been made (None: never)."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.after = False
        self.writes = 0

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[None]:
        self.writes += 1
        due = self.left == 0
        if self.left is not None:
            self.left -= 1
        if due and not self.after:
            raise Killed
        yield
        if due:
            raise Killed


class KilledEndpoint(PlaneEndpoint):
    """Each action is a write of its own."""

    kills: Kills

    async def write(self, actions: Any) -> None:
        for action in actions:
            one: EndpointWrite = action
            async with self.kills.write():
                await super().write([one])


class World:
    def __init__(self, folder: Path, playground: Playground, client: Client, **limits: Any) -> None:
        self.kills = Kills()
        self.playground = playground
        self.broker = FakeBroker({"node-0": 4, "node-1": 4}, grace_ms=60_000)
        self.planes: PlaneHost
        self.carrier: PlaneCarrier
        self.killed = 0
        self.binds = True
        self._folder = folder
        self._client = client
        self._limits = CarryLimits(**{"logs_s": 0, **limits})
        self._task: asyncio.Task[None] | None = None
        self._binder: asyncio.Task[None] | None = None
        playground.store.collection("pods").listeners.append(self._check)

    def _check(self, change: StoreChange) -> None:
        """No two pods on the host are of one pod, and each is of the plane."""
        uids = [labels_of(pod)[names.POD_UID] for pod in self.host_pods]
        assert len(uids) == len(set(uids))

    @property
    def host_pods(self) -> list[Object]:
        return [pod for pod in self.playground.store.list("pods") if names.POD_UID in labels_of(pod)]

    async def start(self) -> None:
        self.planes = PlaneHost(self._folder)
        await self.planes.start()
        await self.planes.create(NAMESPACE, NAME, UID)
        self._task = asyncio.create_task(self._run())
        if self._binder is None:
            self._binder = asyncio.create_task(self._bind())

    async def _run(self) -> None:
        """Processes of the carrier, one after the other: a killed one is started again."""
        while True:
            endpoint = KilledEndpoint(self.planes, PlaneName(NAMESPACE, NAME))
            endpoint.kills = self.kills
            plane = CarriedPlane(PlaneName(NAMESPACE, NAME), HostTarget(NAMESPACE, UID), self._limits)
            self.carrier = PlaneCarrier(plane, endpoint, self._client, self.broker)
            self._kill_host(self.carrier)
            self.planes.listeners[:] = [lambda name, change: self.carrier.changed()]
            try:
                await self.carrier.run()
            except Killed:
                self.killed += 1
                self.kills.left = None

    def _kill_host(self, carrier: PlaneCarrier) -> None:
        create, delete = carrier.host.create, carrier.host.delete

        async def killed_create(action: Any) -> str:
            async with self.kills.write():
                return await create(action)
            raise AssertionError

        async def killed_delete(action: Any) -> None:
            async with self.kills.write():
                await delete(action)

        carrier.host.create, carrier.host.delete = killed_create, killed_delete  # type: ignore[method-assign]

    async def restart(self) -> None:
        """Another process, of the endpoints too."""
        await self.halt()
        await self.planes.stop()
        await self.start()

    async def stop(self) -> None:
        await self.halt()
        if self._binder is not None:
            self._binder.cancel()
        await self.planes.stop()

    async def ended(self) -> None:
        """Wait for the carrier's end, with its error."""
        assert self._task is not None
        task, self._task = self._task, None
        async with asyncio.timeout(20):
            await task

    async def halt(self) -> None:
        """The carrier ends."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _bind(self) -> None:
        while True:
            for pod in self.host_pods if self.binds else ():
                key = text_at(pod, "metadata.namespace"), text_at(pod, "metadata.name")
                if pod["spec"].get("nodeName") or text_at(pod, "metadata.deletionTimestamp"):
                    continue
                node = self._node_of(pod)
                if node:
                    binding = {"metadata": {"name": key[1]}, "target": {"kind": "Node", "name": node}}
                    await self._client.fetch("POST", PODS.path(*key, "binding"), binding)
            await asyncio.sleep(0.005)

    def _node_of(self, pod: Object) -> str:
        annotations = pod["metadata"].get("annotations", {})
        if names.LEASE not in annotations:
            return "node-0"
        for lease in self.broker.leases:
            if (lease.name, str(lease.fence)) == (annotations[names.LEASE], annotations[names.FENCE]):
                inside = [p for p in self.host_pods if p["metadata"]["annotations"].get(names.LEASE) == lease.name]
                taken = [p["spec"].get("nodeName") for p in inside if text_at(p, "status.phase") not in FINISHED]
                nodes = [holding.node for holding in lease.holdings]
                return next((node for node in nodes if taken.count(node) < nodes.count(node)), "")
        return ""

    async def create(self, collection: str, document: Object, namespace: str = "default") -> None:
        """What the agent does on its endpoint."""
        resource = CATALOGUE.of_collection(collection)
        assert resource is not None
        async with self.planes.plane(NAMESPACE, NAME) as api:
            api.writes.create(resource, namespace, document)

    async def delete(self, collection: str, name: str) -> None:
        resource = CATALOGUE.of_collection(collection)
        assert resource is not None
        async with self.planes.plane(NAMESPACE, NAME) as api:
            api.deletions.delete(resource, ("default", name), {})

    async def listed(self, collection: str) -> list[Object]:
        async with self.planes.plane(NAMESPACE, NAME) as api:
            return api.store.list(collection)

    async def get(self, collection: str, key: Key) -> Object:
        async with self.planes.plane(NAMESPACE, NAME) as api:
            return api.store.get(collection, *key) or {}

    async def when(self, collection: str, holds: Callable[[list[Object]], bool]) -> None:
        """Wait until this holds of the objects on the endpoint."""
        async with self.planes.plane(NAMESPACE, NAME) as api:
            store = api.store
            try:
                await until(lambda: holds(store.list(collection)))
            except AssertionError:
                raise AssertionError([one.get("status") for one in store.list(collection)]) from None

    async def passing(self, step_ms: int = 200) -> None:
        """The broker's time goes on, until cancelled."""
        while True:
            await self.broker.advance(step_ms)
            await asyncio.sleep(0.02)

    async def quiet(self) -> None:
        """Wait until nothing is left on the host, and let leases that nothing needs be returned."""
        await until(lambda: not self.host_pods)

        time_goes_on = asyncio.create_task(self.passing(2000))
        try:
            await until(lambda: not self.broker.leases and not self.broker.requests)
        finally:
            time_goes_on.cancel()


def phases(pods: list[Object]) -> list[str]:
    return sorted(text_at(pod, "status.phase") for pod in pods)


def all_finished(pods: list[Object]) -> bool:
    return bool(pods) and all(text_at(pod, "status.phase") in FINISHED for pod in pods)


def has(kind: str) -> Callable[[list[Object]], bool]:
    """Whether all objects have this condition."""
    return lambda found: (
        bool(found)
        and all(
            any(c["type"] == kind and c["status"] == "True" for c in one.get("status", {}).get("conditions", ()))
            for one in found
        )
    )


def template(gpus: int, seconds: float | None, **annotations: str) -> Object:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "main", "image": "registry.example/none", "resources": {"limits": limits}}
    run = {RUN_SECONDS: str(seconds)} if seconds is not None else {}
    return {
        "metadata": {"annotations": run | annotations},
        "spec": {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 1},
    }


def job(name: str, gpus: int, seconds: float | None, pods: int = 1, **annotations: str) -> Object:
    spec = {"parallelism": pods, "completions": pods, "template": template(gpus, seconds, **annotations)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def world(folder: Path, **limits: Any) -> AsyncIterator[World]:
    playground = Playground(start_delay_s=0.0, stop_delay_s=0.0)
    await playground.start()
    playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for node in ("node-0", "node-1"):
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "4"}
        playground.put({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
            "status": {"allocatable": amounts, "capacity": amounts},
        })  # fmt: skip
    try:
        async with Client(ClusterConfig(playground.url)) as client:
            made = World(folder, playground, client, **limits)
            await made.start()
            try:
                yield made
            finally:
                await made.stop()
    finally:
        await playground.stop()
