# SPDX-License-Identifier: Apache-2.0
"""The keeper: a separate process that runs the MPS control daemons, so that they outlive the agent.

Rules: a client of its socket writes requests, each a line of JSON, and receives the state as a line at once and at
every change. The last request of any client counts. Daemons go on without a client: a restarted agent finds its
daemons, and containers are not disturbed. Daemons end with the keeper, or when a request has no shares. Daemons of an
earlier keeper are kept, see `daemons`.
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
from dovetail.core.json_text import decode_json

log = logging.getLogger(__name__)

_LONGEST_LINE = 1 << 20


class Keeper:
    """Answers at `folder`/keeper.sock. All clients are equal: only root can connect."""

    def __init__(self, folder: Path, daemons: MpsDaemons) -> None:
        self._path = folder / SOCKET
        self._daemons = daemons
        self._asked = MpsRequest()
        self._failed = ""
        self._working = asyncio.Lock()
        self._listeners: set[asyncio.StreamWriter] = set()

    async def run(self) -> None:
        """Run until cancelled; then end the daemons. Raises OSError if it cannot listen."""
        self._daemons.changed = self._notify
        with socket.socket(socket.AF_UNIX) as listener:
            _bind(listener, self._path)
            server = await asyncio.start_unix_server(self._serve, sock=listener, limit=_LONGEST_LINE)
            log.info("MPS daemons are kept, as requested at %s", self._path)
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
                await self._take(decode_json(line, MpsRequest))
                self._notify()
        except (ConnectionError, ValueError) as error:
            log.warning("the connection of a client has ended: %s", error)
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

    def _notify(self) -> None:
        line = msgspec.json.encode(self._state) + b"\n"
        for writer in self._listeners:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write(line)


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind the socket in place of one of an earlier process, with access for root only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _unlink(path)
    listener.bind(str(path))
    path.chmod(0o600)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
