# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for probes and metrics, which idle and slow clients cannot block.

Rules: a connection is for one request and lives `_LIFE_S` at most, whatever it does; there are `_MOST` at a time, and
one more takes the place of the oldest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

_LIFE_S = 20.0
_MOST = 64
_FAREWELL_S = 1.0
_log = logging.getLogger(__name__)
_quiet = logging.getLogger("dovetail.doors")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False
"""What strangers send is nothing for the log."""

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
PLAIN_PATHS = ("/healthz", "/metrics")
"""Of a process that is alive while it answers."""


def plain_answers() -> Mapping[str, Answer]:
    """The handlers of PLAIN_PATHS."""

    async def healthz(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def metrics(_: web.BaseRequest) -> web.StreamResponse:
        return exposition()

    return dict(zip(PLAIN_PATHS, (healthz, metrics), strict=True))


def exposition(registry: CollectorRegistry = REGISTRY) -> web.Response:
    """The metrics of this process, in Prometheus' text format."""
    return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class Doors(web.Server):
    """A factory of protocols for `create_server`, which answers GET on these paths."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        super().__init__(self._answer, access_log=None, lingering_time=0.0, logger=_quiet)
        self._answers = answers
        self._open: dict[_Handler, asyncio.TimerHandle] = {}

    def __call__(self) -> web.RequestHandler:
        return _Handler(self, loop=self._loop, **self._kwargs)

    def opened(self, handler: _Handler) -> None:
        if len(self._open) >= _MOST:
            next(iter(self._open)).abort()
        self._open[handler] = self._loop.call_later(_LIFE_S, handler.abort)

    def closed(self, handler: _Handler) -> None:
        if timer := self._open.pop(handler, None):
            timer.cancel()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = self._answers.get(request.path)
        response: web.StreamResponse
        if answer is None:
            response = web.Response(status=404, text=f"there are {', '.join(self._answers)}\n")
        elif request.method not in ("GET", "HEAD"):
            response = web.Response(status=405, headers={"Allow": "GET, HEAD"}, text="GET it\n")
        else:
            try:
                response = await answer(request)
            except Exception:
                _log.exception("%s cannot be answered", request.path)
                response = web.Response(status=500, text="it cannot be answered; the cause is in the log\n")
        response.force_close()
        return response


class _Handler(web.RequestHandler):
    """One connection."""

    __slots__ = ("_doors",)

    def __init__(self, doors: Doors, **options: Any) -> None:
        super().__init__(doors, **options)
        self._doors = doors

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._doors.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._doors.closed(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Drop it; it counts no longer."""
        self._doors.closed(self)
        if self.transport is not None:
            self.transport.abort()


@asynccontextmanager
async def opened(address: str, answers: Mapping[str, Answer]) -> AsyncIterator[int]:
    """They are answered at HOST:PORT meanwhile, port 0 for any; gives the port. Raises OSError where it is taken."""
    host, _, port = address.rpartition(":")
    doors = Doors(answers)
    server = await asyncio.get_running_loop().create_server(doors, host.strip("[]") or None, int(port))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await doors.shutdown(_FAREWELL_S)
