# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 to one server over kept-alive connections: as little as a Kubernetes client needs, and nothing more.

Why not a general HTTP library: to bind a pod is a 300-byte POST, thousands a second, and such a library spends several
times the CPU of the exchange itself on sessions, cookies, URLs and header objects.

Rules
- A request is one write and is never pipelined; its reply is read to the end.
- A connection goes back to the pool only after a complete reply that allows it; anything else closes it.
- On a stream silence is failure: where nothing has come for the time that the caller gives, it counts as dead, whatever
  TCP thinks.
- A connection idle for `_IDLE_S` is not used again: a server or balancer may be about to close it, and a write lost in
  that race has an unknown outcome.
- Bodies end by Content-Length, by chunks or at close. We never offer to accept compression.
Does not know: HEAD requests, proxies, retries, credentials, JSON, Kubernetes.
"""

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import cast
from urllib.parse import urlsplit

_IDLE_S = 30.0
_CONNECT_S = 10.0
_HIGH_WATER_BYTES = 4 << 20
_INCOMING_BYTES = 32 << 10
_MAX_HEAD_BYTES = 64 << 10
_READ = re.compile(rb"\r\n(connection|content-length|retry-after|transfer-encoding):[ \t]*([^\r]*)", re.IGNORECASE)
"""The headers that somebody reads. To take all of them apart costs as much as the rest of a short reply."""


class Dropped(ConnectionError):
    """The connection ended, or carried something that is not HTTP/1.1, before the reply was complete."""


class Silent(Dropped):
    """Nothing has come for longer than a sound server is silent."""


class NotConnected(ConnectionError):
    """No connection could be made, so nothing was sent."""


class _Chunks:
    """Takes the chunked transfer coding (RFC 9112, 7.1) apart, however the bytes are cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._left_bytes = 0
        self._trailer = False

    def feed(self, data: bytes, into: list[bytes]) -> bool:
        """Append the chunk data found to `into`; True once the last chunk and its trailer have been seen."""
        data, at = self._rest + data, 0
        while at < len(data):
            if self._left_bytes:
                # _left_bytes counts the chunk's closing CRLF, which may itself be cut in two.
                piece = data[at : at + self._left_bytes]
                at += len(piece)
                self._left_bytes -= len(piece)
                if piece := piece[: len(piece) - max(0, 2 - self._left_bytes)]:
                    into.append(piece)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            line, at = data[at:end], end + 2
            if self._trailer:
                if not line:
                    if at < len(data):
                        raise ValueError("bytes after the last chunk")
                    return True
            elif size := int(line.split(b";", 1)[0], 16):
                self._left_bytes = size + 2
            else:
                self._trailer = True
        self._rest = data[at:]
        return False


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
        self._waiter: asyncio.Future[None] | None = None
        self._lost: Exception | None = None
        self._heard_s = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        self._incoming = memoryview(bytearray(_INCOMING_BYTES))
        self._head = b""
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0
        self._chunks: _Chunks | None = None
        # Bytes of the body still to come; None when chunks or the end of the connection will tell.
        self._left_bytes: int | None = None

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: the reply is complete and neither side has closed or wants to."""
        return self.complete and self._lost is None and self.headers.get("connection", "").lower() != "close"

    def send(self, request: bytes) -> None:
        """Write a whole request and expect its reply."""
        if self._transport is None or self._lost:
            raise NotConnected(str(self._lost or "not connected"))
        self.status, self.complete, self._head = 0, False, b""
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

    async def body(self) -> bytes:
        """The whole body."""
        body = await self.read()
        if self.complete and not self._pieces:
            return body
        pieces = [body]
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    def watch(self, silence_s: float) -> None:
        """From now on it is lost, with Silent, when nothing has come for so long."""
        self._heard_s = self._loop.time()
        self._look_again(silence_s, silence_s)

    async def rest(self, rest_s: float) -> None:
        """Leave what comes where it is for so long: then it is read at once, and each piece need not be taken in for
        itself."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._buffered_bytes > _HIGH_WATER_BYTES:
            return
        transport.pause_reading()
        await asyncio.sleep(rest_s)
        if not transport.is_closing():
            transport.resume_reading()

    def close(self) -> None:
        """Drop the connection at once, without a TLS farewell."""
        if self._watchdog is not None:
            self._watchdog.cancel()
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
        self._waiter = self._loop.create_future()
        await self._waiter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._incoming[:nbytes])
        self._heard_s = self._loop.time()
        try:
            if not self.status:
                data = self._take_head(data)
            if self.status and data:
                self._take_body(data)
        except ValueError as error:
            self.connection_lost(Dropped(f"not an HTTP/1.1 reply: {error}"))
            self.close()
            return
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        until_close = self.status and self._left_bytes is None and self._chunks is None
        if until_close and exc is None:
            self.complete = True
        self._lost = self._lost or (exc if isinstance(exc, Dropped) else Dropped(f"the connection was closed: {exc}"))
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def _take_head(self, data: bytes) -> bytes:
        if self.complete:
            raise ValueError("bytes without a request")
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _MAX_HEAD_BYTES:
                raise ValueError("the head is too long")
            return b""
        version, _, status = self._head[:12].partition(b" ")
        if version not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise ValueError(f"it begins with {self._head[:12]!r}")
        data, head = self._head[end + 4 :], self._head[:end]
        if status < b"200":
            # An interim reply (RFC 9110, 15.2): the real one follows.
            self._head = b""
            return self._take_head(data)
        pairs = [(name.decode().lower(), value.decode("latin-1").rstrip()) for name, value in _READ.findall(head)]
        self.headers = dict(pairs)
        if version == b"HTTP/1.0":
            self.headers["connection"] = "close"
        self._chunks = self._left_bytes = None
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._chunks = _Chunks()
        elif status in (b"204", b"304"):
            self._left_bytes = 0
        elif (length := self.headers.get("content-length")) is not None:
            self._left_bytes = int(length)
        else:
            self.headers["connection"] = "close"
        self.complete = self._left_bytes == 0
        self.status = int(status)
        return data

    def _take_body(self, data: bytes) -> None:
        if self.complete:
            raise ValueError("bytes after the end of the body")
        if self._chunks:
            self.complete = self._chunks.feed(data, self._pieces)
        else:
            self._pieces.append(data)
            if self._left_bytes is not None:
                self._left_bytes -= len(data)
                if self._left_bytes < 0:
                    raise ValueError("the body is longer than its Content-Length")
                self.complete = self._left_bytes == 0
        self._buffered_bytes += len(data)
        if self._buffered_bytes > _HIGH_WATER_BYTES and self._transport:
            self._transport.pause_reading()


