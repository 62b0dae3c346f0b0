# SPDX-License-Identifier: Apache-2.0
"""/healthz, /readyz, /metrics and /history of the collector.

/history has the names of all namespaces: it is for whoever has the token alone.

It is live while it makes passes, and before the first one. It is ready once the first lists are complete, and while
batches are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Any

from aiohttp import web

from dovetail.history.collector import metrics
from dovetail.history.collector.collector import Collector
from dovetail.kube.api.reflector import Reflector
from dovetail.kube.probe_server import Answer, exposition

PATHS = ("/healthz", "/readyz", "/metrics", "/history")
SHORTEST_TOKEN = 16
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class CollectorEndpoints:
    """Before `follow`, /readyz answers that the process waits for `awaited`. /history is the file `published`, if the
    history is published, for a request with the bearer token in the file `token`, which is read again each time."""

    def __init__(self, awaited: str, published: Path | None = None, token: Path | None = None) -> None:
        self._awaited, self._published, self._token = awaited, published, token
        self._collector: Collector | None = None
        self._reflectors: tuple[Reflector[Any], ...] = ()

    def follow(self, collector: Collector, reflectors: Iterable[Reflector[Any]]) -> None:
        """Answer for these from now on."""
        self._collector, self._reflectors = collector, tuple(reflectors)

    def answers(self) -> Mapping[str, Answer]:
        """The handler of each path."""
        return dict(zip(PATHS, (self._healthz, self._readyz, self._metrics, self._history), strict=True))

    async def _healthz(self, _: web.BaseRequest) -> web.Response:
        stuck_s = self._collector.stuck_s if self._collector is not None else 0.0
        text = f"no pass for {stuck_s:.0f} s" if stuck_s else "ok"
        return web.Response(status=503 if stuck_s else 200, text=f"{text}\n")

    async def _readyz(self, _: web.BaseRequest) -> web.Response:
        why = self._unready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    def _unready(self) -> str:
        if self._collector is None:
            return f"waiting for {self._awaited}"
        waiting = [str(one.resource) for one in self._reflectors if not one.synced.is_set()]
        return f"waiting for the first list of {', '.join(waiting)}" if waiting else self._collector.failure

    async def _metrics(self, _: web.BaseRequest) -> web.Response:
        return exposition()

    async def _history(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._published is None or self._token is None:
            return web.Response(status=404, text="the collector runs without --publish-every\n")
        if not _has_token(request, self._token):
            text = "a bearer token is needed: that in the file of --publish-token\n"
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"}, text=text)
        if not self._published.is_file():
            return web.Response(status=503, text="nothing is published yet\n")
        return web.FileResponse(self._published, headers={"Content-Type": _TEXT})


def _has_token(request: web.BaseRequest, file: Path) -> bool:
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        metrics.log.error("%s cannot be read (%s): /history is answered to nobody", file, error.strerror)
        return False
    sent = request.headers.get("Authorization", "").encode(errors="replace")
    return len(token) >= SHORTEST_TOKEN and compare_digest(sent, b"Bearer " + token)
