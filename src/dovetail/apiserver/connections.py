# SPDX-License-Identifier: Apache-2.0
"""The listening socket, and the connections that are open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from dovetail.apiserver.failures import too_many_requests

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
LOOPBACK = "127.0.0.1"


class Connections:
    """Serves one handler, on one address. A handler is cancelled when its client goes.

    With `most` connections open further ones are closed at once. A connection on which no request
    comes for `silence_s` is closed before twice that time has passed. `ssl_context` makes it HTTPS.
    """

    def __init__(
        self, port: int, *, host: str = LOOPBACK, ssl_context: ssl.SSLContext | None = None, most: int = 1 << 31,
        silence_s: float = 3600.0,
    ) -> None:  # fmt: skip
        self._host = host
        self._port = port
        self._ssl_context = ssl_context
        self._most = most
        self._silence_s = silence_s
        self._heard: set[web.RequestHandler] = set()
        self._silent: set[web.RequestHandler] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._protocol: web.Server | None = None
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl_context else 'http'}://{host}:{self._port}"

    async def serve(self, handler: Handler) -> None:
        """Starts to listen. Raises OSError if the port is taken."""
        # A compressed body may be far larger than what came: none is unpacked.
        self._protocol = web.Server(
            self._noted(handler), handler_cancellation=True, access_log=None, auto_decompress=False,
            keepalive_timeout=2 * self._silence_s,
        )  # fmt: skip
        await self.open()

    async def open(self) -> None:
        """Listens, on the port of the time before if there was one."""
        if self._protocol is None or self._listener is not None:
            return
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, self._host, self._port, ssl=self._ssl_context)
        self._port = self._listener.sockets[0].getsockname()[1]

    def _accept(self) -> asyncio.BaseProtocol:
        if self._protocol is None or len(self._protocol.connections) >= self._most:
            return _Refusal()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._silence_s, self._close_silent)
        return self._protocol()

    def _close_silent(self) -> None:
        """Closes what was silent at the last sweep as well: aiohttp has no bound for a connection's first request."""
        self._sweep = None
        open_now = set(self._protocol.connections) if self._protocol is not None else set()
        self._heard &= open_now
        for connection in open_now & self._silent - self._heard:
            break_connection(connection.transport)
        self._silent = open_now - self._heard - self._silent
        if self._silent:
            self._sweep = asyncio.get_running_loop().call_later(self._silence_s, self._close_silent)

    def _noted(self, handler: Handler) -> Handler:
        async def noted(request: web.BaseRequest) -> web.StreamResponse:
            self._heard.add(request.protocol)
            return await handler(request)

        return noted

    async def close(self) -> None:
        """Breaks all connections and refuses new ones."""
        if self._protocol is None or self._listener is None:
            return
        self._listener.close()
        self._listener = None
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in self._protocol.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def stop(self) -> None:
        """Closes for good, when all handlers have ended."""
        await self.close()
        if self._protocol is not None:
            await self._protocol.shutdown(timeout=1.0)


class _Refusal(asyncio.Protocol):
    """Closes a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        break_connection(transport)


class WatchConnections:
    """The connections that carry a watch now, at most `most`."""

    def __init__(self, most: int = 1 << 31) -> None:
        self._most = most
        self._open: set[asyncio.BaseTransport] = set()

    def add(self, transport: asyncio.BaseTransport | None) -> Callable[[], None]:
        """Notes that the connection carries a watch. Returns what to call when it has ended. Raises a 429 Failure."""
        if transport is None:
            return lambda: None
        if len(self._open) >= self._most:
            raise too_many_requests(f"there are {self._most} watches already, which is the limit", 5)
        self._open.add(transport)
        return lambda: self._open.discard(transport)

    def abort(self) -> None:
        """Breaks them."""
        for transport in list(self._open):
            break_connection(transport)


def break_connection(transport: asyncio.BaseTransport | None) -> None:
    """Resets a connection: what was not yet sent is lost."""
    if isinstance(transport, asyncio.Transport):
        transport.abort()
