# SPDX-License-Identifier: Apache-2.0
"""A process that answers for the state at one moment: forked from the one that follows the scheduler, so that the state
is there at no cost, and what it works out ends with it.

Rules
- It gets one question after the other over a socket, and nothing else: it closes all other files at its start.
- A question that takes too long ends the process, by the one that asked.
- It yields to the scheduler: its priority is lower.
- One for a single question, `alone`, has bounds on its memory and its CPU time besides, and an even lower priority.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from dovetail.viewserver.answers import Question, Reply, ViewAnswers
from dovetail.viewserver.following import Following
from dovetail.viewserver.priority import GENERATION, WHAT_IF, yield_by

MOST_ALONE_BYTES = 1 << 30
"""The memory that a process for one question may take besides what it is forked with."""
_CPU_ALONE_S = 60
_LENGTH_BYTES = 4
_QUESTION = msgspec.json.Decoder(Question)
_LAST_STANDARD = 2
READY = b"+"


class GenerationEnded(Exception):
    """The process ended before it answered."""


class TooSlow(Exception):
    """The answer did not come in time; the process was ended."""


class Generation:
    """The process with the state after so many `frames` of the stream. Ask it after `prepared`."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: int) -> None:
        self.frames = frames
        self.replies: dict[Question, asyncio.Task[Reply]] = {}
        """The answers, so that a question is answered once."""
        self.asked: set[Question] = set()
        """What users have asked of it."""
        self._pid = pid
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()
        self.ended = False

    @classmethod
    async def fork(cls, following: Following, ours: str, *, alone: bool = False) -> Self:
        """A new process for the state as it is now. Raises OSError."""
        mine, theirs = socket.socketpair()
        frames, pid = following.frames, os.fork()
        if not pid:
            _serve(theirs, following, ours, alone)
        theirs.close()
        reader, writer = await asyncio.open_connection(sock=mine)
        return cls(pid, reader, writer, frames)

    async def prepared(self, within_s: float) -> None:
        """Wait until most is worked out. Raises GenerationEnded."""
        try:
            async with asyncio.timeout(within_s):
                await self._reader.readexactly(len(READY))
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            self.end()
            raise GenerationEnded(f"{type(error).__name__} while it was prepared") from error

    async def ask(self, question: Question, within_s: float) -> Reply:
        """The reply, within so many seconds from its turn on. Raises GenerationEnded, TooSlow."""
        async with self._turn:
            if self.ended:
                raise GenerationEnded("the process has ended")
            try:
                async with asyncio.timeout(within_s):
                    payload = msgspec.json.encode(question)
                    self._writer.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
                    status = int.from_bytes(await self._reader.readexactly(2), "big")
                    length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
                    return Reply(status, await self._reader.readexactly(length))
            except TimeoutError as error:
                self.end()
                raise TooSlow(f"it takes longer than {within_s:g} s") from error
            except (OSError, asyncio.IncompleteReadError) as error:
                self.end()
                raise GenerationEnded("the process ended before it answered") from error
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


def _serve(channel: socket.socket, following: Following, ours: str, alone: bool) -> None:
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
        yield_by(WHAT_IF if alone else GENERATION)
        if alone:
            _bound()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        channel.setblocking(True)
        state = following.state
        answers = ViewAnswers(state, max(state.now_ms, time.time_ns() // 1_000_000), ours, following.objects)
        if not alone:
            answers.prepare()
        channel.sendall(READY)
        while question := _received(channel):
            reply = answers.answer(_QUESTION.decode(question))
            length = len(reply.body).to_bytes(_LENGTH_BYTES, "big")
            channel.sendall(reply.status.to_bytes(2, "big") + length + reply.body)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _bound() -> None:
    """Bound the memory and the CPU time of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most_bytes = pages * resource.getpagesize() + MOST_ALONE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_ALONE_S, _CPU_ALONE_S))


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
