# SPDX-License-Identifier: Apache-2.0
"""The agent's side of MPS: it asks the keeper for daemons, and says what containers get that share.

Rules: nothing is given out before the keeper has said that the daemon runs with these limits. A keeper that is away is
looked for every second, and meanwhile nothing new is given out: who runs is not touched. Nobody is asked where nothing
is shared and no keeper is there. The daemon enforces limits from before its first client on; the container's variables
say them, and can only lower them.
Source: NVIDIA, Multi-Process Service, and k8s-device-plugin cmd/mps-control-daemon, which does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dovetail.agent.cdi import Edits, Mount
from dovetail.agent.config import Config
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.machine.host import Host
from dovetail.agent.mps.shares import SOCKET, MpsRequest, MpsState, Refused, by_resource, shares_of

log = logging.getLogger(__name__)

_AGAIN_S = 1.0
_ANSWER_S = 10.0
_LONGEST_LINE = 1 << 20
_MOUNTED = ("rw", "nosuid", "nodev", "rbind", "rprivate")


class MpsError(Exception):
    """MPS cannot be used; the text says why and what to do."""


class Mps:
    """`folder`: where the daemons' folders are, at the same path here, on the host and in containers. `shm`: what on
    the host is the daemons' /dev/shm, through which they talk to clients; containers get it as theirs. `changed` is
    called when replicas can be given out, or no longer; never by `update`."""

    def __init__(self, folder: Path, *, shm: Path, changed: Callable[[], None] = lambda: None) -> None:
        self._folder, self._shm, self._changed = folder, shm, changed
        self._path = folder / SOCKET
        self._wanted = MpsRequest()
        self._refused: Refused = {}
        self._state = MpsState()
        self._away = ""
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._updating = False

    async def update(self, host: Host, config: Config) -> None:
        """Have the daemons that the configuration wants for these GPUs, and no others. What the keeper says of that is
        known when this returns, where it answers."""
        shares, self._refused = shares_of(host, config)
        for (resource, _), reason in self._refused.items():
            log.error("no MPS for %s: %s", resource, reason)
        if self._task is None:
            if not shares and not self._path.exists():
                return
            self._task = asyncio.create_task(self._follow())
        same = self._wanted.id if shares == self._wanted.shares else ""
        self._wanted = MpsRequest(same or secrets.token_hex(8), self._wanted.turn + 1, shares)
        self._updating = True
        try:
            self._ask()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    while not (self._away or self._heard):
                        self._news.clear()
                        await self._news.wait()
        finally:
            self._updating = False

    @property
    def _heard(self) -> bool:
        return (self._state.id, self._state.turn) == (self._wanted.id, self._wanted.turn)

    async def close(self) -> None:
        """The daemons go on: the next agent finds them."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def ill(self) -> tuple[Unhealthy, ...]:
        """The GPUs whose replicas cannot be given out now, since MPS does not work for them."""
        found = {uuid: reason for (_, uuid), reason in self._refused.items()}
        found |= {uuid: self.problem(share.resource, uuid) for share in self._wanted.shares for uuid in share.limits}
        return tuple(Unhealthy(uuid, "mps", problem, 0) for uuid, problem in found.items() if problem)

    def problem(self, resource: str, uuid: str) -> str:
        """Why replicas of the GPU cannot be given out as this resource now; "" where they can."""
        if reason := self._refused.get((resource, uuid)):
            return reason
        share = by_resource(self._wanted.shares).get(resource)
        if share is None or uuid not in share.limits:
            return f"{uuid} is not shared by MPS as {resource}"
        if self._away:
            return self._away
        if self._state.id != self._wanted.id:
            return f"the MPS daemon of {resource} has not been asked for yet"
        return self._state.problems.get(resource, {}).get(uuid, "")

    def client(self, resource: str, uuids: Sequence[str]) -> Edits:
        """What a container gets that has replicas of these GPUs. Raises MpsError where there is no daemon for it."""
        for uuid in uuids:
            if problem := self.problem(resource, uuid):
                raise MpsError(problem)
        share = by_resource(self._wanted.shares)[resource]
        pipe = str(self._folder / resource / "pipe")
        given = [limit for uuid, limit in share.limits.items() if uuid in uuids]
        return Edits(
            env=(
                ("CUDA_MPS_PIPE_DIRECTORY", pipe),
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(share.percentage)),
                # Limits are by the container's own numbers, which are those of the bus only if told so.
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ",".join(f"{i}={limit}M" for i, limit in enumerate(given))),
            ),
            mounts=(Mount(pipe, pipe, _MOUNTED), Mount(str(self._shm), "/dev/shm", _MOUNTED)),
        )

    def _ask(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(msgspec.json.encode(self._wanted) + b"\n")

    async def _follow(self) -> None:
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._path, limit=_LONGEST_LINE)
                self._ask()
                while line := await reader.readline():
                    self._hear("", msgspec.json.decode(line, type=MpsState))
                why = "it has hung up"
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                why = str(error)
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
            self._hear(f"nothing keeps MPS daemons at {self._path} ({why}): add the function mps", MpsState())
            await asyncio.sleep(_AGAIN_S)

    def _hear(self, away: str, state: MpsState) -> None:
        if (away, state) == (self._away, self._state):
            return
        if away and self._wanted.shares and away != self._away:
            log.error("%s", away)
        self._away, self._state = away, state
        self._news.set()
        if not self._updating:
            self._changed()
