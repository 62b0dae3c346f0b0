# SPDX-License-Identifier: Apache-2.0
"""Replies that are damaged, cut anywhere, or followed by what nobody asked for: a clear error and a closed connection,
never a wrong answer, never a loop. Held side by side with h11, a parser that shares nothing with ours."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.kube.api import http1
from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.decoding import Reader
from dovetail.kube.api.errors import ApiError
from dovetail.kube.api.http1 import Connection, ConnectionPool, Dropped
from dovetail.kube.api.resources import PODS
from dovetail.kube.api.watch import watch
from tests.kube.api.fake_server import Pod, read_request, serve_raw
from tests.kube.api.test_http1 import CHUNKED, GET, INTERIM, PLAIN, Transport, arrive
from tests.patience import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = [
    PLAIN,
    CHUNKED,
    INTERIM,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 429 \r\nRetry-After: 1\r\ncontent-length: 2\r\n\r\nno",
    OK + b"Connection: close\r\n\r\nall of it",
    OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nall",
    b"HTTP/1.0 200 OK\r\n\r\nall of it",
]
FRAMING = [b"\r\n", b"\n", b"\r", b" ", b"\t", b"-", b"+", b"_", b"0x", b"0", b";", b":", b",", b"\x00", b"\xff"]
FIELDS = [b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"HTTP/1.1 200 OK\r\n"]

Outcome = tuple[int, bytes] | None
"""Status and body; None where there was no complete reply."""


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A reply in which up to three places were cut out, doubled or replaced."""
    wire = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(wire)))
        end = draw(st.integers(start, min(len(wire), start + 8)))
        middle = draw(st.one_of(st.sampled_from([*FRAMING, *FIELDS, b"", wire[start:end] * 2]), st.binary(max_size=4)))
        wire = wire[:start] + middle + wire[end:]
    return wire


def pieces(wire: bytes, cuts: set[int]) -> list[bytes]:
    return [wire[a:b] for a, b in pairwise([0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)])]


async def ours(parts: list[bytes]) -> tuple[Outcome, bool]:
    """What becomes of these bytes and the end of the connection, and whether it can be used again before that."""
    connection, transport = Connection(None), Transport()
    connection.connection_made(transport)
    connection.send(GET)
    for part in parts:
        arrive(connection, part)
    if connection.complete:
        outcome = await connection.head(), await connection.body()
        return outcome, connection.reusable
    connection.connection_lost(None)
    try:
        return (await connection.head(), await connection.body()), False
    except Dropped:
        return None, False


REASON = re.compile(rb"\A(HTTP/1\.[01] [0-9]{3} )[^\r\n]*")


def theirs(wire: bytes) -> tuple[Outcome, bool]:
    """The same by h11."""
    peer = h11.Connection(h11.CLIENT)
    peer.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    peer.send(h11.EndOfMessage())
    # Empty lines before and after a reply, and the words beside a status, mean nothing to us.
    peer.receive_data(REASON.sub(rb"\1OK", wire.lstrip(b"\r\n")))
    status, body, again = 0, b"", False
    try:
        while True:
            event = peer.next_event()
            if event is h11.NEED_DATA:
                again = False
                peer.receive_data(b"")
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                again = peer.our_state is h11.DONE and peer.their_state is h11.DONE
                rest = peer.trailing_data[0]
                return (None, False) if rest.strip(b"\r\n") else ((status, body), again)
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return None, False
    except h11.RemoteProtocolError:
        return None, False


