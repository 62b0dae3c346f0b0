# SPDX-License-Identifier: Apache-2.0
"""An in-memory Kubernetes API with simulated kubelets and faults, for demonstrations and tests.

    playground = Playground()
    url = await playground.start()
    playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}, "status": {...}})
    playground.kubeconfig(Path("kubeconfig"))       # kubectl --kubeconfig kubeconfig get nodes
    playground.faults.add(Fault("answer", "POST", "pods/binding", times=3, status=503))
    await playground.stop()

The contract tests run the same suite here and on a real kube-apiserver. Each module lists what it does not simulate.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import yaml

from dovetail.apiserver.admission import stored_form
from dovetail.apiserver.budgets import Budgets
from dovetail.apiserver.connections import Connections, WatchConnections
from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.failures import Failure, bad_request
from dovetail.apiserver.jobs import Jobs
from dovetail.apiserver.objects import Clock, Object, object_at, text_at
from dovetail.apiserver.resources import Catalogue, ServedResource
from dovetail.apiserver.server import ApiServer
from dovetail.apiserver.sqlite_log import SqliteLog
from dovetail.apiserver.store import HistoryBounds, Store
from dovetail.apiserver.watches import Watches
from dovetail.apiserver.writes import Writes
from dovetail.kube.json_values import copied_json
from dovetail.playground.claim_controller import ClaimController
from dovetail.playground.controllers import Controllers
from dovetail.playground.daemon_sets import DaemonSets
from dovetail.playground.default_scheduler import DefaultScheduler
from dovetail.playground.deployments import Deployments
from dovetail.playground.faults import Fault, Faults
from dovetail.playground.faulty_server import FaultyServer, PodServer
from dovetail.playground.gpu_exporters import GPU_LOAD, SimulatedExporters
from dovetail.playground.kubelets import EXIT_CODE, RUN_SECONDS, PlaygroundKubelets
from dovetail.playground.pod_logs import LOG, WrittenLogs

__all__ = [
    "EXIT_CODE",
    "GPU_LOAD",
    "LOG",
    "RUN_SECONDS",
    "Failure",
    "Fault",
    "Faults",
    "Playground",
    "PlaygroundKubelets",
    "Store",
]

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


class Playground:
    """One API server with its kubelets and controllers.

    `history` bounds the changes kept. With `file` all objects are in that SQLite file, too, and a playground that is
    made with it again goes on from there; it must be made where an event loop runs. `without_groups` leaves out API
    groups ("resource.k8s.io") or versions of them ("scheduling.k8s.io/v1beta1"). `port` 0 takes a free one.
    """

    def __init__(
        self, *, history: int = 20_000, without_groups: Iterable[str] = (), bookmark_interval_s: float = 60.0,
        start_delay_s: float = 0.5, stop_delay_s: float = 0.5, port: int = 0, clock: Clock = time.time,
        file: Path | None = None,
    ) -> None:  # fmt: skip
        self.store = Store(HistoryBounds(history), log=SqliteLog(file) if file else None)
        self._catalogue = Catalogue(without_groups)
        self._connections = Connections(port)
        watches = WatchConnections()
        self.faults = Faults(self.store, self._connections, watches)
        self._deletions = Deletions(self.store, self._catalogue, clock)
        self._writes = Writes(self.store, self._deletions, clock)
        budgets = Budgets(self.store, self._deletions, clock)
        delays = {"start_delay_s": start_delay_s, "stop_delay_s": stop_delay_s}
        self.kubelets = PlaygroundKubelets(self.store, self._deletions, clock, **delays)
        jobs = Jobs(self.store, self._writes, self._deletions, clock)
        claims = ClaimController(self.store, self._writes, self._deletions)
        self._controllers = Controllers(
            self.store, jobs, budgets, claims,
            DaemonSets(self.store, self._writes, self._deletions, clock),
            Deployments(self.store, self._writes, self._deletions, clock),
            DefaultScheduler(self.store, self._writes),
        )  # fmt: skip
        self.exporters = SimulatedExporters(self.store, clock)
        server = ApiServer(
            self.store, self._catalogue, self._writes, self._deletions, budgets, watches, clock,
            Watches(self.store, self.faults, bookmark_interval_s),
        )  # fmt: skip
        self.pod_servers: dict[tuple[str, str], PodServer] = {}
        """The servers in pods, by namespace and name, as the proxy of the API server reaches them."""
        self._server = FaultyServer(
            server, self.store, self._catalogue, self.faults, self.exporters, WrittenLogs(self.store), self.pod_servers
        )
        self._tasks: list[asyncio.Task[None]] = []
        for name in _NAMESPACES:
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name, value in _PRIORITIES.items():
            kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            self.put(kind | {"metadata": {"name": name}, "value": value})

    async def start(self, *, still: bool = False) -> str:
        """Serves, and starts the kubelets and controllers; `still`: only serves, so that objects stay as they are.
        Returns the URL. Raises OSError if the port is taken."""
        await self._connections.serve(self._server.handle)
        loops = () if still else (self.kubelets, self._controllers)
        self._tasks = [asyncio.create_task(loop.run()) for loop in loops]
        return self.url

    async def stop(self) -> None:
        """Ends everything that `start` started."""
        await self._connections.stop()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.store.log.close()

    @property
    def url(self) -> str:
        return self._connections.url

    def put_raw(self, document: Object) -> Object:
        """Stores the object as it is, with its uid and times, also one that the API would refuse. Raises Failure."""
        return self.store.put_raw(self._resource_of(document).collection, document)

    def _resource_of(self, document: Object) -> ServedResource:
        resource = self._catalogue.of_kind(text_at(document, "apiVersion"), text_at(document, "kind"))
        if resource is None:
            raise bad_request(f"{document.get('apiVersion')} {document.get('kind')} is not served here")
        return resource

    def put(self, document: Object) -> Object:
        """Creates the object or replaces it, its status too, as the API would. Returns what is stored.

        Raises Failure. An object that the API would refuse can be stored with `put_raw`.
        """
        resource = self._resource_of(document)
        new = stored_form(resource, copied_json(document))
        namespace = text_at(new, "metadata.namespace") or "default" if resource.namespaced else ""
        name = text_at(new, "metadata.name")
        old = self.store.get(resource.collection, namespace, name)
        if old is None:
            stored = self._writes.create(resource, namespace, new)
        else:
            version = {"resourceVersion": text_at(old, "metadata.resourceVersion")}
            new = new | {"metadata": object_at(new, "metadata") | version}
            stored = self._writes.update(resource, (namespace, name), new, "")
        if "status" in new and "status" in resource.traits:
            key = (namespace, text_at(stored, "metadata.name"))
            stored = self._writes.update(resource, key, stored | {"status": new["status"]}, "status")
        return stored

    def delete(self, collection: str, namespace: str, name: str) -> Object:
        """Deletes an object of a collection ("pods", "podgroups.scheduling.k8s.io") as the API would.

        Returns the object if it lives on for a while, else a Status. Raises Failure.
        """
        resource = self._catalogue.of_collection(collection)
        if resource is None:
            raise bad_request(f"{collection} is not served here")
        return self._deletions.delete(resource, (namespace, name), {})

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig file for this server. Returns the path."""
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "playground",
            "clusters": [{"name": "playground", "cluster": {"server": self.url}}],
            "users": [{"name": "playground", "user": {}}],
            "contexts": [{"name": "playground", "context": {"cluster": "playground", "user": "playground"}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path
