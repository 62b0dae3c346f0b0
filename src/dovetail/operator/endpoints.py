# SPDX-License-Identifier: Apache-2.0
"""/healthz, /readyz and /metrics of the operator.

The process is live while the loops of the stacks pass, and also before they start: the API server may be away. It is
ready once the first lists are complete, on the leader and on followers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from dovetail.kube.api.reflector import Reflector
from dovetail.kube.probe_server import Answer, exposition
from dovetail.operator import metrics

PATHS = ("/healthz", "/readyz", "/metrics")


class OperatorEndpoints:
    """Before `follow`, /readyz answers that the process waits for `awaited`."""

    def __init__(self, awaited: str) -> None:
        self._awaited = awaited
        self._reflectors: tuple[Reflector[Any], ...] = ()
        self._ready: Callable[[], str] = lambda: f"waiting for {awaited}"

    def follow(self, reflectors: Iterable[Reflector[Any]], unready: Callable[[], str]) -> None:
        """Answer for these reflectors from now on; `unready` is why the process is not ready, "" when it is."""
        self._reflectors, self._ready = tuple(reflectors), unready

    def answers(self) -> Mapping[str, Answer]:
        """The handler of each path."""
        return dict(zip(PATHS, (self._healthz, self._readyz, self._metrics), strict=True))

    async def _healthz(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.BaseRequest) -> web.Response:
        why = self._ready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _metrics(self, _: web.BaseRequest) -> web.Response:
        for reflector in self._reflectors:
            metrics.STALENESS_SECONDS.labels(str(reflector.resource)).set(reflector.staleness_s())
        return exposition()