class Pool:
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
        """A connection of its own, outside the limit, closed afterwards. Raises NotConnected."""
        connection = await self._connect(_CONNECT_S)
        try:
            yield connection
        finally:
            connection.close()

    async def exchange(self, request: bytes, timeout_s: float, *, urgent: bool) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the reply. Raises NotConnected or, once anything was sent, Dropped.

        `timeout_s` is for the reply, and bounds the time to connect; the wait for a free place does not count. What is
        `urgent` needs no place.
        """
        async with nullcontext() if urgent else self._free:
            connection = self._take() or await self._connect(min(timeout_s, _CONNECT_S))
            late = Dropped(f"no reply within {timeout_s:g} s")
            # Not asyncio.timeout, which costs as much as to parse the reply.
            timer = asyncio.get_running_loop().call_later(timeout_s, connection.connection_lost, late)
            try:
                connection.send(request)
                reply = await connection.head(), connection.headers, await connection.body()
            except BaseException:
                # Also when cancelled: the reply may arrive yet, and must not be taken for that of the next request.
                connection.close()
                raise
            finally:
                timer.cancel()
            if connection.reusable:
                connection.idle_since_s = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()
            return reply

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
            if connection.reusable and connection.idle_since_s > oldest_s and connection.tls is self._tls:
                return connection
            connection.close()
        return None

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
