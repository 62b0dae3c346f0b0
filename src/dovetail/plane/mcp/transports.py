# SPDX-License-Identifier: Apache-2.0
"""How a client reaches the server: over stdio, or over streamable HTTP.

Rules
- stdio: one client; the end of its input ends the server. A signal ends it too, although a thread still reads.
- HTTP: the names of hosts in requests are checked against those that the server has (DNS rebinding), bodies and
  sessions are bounded. A bearer token, where there is one, is compared in constant time.
Source: Model Context Protocol, section Transports, security warning; RFC 6750 for the token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dovetail.plane.mcp.server import AgentServer

PATH = "/mcp"
MOST_BODY_BYTES = 256 * 1024
MOST_LINE_BYTES = 256 * 1024
MOST_SESSIONS = 64
CLOSING_S = 2
"""How long open connections have at the end."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


async def serve_stdio(server: AgentServer) -> None:
    """Until the input ends."""
    lines = _Lines(0)
    async with stdio_server(stdin=cast(Any, lines)) as (read_stream, write_stream):
        await server.sdk.run(read_stream, write_stream, server.sdk.create_initialization_options())


class _Lines:
    """The lines of a file descriptor, read by a thread that no end of the process waits for. A line that is too long
    ends the input."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(16)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        line = await self._queue.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self) -> None:
        # Not through sys.stdin: its lock would be held when the interpreter ends.
        held = b""
        with suppress(RuntimeError):  # the loop is closed
            while len(held) <= MOST_LINE_BYTES and (more := self._more()):
                *lines, held = (held + more).split(b"\n")
                for line in lines:
                    self._put(line.decode("utf-8", "replace"))
            self._put(None)

    def _more(self) -> bytes:
        try:
            return os.read(self._descriptor, 65_536)
        except OSError:
            return b""

    def _put(self, line: str | None) -> None:
        asyncio.run_coroutine_threadsafe(self._queue.put(line), self._loop).result()


def listen(address: str) -> socket.socket:
    """A socket that is bound to HOST:PORT. Raises OSError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, int(port)))
        found.listen()
    except OSError:
        found.close()
        raise
    return found


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach HOST:PORT."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve_http(server: AgentServer, bound: socket.socket, token: str, hosts: Sequence[str]) -> None:
    """Until it is cancelled. `token` is the bearer token that each request must have ("": none). `hosts` are names by
    which clients reach it, besides those of the loopback."""
    names = [*_LOOPBACK, *hosts]
    security = TransportSecuritySettings(
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        allowed_origins=[
            f"{scheme}://{form}" for name in names for form in (name, f"{name}:*") for scheme in ("http", "https")
        ],
    )
    app: ASGIApp = server.sdk.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MOST_BODY_BYTES,
        max_sessions=MOST_SESSIONS,
        transport_security=security,
    )
    if token:
        app = _WithToken(app, token)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, ws="none", server_header=False, timeout_graceful_shutdown=CLOSING_S
    )
    http = _Http(config)
    task = asyncio.ensure_future(http.serve(sockets=[bound]))
    try:
        await asyncio.shield(task)
    finally:
        http.should_exit = True
        await asyncio.wait([task])


class _Http(uvicorn.Server):
    """Signals are for the command that runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _WithToken:
    """Requests without the token are refused."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._has_token(scope):
            refused = JSONResponse(
                {"error": "invalid_token", "error_description": "a bearer token is required"},
                401,
                {"WWW-Authenticate": 'Bearer error="invalid_token"'},
            )
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_token(self, scope: Scope) -> bool:
        values: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:
            return False
        scheme, space, token = values[0].partition(b" ")
        return hmac.compare_digest(scheme.lower() + space + token, self._expected)