@pytest.mark.slow
@settings(max_examples=400)
@given(damaged(), st.sets(st.integers(1, 200)))
@example(OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", set())
@example(OK + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", set())
@example(OK + b"Transfer-Encoding: chunked\r\n\r\n1_0\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n", set())
@example(OK + b"Transfer-Encoding: chunked\r\n\r\n 5 \r\nhello\r\n0\r\n\r\n", set())
@example(b"HTTP/1.1 200 \x00OK\r\nContent-Length: 5\r\n\r\nhello", set())
@example(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n", set())
def test_what_is_taken_is_what_another_parser_takes(wire: bytes, cuts: set[int]) -> None:
    """We may refuse more than h11 does (bare line feeds, folded headers); what we take, it takes for the same."""

    async def both() -> tuple[tuple[Outcome, bool], tuple[Outcome, bool]]:
        return await ours(pieces(wire, cuts)), await ours([wire])

    (outcome, again), at_once = asyncio.run(both())
    assert outcome == at_once[0], "it depends on how the bytes are cut"
    if outcome is not None:
        expected, reusable = theirs(wire)
        assert outcome == expected
        assert reusable or not again


@pytest.mark.parametrize("wire", WHOLE)
def test_what_is_whole_is_taken_by_both(wire: bytes) -> None:
    assert asyncio.run(ours([wire])) == theirs(wire)
    assert theirs(wire)[0] is not None


@pytest.mark.parametrize(
    "chunk",
    [
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5\nhello\r\n",
        b"5\r\nhello\n",
        b"5\r\nhelloXX",
        b"\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
    ],
)
async def test_a_chunk_that_is_none_is_a_clear_error_and_closes(chunk: bytes) -> None:
    connection, transport = Connection(None), Transport()
    connection.connection_made(transport)
    connection.send(GET)
    arrive(connection, OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n")
    with pytest.raises(Dropped, match=r"^not an HTTP/1\.1 reply: \w"):
        await connection.body()
    assert transport.aborted


@pytest.mark.parametrize(
    "wire",
    [
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        OK + b"Transfer-Encoding: gzip\r\n\r\nabc",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_body_of_two_lengths_or_of_another_protocol_is_refused(wire: bytes) -> None:
    assert await ours([wire]) == (None, False)


@pytest.mark.parametrize(
    "endless",
    [
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n5;", b"x=1;" * 250],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"Trailer: yes\r\n" * 50],
    ],
)
async def test_what_goes_on_without_a_body_has_a_bound(endless: list[bytes]) -> None:
    connection = Connection(None)
    connection.connection_made(Transport())
    connection.send(GET)
    arrive(connection, endless[0])
    for _ in range(4_000):
        arrive(connection, endless[-1])
    with pytest.raises(Dropped, match="of it are not the body"):
        await connection.body() if connection.status else await connection.head()


# The client as a whole, over real sockets.

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def tampering(parts: list[bytes]) -> Script:
    """Answers the first request with these, each in a segment of its own, and all others with their number."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        await sound(reader, writer)

    return play


async def sound(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = await read_request(reader)
        name = head.split(b" ", 2)[1].rpartition(b"/")[2]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(damaged(), st.sets(st.integers(1, 200), max_size=3))
@example(PLAIN + PLAIN, {len(PLAIN)})
def test_the_next_request_gets_its_own_answer(wire: bytes, cuts: set[int]) -> None:
    async def check() -> None:
        async with serve_raw(tampering(pieces(wire, cuts)), sound) as url, Client(ClusterConfig(url)) as client:
            async with asyncio.timeout(PATIENCE_S):
                with contextlib.suppress(ApiError):
                    await client.fetch("GET", "/first", attempts=Attempts(0.2, retries=0))
                await asyncio.sleep(0.002)
                assert await client.fetch("GET", "/second", attempts=Attempts(PATIENCE_S, retries=0)) == b"second"

    asyncio.run(check())


async def test_a_second_reply_in_the_kernel_is_not_taken_for_that_of_the_next_request() -> None:
    """The event loop has not seen it yet when the next request begins."""
    writers: list[asyncio.StreamWriter] = []

    async def numbered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await sound(reader, writer)

    async with serve_raw(numbered) as url:
        pool = ConnectionPool(url, None, "", 1)
        assert (await pool.exchange(GET.replace(b"/ ", b"/first "), 5.0, urgent=False))[2] == b"first"
        writers[0].write(PLAIN)
        assert (await pool.exchange(GET.replace(b"/ ", b"/mine "), 5.0, urgent=False))[2] == b"mine"
        assert len(writers) == 2
        pool.close()


EVENTS = b"".join(
    b'{"type":"ADDED","object":{"metadata":{"name":"p%d","namespace":"ns","resourceVersion":"%d"}}}\n' % (n, n)
    for n in range(1, 4)
)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(EVENTS) - 1), st.integers(0, 6), st.sampled_from([*FRAMING, b"{", b'"', b"[" * 3_000]))
@example(len(EVENTS) - 1, 0, b"\xff")
@example(EVENTS.index(b"p2"), 0, b"\xff")
@example(247, 0, b"\xff")
def test_a_damaged_watch_ends_and_reports_it(start: int, length: int, instead: bytes) -> None:
    """It ends by itself or with an error of the client, within the silence that is allowed, and never otherwise."""
    body = EVENTS[:start] + instead + EVENTS[start + length :]

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body))
        await reader.read()

    async def check() -> None:
        async with serve_raw(play) as url, Client(ClusterConfig(url)) as client, asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ApiError):
                async for _ in watch(client, Reader(PODS, Pod), "1", heartbeat_s=0.05):
                    pass

    asyncio.run(check())


@settings(max_examples=40, deadline=None)
@given(damaged(), st.sets(st.integers(1, 200), max_size=3))
@pytest.mark.slow
def test_a_damaged_watch_of_another_kind(wire: bytes, cuts: set[int]) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for part in pieces(wire, cuts):
            writer.write(part)
            await writer.drain()
        await reader.read()

    async def check() -> None:
        async with serve_raw(play) as url, Client(ClusterConfig(url)) as client, asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ApiError):
                async with client.stream("/x", {}, timeout_s=0.1) as connection:
                    connection.watch(0.05)
                    while await connection.read():
                        pass

    asyncio.run(check())


async def test_a_drip_of_chunk_extensions_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n5;")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serve_raw(drip) as url, Client(ClusterConfig(url)) as client:
        with pytest.raises(ApiError, match="nothing came for"):
            async with asyncio.timeout(PATIENCE_S), client.stream("/x", {}) as connection:
                connection.watch(0.1)
                await connection.read()


def test_the_bound_is_far_above_what_servers_send() -> None:
    assert http1._MAX_BARREN_BYTES >= 64 << 10


async def test_what_is_left_unread_is_not_taken_for_the_next_reply() -> None:
    async with serve_raw(sound) as url, Client(ClusterConfig(url)) as client:
        async with client.stream("/first", {}) as connection:
            await asyncio.sleep(0.05)
            assert connection.complete
        assert await client.fetch("GET", "/second") == b"second"
