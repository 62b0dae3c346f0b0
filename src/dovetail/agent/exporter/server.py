# SPDX-License-Identifier: Apache-2.0
"""The port of the exporter: /metrics, /use, and /health.

Rules: `?name[]=NAME` (repeated) asks for the kinds with these names only. A port that is taken is a fault, and is tried
again every `AGAIN_S`. Answers are compressed for clients that accept it. `kube.probe_server` bounds connections.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable

import msgspec
from aiohttp import web

from dovetail.agent.exporter.exporter import Exporter
from dovetail.agent.exporter.text import CONTENT_TYPE
from dovetail.agent.exporter.use_hours import UseHours
from dovetail.kube.probe_server import opened

AGAIN_S = 30.0
_LEVEL = 1
_GZIP = 16
_DIGITS = 15
log = logging.getLogger(__name__)


class ExporterServer:
    """Serves an exporter at HOST:PORT. `serves` is called with the port when it is open."""

    def __init__(
        self, address: str, exporter: Exporter, use: UseHours, serves: Callable[[int], None] = lambda _: None
    ) -> None:
        self._address, self._exporter, self._use, self._serves = address, exporter, use, serves
        self._packed: tuple[bytes, bytes] = b"", b""
        self.fault = ""
        """Why it does not serve, as a sentence for an operator."""

    async def run(self) -> None:
        """Serve until cancelled."""
        answers = {"/metrics": self._metrics, "/use": self._hours, "/health": self._health}
        while True:
            try:
                async with opened(self._address, answers) as port:
                    self.fault = ""
                    log.info("metrics of the GPUs are at port %d", port)
                    self._serves(port)
                    await asyncio.get_running_loop().create_future()
            except OSError as error:
                self.fault = f"metrics of the GPUs are not served at {self._address}: {error.strerror or error}"
                log.error("%s", self.fault)
            await asyncio.sleep(AGAIN_S)

    async def _health(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def _hours(self, request: web.BaseRequest) -> web.Response:
        """The use of the GPUs, hour by hour, from the hour `?since=EPOCH_MS` on."""
        since = request.query.get("since", "0")
        if not since.isascii() or not since.isdecimal() or len(since) > _DIGITS:
            return web.Response(status=400, text="since: wanted is a time in epoch milliseconds\n")
        hours = await asyncio.to_thread(self._use.since, int(since))
        return web.Response(body=msgspec.json.encode(hours), content_type="application/json")

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        names = frozenset(request.query.getall("name[]", ()))
        text = await self._exporter.scrape(names)
        headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=text, headers=headers)
        source, packed = self._packed
        if source is not text:
            packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | _GZIP)
            packed = packer.compress(text) + packer.flush()
            if not names:
                self._packed = text, packed
        return web.Response(body=packed, headers=headers | {"Content-Encoding": "gzip"})
