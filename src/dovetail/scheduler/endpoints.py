# SPDX-License-Identifier: Apache-2.0
"""/healthz, /readyz and /metrics of the scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dovetail.kube.reflector import Reflector
from dovetail.scheduler import metrics
from dovetail.scheduler.driver import Driver
from dovetail.scheduler.queue_metrics import measure

_STUCK_S = 60.0


def application(driver: Driver, reflectors: Iterable[Reflector[Any]]) -> web.Application:
    """Live while the loop turns, and before it begins (first lists may take minutes); ready once they are complete."""
    reflectors = list(reflectors)

    async def healthz(_: web.Request) -> web.Response:
        idle_s = 0.0 if driver.last_step_s is None else time.monotonic() - driver.last_step_s
        if idle_s > _STUCK_S:
            return web.Response(status=503, text=f"no step for {idle_s:.0f} s\n")
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        waiting = [str(r.resource) for r in reflectors if not r.synced.is_set()]
        if waiting:
            return web.Response(status=503, text=f"waiting for the first list of {', '.join(waiting)}\n")
        return web.Response(text="ok\n")

    async def scrape(_: web.Request) -> web.Response:
        for reflector in reflectors:
            metrics.STALENESS_SECONDS.labels(str(reflector.resource)).set(reflector.staleness_s())
        waiting, parked = driver.state.pending.lengths()
        metrics.PENDING.labels("queued").set(waiting)
        metrics.PENDING.labels("refused").set(parked)
        metrics.DIFFERENCES.set(driver.differences)
        metrics.REPORTS_QUEUED.set(driver.reporter.queued)
        measure(driver.state)
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    return app
