# SPDX-License-Identifier: Apache-2.0
"""/healthz, /readyz and /metrics of the process that serves agents' endpoints. The endpoints themselves have a port of
their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dovetail.kube.probe_server import Answer

PATHS = ("/healthz", "/readyz", "/metrics")


class Probed(Protocol):
    @property
    def unready(self) -> str: ...

    def measure(self) -> None: ...


class ServingProbes:
    """Before `follow`, /readyz answers that the process waits for `awaited`."""

    def __init__(self, awaited: str) -> None:
        self._awaited = awaited
        self._serving: Probed | None = None

    def follow(self, serving: Probed) -> None:
        """Answer for this from now on."""
        self._serving = serving

    def answers(self) -> Mapping[str, Answer]:
        """The handler of each path."""
        return dict(zip(PATHS, (self._healthz, self._readyz, self._metrics), strict=True))

    async def _healthz(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.BaseRequest) -> web.Response:
        why = f"waiting for {self._awaited}" if self._serving is None else self._serving.unready
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _metrics(self, _: web.BaseRequest) -> web.Response:
        if self._serving is not None:
            self._serving.measure()
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
