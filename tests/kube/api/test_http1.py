# SPDX-License-Identifier: Apache-2.0
"""The HTTP/1.1 connection: replies however they are cut, and connections however they end."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.kube.api import http1
from dovetail.kube.api.http1 import Connection, ConnectionPool, Dropped, NotConnected
from tests.kube.api.fake_server import read_request, serve_raw

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Some: thing\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n1;ext=1\r\nl\r\nA\r\no, world\r\n\r\n0\r\nTrailer: yes\r\n\r\n"
)
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN


class Transport(asyncio.Transport):
    def write(self, data: bytes) -> None:
        self.written = data

    def abort(self) -> None:
        self.aborted = True


def arrive(connection: Connection, data: bytes) -> None:
    """As a transport does it."""
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size], data = data[:size], data[size:]
        connection.buffer_updated(size)


async def receive(pieces: list[bytes], *, close: bool = False) -> tuple[Connection, int, bytes]:
    connection = Connection(None)
    connection.connection_made(Transport())
    connection.send(GET)
    for piece in pieces:
        arrive(connection, piece)
    if close:
        connection.connection_lost(None)
    return connection, await connection.head(), await connection.body()


@given(
    st.sampled_from([(PLAIN, b"hello"), (CHUNKED, b"hello, world\r\n"), (INTERIM, b"hello")]),
    st.sets(st.integers(1, len(CHUNKED) - 1)),
)
def test_a_reply_is_the_same_however_it_is_cut(reply: tuple[bytes, bytes], cuts: set[int]) -> None:
    wire, expected = reply
    edges = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    pieces = [wire[a:b] for a, b in pairwise(edges)]
    connection, status, body = asyncio.run(receive(pieces))
    assert (status, body, connection.reusable) == (200, expected, True)


@pytest.mark.parametrize(
    ("wire", "status", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 429 \r\ncontent-length: 2\r\n\r\nno", 429, b"no"),
    ],
)
async def test_bodies_that_end_by_length(wire: bytes, status: int, body: bytes) -> None:
    connection, *seen = await receive([wire])
    assert seen == [status, body]
    assert connection.reusable


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"]
)
async def test_a_body_without_a_length_ends_when_the_connection_does(head: bytes) -> None:
    connection, _, body = await receive([head, b"all ", b"of it"], close=True)
    assert body == b"all of it"
    assert not connection.reusable


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        PLAIN + b"and more",
        CHUNKED + b"and more",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
async def test_what_is_not_http_drops_the_connection(wire: bytes) -> None:
    connection = Connection(None)
    transport = Transport()
    connection.connection_made(transport)
    connection.send(GET)
    arrive(connection, wire)
    with pytest.raises(Dropped, match=r"not an HTTP/1\.1 reply"):
        await connection.head()
        await connection.body()
    assert transport.aborted


@pytest.mark.parametrize("wire", [PLAIN[:-1], CHUNKED[:-1], PLAIN[:20]])
async def test_a_reply_that_stops_half_way_is_dropped(wire: bytes) -> None:
    with pytest.raises(Dropped):
        await receive([wire], close=True)


async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the number of the request on this connection."""
    for number in range(1, 10):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number)


async def test_connections_are_used_again_and_not_more_than_the_limit() -> None:
    async with serve_raw(counted) as url:
        pool = ConnectionPool(url, None, "", 2)
        replies = await asyncio.gather(*(pool.exchange(GET, 5.0, urgent=False) for _ in range(6)))
        assert sorted(body for _, _, body in replies) == [b"1", b"1", b"2", b"2", b"3", b"3"]
        pool.close()


async def test_a_connection_closed_while_idle_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = asyncio.Event()
    lose = Connection.connection_lost

    def connection_lost(self: Connection, exc: Exception | None) -> None:
        lose(self, exc)
        closed.set()

    monkeypatch.setattr(Connection, "connection_lost", connection_lost)

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(PLAIN)
        writer.close()

    async with serve_raw(once) as url:
        pool = ConnectionPool(url, None, "", 1)
        for _ in range(3):
            assert (await pool.exchange(GET, 5.0, urgent=False))[2] == b"hello"
            await closed.wait()
            closed.clear()


async def test_a_connection_idle_for_long_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "_IDLE_S", 0.0)
    async with serve_raw(counted) as url:
        pool = ConnectionPool(url, None, "", 1)
        assert [(await pool.exchange(GET, 5.0, urgent=False))[2] for _ in range(2)] == [b"1", b"1"]
        pool.close()


async def test_a_late_reply_drops_its_connection_and_not_the_next_one() -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()

    async with serve_raw(late, counted) as url:
        pool = ConnectionPool(url, None, "", 1)
        with pytest.raises(Dropped, match=r"no reply within 0\.05 s"):
            await pool.exchange(GET, 0.05, urgent=False)
        assert (await pool.exchange(GET, 5.0, urgent=False))[2] == b"1"
        pool.close()


async def test_after_a_late_reply_no_connection_is_trusted_that_was_idle() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(PLAIN)
        await reader.read()

    async with serve_raw(once, once, counted) as url:
        pool = ConnectionPool(url, None, "", 2)
        await asyncio.gather(*(pool.exchange(GET, 5.0, urgent=False) for _ in range(2)))
        with pytest.raises(Dropped, match="no reply within"):
            await pool.exchange(GET, 0.05, urgent=False)
        assert (await pool.exchange(GET, 5.0, urgent=False))[2] == b"1"
        pool.close()


async def test_the_reply_to_a_cancelled_request_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = asyncio.Event()

    async def body(self: Connection, most_bytes: int) -> bytes:
        arrived.set()
        return await asyncio.Future()

    async with serve_raw(counted) as url:
        pool = ConnectionPool(url, None, "", 1)
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "body", body)
            task = asyncio.create_task(pool.exchange(GET, 5.0, urgent=False))
            await arrived.wait()
            task.cancel()
            await asyncio.wait([task])
        assert (await pool.exchange(GET, 5.0, urgent=False))[2] == b"1"
        pool.close()


async def test_a_closed_port_is_not_connected() -> None:
    with pytest.raises(NotConnected):
        await ConnectionPool("http://127.0.0.1:1", None, "", 1).exchange(GET, 5.0, urgent=False)
