# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 to one server over kept-alive connections: as little as a Kubernetes client needs, and nothing more.

Why not a general HTTP library: to bind a pod is a 300-byte POST, thousands a second, and such a library spends several
times the CPU of the exchange itself on sessions, cookies, URLs and header objects. What is hard to get right, to take
replies apart, is llhttp's (the parser of Node.js, by httptools), with none of its leniencies.

Rules
- A request is one write and is never pipelined; its reply is read to the end.
- A connection goes back to the pool only after a complete reply that allows it; anything else closes it. Bytes that
  nobody asked for close it as well, also those that wait in the kernel when it is taken out again.
- On a stream silence is failure: where nothing of the body has come for the time that the caller gives, it counts as
  dead, whatever TCP thinks. TCP itself asks a silent peer for a sign of life (`_KEEP_ALIVE`).
- A connection idle for `_IDLE_S` is not used again: a server or balancer may be about to close it, and a write lost in
  that race has an unknown outcome.
- Bodies end by Content-Length, by chunks or at close. We never offer to accept compression. A server that sends
  `_MAX_BARREN_BYTES` of headers, chunk extensions or trailers without a byte of a body is not listened to any longer.
Does not know: HEAD requests, proxies, retries, credentials, JSON, Kubernetes.
"""

import asyncio
import select
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

_IDLE_S = 30.0
_CONNECT_S = 10.0
_HIGH_WATER_BYTES = 4 << 20
_INCOMING_BYTES = 32 << 10
_MAX_BARREN_BYTES = 64 << 10
_READ = frozenset({b"content-length", b"retry-after", b"transfer-encoding"})
"""The headers that are read."""
_KEEP_ALIVE = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
    if hasattr(socket, name)
)
"""Seconds, seconds, probes, ms: a peer from which no sign of life has come for 25 s is gone, whichever of the two
directions is cut. It costs a packet and its answer every 10 s on a connection on which nothing else is sent."""


class Dropped(ConnectionError):
    """The connection ended, or carried something that is not HTTP/1.1, before the reply was complete."""


class Silent(Dropped):
    """Nothing was received for longer than a sound server is silent."""


class TooLong(Exception):
    """The body of the reply is longer than the caller takes."""


class NotConnected(ConnectionError):
    """No connection could be made, so nothing was sent."""


class Connection(asyncio.BufferedProtocol):
    """One connection, and the reply now arriving on it. Used by one task at a time.

    It has a buffer of its own to receive into: without one, 256 KiB are taken from the heap for every read over TLS.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = True
        self.idle_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._arrivals: select.poll | None = None
        self._arrived = asyncio.Event()
        self._lost: Exception | None = None
        self._heard_s = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        self._incoming = memoryview(bytearray(_INCOMING_BYTES))
        self._parser = HttpResponseParser(self)
        self._keeps_alive = True
        self._until_close = False
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0
        self._barren_bytes = 0

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: the reply is complete, read to its end, and neither side has closed or
        wants to."""
        return self.complete and not self._pieces and self._lost is None and self._keeps_alive

    @property
    def quiet(self) -> bool:
        """Whether nothing waits in the kernel to be read: neither the end of the connection nor unrequested bytes,
        which would be read as the reply to the next request."""
        return self._arrivals is None or not self._arrivals.poll(0)

    def send(self, request: bytes) -> None:
        """Write a whole request."""
        if self._transport is None or self._lost:
            raise NotConnected(str(self._lost or "not connected"))
        self.status, self.complete, self._barren_bytes = 0, False, 0
        self.headers = {}
        self._transport.write(request)

    async def head(self) -> int:
        """The status, once the head of the reply is there; `headers` then has those that are read, names in lower
        case."""
        while not self.status:
            await self._arrival()
        return self.status

    async def read(self) -> bytes:
        """What has arrived of the body, at least one byte, or b"" at its end. Raises Dropped if it ends too early."""
        while not self._pieces:
            if self.complete:
                return b""
            await self._arrival()
        data = b"".join(self._pieces)
        self._pieces.clear()
        if self._buffered_bytes > _HIGH_WATER_BYTES and self._transport:
            self._transport.resume_reading()
        self._buffered_bytes = 0
        return data

    async def body(self, most_bytes: int = sys.maxsize) -> bytes:
        """The whole body. Raises TooLong for a body over the limit."""
        body = await self.read()
        if self.complete and not self._pieces and len(body) <= most_bytes:
            return body
        pieces, come = [body], len(body)
        while come <= most_bytes and (piece := await self.read()):
            pieces.append(piece)
            come += len(piece)
        if come > most_bytes:
            raise TooLong(f"the body has more than {most_bytes} bytes")
        return b"".join(pieces)

    def watch(self, silence_s: float) -> None:
        """From now on the connection fails with Silent when nothing is received for so long."""
        self._heard_s = self._loop.time()
        self._look_again(silence_s, silence_s)

    def unwatch(self) -> None:
        """End the limit of `watch`."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    async def rest(self, rest_s: float) -> None:
        """Stop reading for so long: then all that has arrived is read at once, instead of piece by piece."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._buffered_bytes > _HIGH_WATER_BYTES:
            return
        transport.pause_reading()
        await asyncio.sleep(rest_s)
        if not transport.is_closing():
            transport.resume_reading()

    def close(self) -> None:
        """Drop the connection at once, without a TLS farewell."""
        self.unwatch()
        if self._transport:
            self._transport.abort()

    def _look_again(self, after_s: float, silence_s: float) -> None:
        self._watchdog = self._loop.call_later(after_s, self._look, silence_s)

    def _look(self, silence_s: float) -> None:
        # One timer for all that comes, instead of one for each piece.
        left_s = self._heard_s + silence_s - self._loop.time()
        if left_s > 0:
            self._look_again(left_s, silence_s)
            return
        self.connection_lost(Silent(f"nothing came for {silence_s:g} s"))
        self.close()

    async def _arrival(self) -> None:
        if self._lost:
            raise self._lost
        self._arrived.clear()
        await self._arrived.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("socket")
        if peer is None:
            return
        if peer.family in (socket.AF_INET, socket.AF_INET6):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE:
                peer.setsockopt(socket.IPPROTO_TCP, option, value)
        self._arrivals = select.poll()
        self._arrivals.register(peer.fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        if self._lost is not None:
            return
        self._barren_bytes += nbytes
        try:
            if self.complete:
                # Empty lines between replies mean nothing (RFC 9112, 2.2).
                if bytes(self._incoming[:nbytes]).strip(b"\r\n"):
                    raise ValueError("bytes without a request")
                return
            self._parser.feed_data(self._incoming[:nbytes])
            if self._barren_bytes > _MAX_BARREN_BYTES:
                raise ValueError(f"{self._barren_bytes} bytes of it are not the body")
        except (HttpParserError, ValueError) as error:
            # No part of it is handed out. What a callback raises is the context of the parser's own error.
            self.complete = self._until_close = False
            self._pieces.clear()
            self.connection_lost(Dropped(f"not an HTTP/1.1 reply: {error.__context__ or error}"))
            self.close()
            return
        if not self._barren_bytes:
            self._heard_s = self._loop.time()
        if self._buffered_bytes > _HIGH_WATER_BYTES and self._transport:
            self._transport.pause_reading()
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._until_close and exc is None:
            self.complete = True
        if self._lost is None:
            self._lost = (
                exc if isinstance(exc, Dropped) else Dropped(f"the connection was closed: {exc or 'by the server'}")
            )
            self._arrivals = None
        self._arrived.set()

    # What the parser finds.

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("bytes after the end of the body")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here as well.
        if not self.status and (name := name.lower()) in _READ:
            self.headers[name.decode()] = value.decode("latin-1").rstrip()

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self.headers
        status = parser.get_status_code()
        if parser.get_http_version() not in ("1.1", "1.0"):
            raise ValueError(f"it is HTTP/{parser.get_http_version()}")
        if status < 200:
            # An interim reply (RFC 9110, 15.2): the real one follows.
            if status == 101:
                raise ValueError("it switches protocols, which nobody has asked for")
            headers.clear()
            return
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            raise ValueError(f"the transfer coding {coding[:40]!r} is not known")
        bodiless = status in (204, 304)
        self._until_close = coding is None and "content-length" not in headers and not bodiless
        self._keeps_alive = parser.should_keep_alive() and not self._until_close
        self.status = status

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._buffered_bytes += len(body)
        self._barren_bytes = 0

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self._barren_bytes = 0


class ConnectionPool:
    """Connections to one server: at most `size` in requests at a time, and any number in streams."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, tls_server_name: str, size: int) -> None:
        url = urlsplit(server)
        self._host, self._port = url.hostname or "", url.port or (443 if tls else 80)
        self._server_name = (tls_server_name or self._host) if tls else None
        self._tls = tls
        self._free = asyncio.Semaphore(size)
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Connection]:
        """A connection of its own, outside the limit. Raises NotConnected.

        If the owner raises Silent or TimeoutError, the idle connections are closed as well: where the server is gone
        behind a load balancer they lead to it, too, and each would be found out only by the next request.
        """
        connection = self._take() or await self._connect(_CONNECT_S)
        try:
            yield connection
        except (Silent, TimeoutError):
            self.close()
            raise
        finally:
            connection.unwatch()
            self._put(connection)

    async def exchange(
        self, request: bytes, timeout_s: float, *, urgent: bool, most_bytes: int = sys.maxsize
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the reply. Raises NotConnected or, once anything was sent, Dropped or TooLong.

        `timeout_s` is for the reply, and bounds the time to connect; the wait for a free place does not count. An
        `urgent` request needs no place.
        """
        async with nullcontext() if urgent else self._free:
            connection = self._take() or await self._connect(min(timeout_s, _CONNECT_S))
            late = Dropped(f"no reply within {timeout_s:g} s")
            # Not asyncio.timeout, which costs as much as to parse the reply.
            timer = asyncio.get_running_loop().call_later(timeout_s, connection.connection_lost, late)
            try:
                connection.send(request)
                body = await connection.body(most_bytes)
            except BaseException as error:
                # Also when cancelled: the reply may arrive yet, and must not be taken for that of the next request.
                connection.close()
                if error is late:
                    # As after a stream that is silent.
                    self.close()
                raise
            finally:
                timer.cancel()
            self._put(connection)
            return connection.status, connection.headers, body

    def close(self) -> None:
        """Close what is idle; connections in use close when their exchange ends badly or their owner is cancelled."""
        while self._idle:
            self._idle.pop().close()

    def use(self, tls: ssl.SSLContext | None) -> None:
        """Send requests only over connections with these TLS settings from now on (a rotated client certificate)."""
        self._tls = tls

    def _take(self) -> Connection | None:
        oldest_s = time.monotonic() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            fit = connection.reusable and connection.idle_since_s > oldest_s and connection.tls is self._tls
            if fit and connection.quiet:
                return connection
            connection.close()
        return None

    def _put(self, connection: Connection) -> None:
        """Keep the connection for the next request if its reply is complete; else close it."""
        if connection.reusable:
            connection.idle_since_s = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self, timeout_s: float) -> Connection:
        tls = self._tls
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(tls), self._host, self._port, ssl=tls, server_hostname=self._server_name
                )
        except (OSError, TimeoutError) as error:
            raise NotConnected(str(error) or f"no connection within {timeout_s:g} s") from error
        return connection
