# SPDX-License-Identifier: Apache-2.0
"""/healthz, /readyz and /metrics of the scheduler.

Rules
- A connection is for one request. It lives `_LIFE_S` at most, whatever it does; there are `_MOST` at a time, and one
  more takes the place of the oldest: neither idle nor slow clients keep a probe from its answer.
- The process is live while the loop turns, and before it begins: the API server may be away, and first lists may take
  minutes. It is ready once the first lists are complete.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dovetail.kube.reflector import Reflector
from dovetail.scheduler import metrics
from dovetail.scheduler.driver import Driver
from dovetail.scheduler.queue_metrics import measure

PATHS = ("/healthz", "/readyz", "/metrics")
_STUCK_S = 60.0
_LIFE_S = 20.0
_MOST = 64
_quiet = logging.getLogger("dovetail.endpoints")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False
"""What strangers send is nothing for the log."""

Refusal = tuple[int, str]
"""A status and why."""
Review = Callable[[str], Awaitable[Refusal | None]]
"""From the Authorization header of a request to why it is refused; None: it may read the metrics."""


class Endpoints(web.Server):
    """A factory of protocols for `create_server`. Before `follow` it says what is `awaited`. Without a `review`
    everybody may read the metrics."""

    def __init__(self, awaited: str, review: Review | None = None) -> None:
        super().__init__(self._answer, access_log=None, lingering_time=0.0, logger=_quiet)
        self._awaited = awaited
        self._review = review
        self._driver: Driver | None = None
        self._reflectors: tuple[Reflector[Any], ...] = ()
        self._open: dict[_Handler, asyncio.TimerHandle] = {}
        self._answers = dict(zip(PATHS, (self._healthz, self._readyz, self._metrics), strict=True))

    def follow(self, driver: Driver, reflectors: Iterable[Reflector[Any]]) -> None:
        """From now on it tells of these."""
        self._driver, self._reflectors = driver, tuple(reflectors)

    def __call__(self) -> web.RequestHandler:
        return _Handler(self, loop=self._loop, **self._kwargs)

    def opened(self, handler: _Handler) -> None:
        if len(self._open) >= _MOST:
            next(iter(self._open)).abort()
        self._open[handler] = self._loop.call_later(_LIFE_S, handler.abort)

    def closed(self, handler: _Handler) -> None:
        if timer := self._open.pop(handler, None):
            timer.cancel()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        answer = self._answers.get(request.path)
        if answer is None:
            response = web.Response(status=404, text=f"there are {', '.join(self._answers)}\n")
        elif request.method not in ("GET", "HEAD"):
            response = web.Response(status=405, headers={"Allow": "GET, HEAD"}, text="GET it\n")
        else:
            try:
                response = await answer(request)
            except Exception:
                metrics.log.exception("%s cannot be answered", request.path)
                response = web.Response(status=500, text="it cannot be answered; the log says why\n")
        response.force_close()
        return response

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
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _measure(self, driver: Driver) -> None:
        for reflector in self._reflectors:
            metrics.STALENESS_SECONDS.labels(str(reflector.resource)).set(reflector.staleness_s())
        waiting, parked = driver.state.pending.lengths()
        metrics.PENDING.labels("queued").set(waiting)
        metrics.PENDING.labels("refused").set(parked)
        metrics.DIFFERENCES.set(driver.differences)
        metrics.CHANGED_RECORDS.set(driver.changed_records)
        metrics.REPORTS_QUEUED.set(driver.reporter.queued)
        measure(driver.state)


class _Handler(web.RequestHandler):
    """One connection."""

    __slots__ = ("_endpoints",)

    def __init__(self, endpoints: Endpoints, **options: Any) -> None:
        super().__init__(endpoints, **options)
        self._endpoints = endpoints

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._endpoints.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._endpoints.closed(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Drop it; it counts no longer."""
        self._endpoints.closed(self)
        if self.transport is not None:
            self.transport.abort()
