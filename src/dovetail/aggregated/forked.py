# SPDX-License-Identifier: Apache-2.0
"""A process forked from this one to work out answers: what this one has in memory is there at no cost, and what it
works out ends with it.

Rules
- It gets one question after the other over a socket, and nothing else: it closes all other files at its start.
- A question that takes too long ends the process, by the one that asked.
- It yields: its priority is lower. With `most_bytes` its memory and its CPU time are bounded besides.
- A process that forks has one thread.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from dovetail.aggregated.priority import yield_by
from dovetail.aggregated.question import Reply

_CPU_BOUND_S = 60
_LENGTH_BYTES = 4
_LAST_STANDARD = 2
READY = b"+"
Answer = Callable[[bytes], Reply]


class ProcessEnded(Exception):
    """The process ended before it answered."""


class TooSlow(Exception):
    """The answer did not come in time; the process was ended."""


class Forked:
    """The process. Ask it after `prepared`."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pid = pid
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()
        self.ended = False

    @classmethod
    async def start(cls, begin: Callable[[], Answer], nice: int, most_bytes: int | None = None) -> Self:
        """A new process, which gets what answers from `begin`. It may take `most_bytes` of memory besides what it is
        forked with. Raises OSError."""
        mine, theirs = socket.socketpair()
        pid = os.fork()
        if not pid:
            _serve(theirs, begin, nice, most_bytes)
        theirs.close()
        reader, writer = await asyncio.open_connection(sock=mine)
        return cls(pid, reader, writer)

    async def prepared(self, within_s: float) -> None:
        """Wait until it can be asked. Raises ProcessEnded."""
        try:
            async with asyncio.timeout(within_s):
                await self._reader.readexactly(len(READY))
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            self.end()
            raise ProcessEnded(f"{type(error).__name__} while it was prepared") from error

    async def reply(self, payload: bytes, within_s: float) -> Reply:
        """The reply, within so many seconds from its turn on. Raises ProcessEnded, TooSlow."""
        async with self._turn:
            if self.ended:
                raise ProcessEnded("the process has ended")
            try:
                async with asyncio.timeout(within_s):
                    self._writer.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
                    status = int.from_bytes(await self._reader.readexactly(2), "big")
                    length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
                    return Reply(status, await self._reader.readexactly(length))
            except TimeoutError as error:
                self.end()
                raise TooSlow(f"it takes longer than {within_s:g} s") from error
            except (OSError, asyncio.IncompleteReadError) as error:
                self.end()
                raise ProcessEnded("the process ended before it answered") from error
            except asyncio.CancelledError:
                # The reply of this question must not become that of the next.
                self.end()
                raise

    def end(self) -> None:
        """Kill the process, if it runs."""
        if not self.ended:
            self.ended = True
            self._writer.close()
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


def _serve(channel: socket.socket, begin: Callable[[], Answer], nice: int, most_bytes: int | None) -> None:
    """All that the new process does. It never returns into the loop of the process that it was forked from."""
    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        kept = channel.fileno()
        for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if file > _LAST_STANDARD and file != kept:
                with suppress(OSError):  # the one of the listing itself
                    os.close(file)
        yield_by(nice)
        if most_bytes is not None:
            _bound(most_bytes)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        channel.setblocking(True)
        answer = begin()
        channel.sendall(READY)
        while question := _received(channel):
            reply = answer(question)
            length = len(reply.body).to_bytes(_LENGTH_BYTES, "big")
            channel.sendall(reply.status.to_bytes(2, "big") + length + reply.body)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _bound(most_bytes: int) -> None:
    """Bound the memory and the CPU time of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + most_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_BOUND_S, _CPU_BOUND_S))


def _received(channel: socket.socket) -> bytes:
    """One question; nothing at the end."""
    head = _exactly(channel, _LENGTH_BYTES)
    return _exactly(channel, int.from_bytes(head, "big")) if head else b""


def _exactly(channel: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = channel.recv(count - len(found))
        if not more:
            return b""
        found += more
    return found
