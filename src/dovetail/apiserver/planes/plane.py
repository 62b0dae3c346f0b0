# SPDX-License-Identifier: Apache-2.0
"""One open plane: its store on a SQLite file, the API over it, and its controllers."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from dovetail.apiserver.budgets import Budgets
from dovetail.apiserver.connections import WatchConnections
from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.job_controller import JobController
from dovetail.apiserver.jobs import Jobs
from dovetail.apiserver.objects import Clock, Object
from dovetail.apiserver.planes.limits import PlaneLimits, RequestBudget
from dovetail.apiserver.quota import StoreQuota
from dovetail.apiserver.resources import Catalogue
from dovetail.apiserver.server import ApiServer
from dovetail.apiserver.sqlite_log import SqliteLog
from dovetail.apiserver.store import HistoryBounds, Store
from dovetail.apiserver.watches import Watches, WatchFlow
from dovetail.apiserver.writes import Writes

SERVED = frozenset(
    {
        *("namespaces", "pods", "configmaps", "secrets", "events", "services", "persistentvolumeclaims"),
        *("serviceaccounts", "jobs.batch", "leases.coordination.k8s.io"),
        *("workloads.scheduling.k8s.io", "podgroups.scheduling.k8s.io"),
    }
)
"""The collections of a plane. The reference has the list, with what is not supported."""
CATALOGUE = Catalogue(["scheduling.k8s.io/v1alpha3"], only=SERVED)
_BOOKMARK_INTERVAL_S = 60.0
_DEFAULT_NAMESPACE: Object = {"metadata": {"name": "default"}}


def opened_store(file: Path, limits: PlaneLimits, clock: Clock) -> Store:
    """The store of a plane, read from its file, which is made if it is not there. Raises StoreUnreadable."""
    bounds = HistoryBounds(limits.history, limits.history_s, limits.history_size)
    return Store(bounds, log=SqliteLog(file), clock=clock)


class PlaneApi:
    """A plane whose store is in memory. It must be made where an event loop runs."""

    def __init__(self, store: Store, limits: PlaneLimits, budget: RequestBudget, clock: Clock) -> None:
        self.store = store
        self.deletions = Deletions(store, CATALOGUE, clock)
        self.writes = Writes(store, self.deletions, clock, StoreQuota(store, limits.quota))
        self._watches = WatchConnections(limits.watches)
        self._jobs = JobController(store, Jobs(store, self.writes, self.deletions, clock))
        self._server = ApiServer(
            store, CATALOGUE, self.writes, self.deletions, Budgets(store, self.deletions, clock), self._watches, clock,
            Watches(store, WatchFlow(), _BOOKMARK_INTERVAL_S), budget.charge,
        )  # fmt: skip
        namespaces = CATALOGUE.of_collection("namespaces")
        if namespaces is not None and store.get("namespaces", "", "default") is None:
            self.writes.create(namespaces, "", _DEFAULT_NAMESPACE)

    async def answer(self, request: web.BaseRequest, path: str, body: bytes) -> web.StreamResponse:
        """The answer to a request of this path in the plane."""
        return await self._server.answer(request, path, body)

    @property
    def failed(self) -> bool:
        """Whether its file could not be written: it has to be opened again."""
        return self.store.log.failed

    async def close(self) -> None:
        """Breaks the watches, and closes the file once all is written."""
        self._watches.abort()
        self._jobs.end()
        await self.store.log.close()
