# SPDX-License-Identifier: Apache-2.0
"""The listening socket on the loopback interface, and the connections that are open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_HOST = "127.0.0.1"


class Connections:
    """Serves one handler. A handler is cancelled when its client goes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._protocol: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._watches: set[asyncio.BaseTransport] = set()

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._port}"

    async def serve(self, handler: Handler) -> None:
        """Starts to listen. Raises OSError if the port is taken."""
        self._protocol = web.Server(handler, handler_cancellation=True, access_log=None)
        await self.open()

    async def open(self) -> None:
        """Listens, on the port of the time before if there was one."""
        if self._protocol is None or self._listener is not None:
            return
        self._listener = await asyncio.get_running_loop().create_server(self._protocol, _HOST, self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Breaks all connections and refuses new ones."""
        if self._protocol is None or self._listener is None:
            return
        self._listener.close()
        self._listener = None
        for connection in self._protocol.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def stop(self) -> None:
        """Closes for good, when all handlers have ended."""
        await self.close()
        if self._protocol is not None:
            await self._protocol.shutdown(timeout=1.0)

    def add_watch(self, request: web.BaseRequest) -> Callable[[], None]:
        """Notes that the connection carries a watch. Returns what to call when it has ended."""
        transport = request.transport
        if transport is None:
            return lambda: None
        self._watches.add(transport)
        return lambda: self._watches.discard(transport)

    def abort_watches(self) -> None:
        """Breaks the connections that carry a watch now."""
        for transport in self._watches:
            break_connection(transport)


def break_connection(transport: asyncio.BaseTransport | None) -> None:
    """Resets a connection: what was not yet sent is lost."""
    if isinstance(transport, asyncio.Transport):
        transport.abort()
