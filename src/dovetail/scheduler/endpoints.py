# SPDX-License-Identifier: Apache-2.0
"""/healthz, /readyz and /metrics of the scheduler.

The process is live while the main loop passes, and also before it starts: the API server may be away, and the first
lists may take minutes. It is ready once the first lists are complete.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from dovetail.kube.api.reflector import Reflector
from dovetail.kube.probe_server import Answer, exposition
from dovetail.scheduler import lease_metrics, metrics, queue_metrics, waiting_metrics
from dovetail.scheduler.driver import Driver

PATHS = ("/healthz", "/readyz", "/metrics")
_STUCK_S = 60.0
Refusal = tuple[int, str]
"""An HTTP status and the reason as text."""
Review = Callable[[str], Awaitable[Refusal | None]]
"""Maps the Authorization header of a request to a refusal; None: the request may read the metrics."""


class Endpoints:
    """Before `follow`, /readyz answers that the process waits for `awaited`. Without a `review` every client may read
    the metrics."""

    def __init__(self, awaited: str, review: Review | None = None) -> None:
        self._awaited = awaited
        self._review = review
        self._driver: Driver | None = None
        self._reflectors: tuple[Reflector[Any], ...] = ()

    def follow(self, driver: Driver, reflectors: Iterable[Reflector[Any]]) -> None:
        """Answer for this driver and these reflectors from now on."""
        self._driver, self._reflectors = driver, tuple(reflectors)

    def answers(self) -> Mapping[str, Answer]:
        """The handler of each path."""
        return dict(zip(PATHS, (self._healthz, self._readyz, self._metrics), strict=True))

    async def _healthz(self, _: web.BaseRequest) -> web.Response:
        last_s = self._driver.last_step_s if self._driver is not None else None
        idle_s = 0.0 if last_s is None else time.monotonic() - last_s
        if idle_s > _STUCK_S:
            return web.Response(status=503, text=f"no step for {idle_s:.0f} s\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.BaseRequest) -> web.Response:
        if self._driver is None:
            return web.Response(status=503, text=f"waiting for {self._awaited}\n")
        waiting = [str(r.resource) for r in self._reflectors if not r.synced.is_set()]
        if waiting:
            return web.Response(status=503, text=f"waiting for the first list of {', '.join(waiting)}\n")
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        if self._review is not None:
            refusal = await self._review(request.headers.get("Authorization", ""))
            if refusal is not None:
                status, why = refusal
                challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
                return web.Response(status=status, text=f"{why}\n", headers=challenge)
        if self._driver is not None:
            self._measure(self._driver)
        return exposition()

    def _measure(self, driver: Driver) -> None:
        for reflector in self._reflectors:
            metrics.STALENESS_SECONDS.labels(str(reflector.resource)).set(reflector.staleness_s())
        waiting, parked = driver.state.queue.lengths()
        metrics.PENDING.labels("queued").set(waiting)
        metrics.PENDING.labels("refused").set(parked)
        metrics.DIFFERENCES.set(driver.differences)
        metrics.CHANGED_RECORDS.set(driver.changed_records)
        metrics.REPORTS_QUEUED.set(driver.reporter.queued)
        queue_metrics.measure(driver.state)
        waiting_metrics.measure(driver.state)
        lease_metrics.measure(driver.state)
