# SPDX-License-Identifier: Apache-2.0
"""The keeper: a process of its own that has the MPS control daemons, so that they outlive the agent.

Rules: who connects to its socket writes what is to be shared, a line of JSON each time, and is written the state, a
line at once and one for each change. The word that came last counts, whoever gave it; that nobody is connected changes
nothing: an agent that begins anew finds its daemons, and clients go on. They end with the keeper, or when nothing is to
be shared any more. What a keeper before this one left running is kept, see `daemons`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

import msgspec

from dovetail.agent.checkpoint import CheckpointError
from dovetail.agent.mps.daemons import MpsDaemons
from dovetail.agent.mps.shares import SOCKET, MpsRequest, MpsState

log = logging.getLogger(__name__)

_LONGEST_LINE = 1 << 20


class Keeper:
    """Answers at `folder`/keeper.sock. Makes no difference between those who connect: the socket is root's alone."""

    def __init__(self, folder: Path, daemons: MpsDaemons) -> None:
        self._path = folder / SOCKET
        self._daemons = daemons
        self._asked = MpsRequest()
        self._failed = ""
        self._working = asyncio.Lock()
        self._listeners: set[asyncio.StreamWriter] = set()

    async def run(self) -> None:
        """Until cancelled; then it ends the daemons. Raises OSError where it cannot listen."""
        self._daemons.changed = self._tell
        with socket.socket(socket.AF_UNIX) as listener:
            _bind(listener, self._path)
            server = await asyncio.start_unix_server(self._serve, sock=listener, limit=_LONGEST_LINE)
            log.info("MPS daemons are kept, as asked for at %s", self._path)
            try:
                await server.serve_forever()
            finally:
                _unlink(self._path)
                for writer in self._listeners:
                    writer.close()
                await self._daemons.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._listeners.add(writer)
        try:
            while line := await reader.readline():
                await self._take(msgspec.json.decode(line, type=MpsRequest))
                self._tell()
        except (ConnectionError, ValueError, msgspec.MsgspecError) as error:
            log.warning("nothing more is taken from this connection: %s", error)
        finally:
            self._listeners.discard(writer)
            writer.close()

    async def _take(self, asked: MpsRequest) -> None:
        async with self._working:
            try:
                await self._daemons.update(asked.shares)
                self._failed = ""
            except CheckpointError as error:
                self._failed = str(error)
                log.error("%s", error)
            self._asked = asked

    @property
    def _state(self) -> MpsState:
        problems = {
            share.resource: {uuid: why for uuid in share.limits if (why := self._problem(share.resource, uuid))}
            for share in self._asked.shares
        }
        return MpsState(self._asked.id, self._asked.turn, problems)

    def _problem(self, resource: str, uuid: str) -> str:
        return self._failed or self._daemons.problem(resource, uuid)

    def _tell(self) -> None:
        line = msgspec.json.encode(self._state) + b"\n"
        for writer in self._listeners:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write(line)


def _bind(listener: socket.socket, path: Path) -> None:
    """Whatever an earlier process left there; for root alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _unlink(path)
    listener.bind(str(path))
    path.chmod(0o600)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
