# SPDX-License-Identifier: Apache-2.0
"""The agent's side of MPS: requests daemons from the keeper, and builds the edits of containers that share.

Rules: no replica is allocated before the keeper has reported that the daemon runs with these limits. If the keeper is
away, the agent connects again every second, and allocates no replicas meanwhile; running containers are not touched.
Without shares and without a keeper nothing is requested. The daemon enforces the limits from its first client on; the
container's variables repeat them, and can only lower them.
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
from dovetail.core.json_text import decode_json

log = logging.getLogger(__name__)

_AGAIN_S = 1.0
_ANSWER_S = 10.0
_LONGEST_LINE = 1 << 20
_MOUNTED = ("rw", "nosuid", "nodev", "rbind", "rprivate")


class MpsError(Exception):
    """MPS cannot be used; the message has the reason and the remedy."""


class Mps:
    """`folder` has the daemons' folders, at the same path here, on the host and in containers. `shm` is the host's
    folder that is the daemons' /dev/shm, through which they communicate with clients; containers get it as their
    /dev/shm. `changed` is called when replicas can be allocated, or no longer; never by `update`."""

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
        """Request the daemons of the configuration for these GPUs, and no others. Returns when the keeper has answered,
        or is away."""
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
                    while not (self._away or self._answered):
                        self._news.clear()
                        await self._news.wait()
        finally:
            self._updating = False

    @property
    def _answered(self) -> bool:
        return (self._state.id, self._state.turn) == (self._wanted.id, self._wanted.turn)

    async def close(self) -> None:
        """Disconnect. The daemons go on: the next agent finds them."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def unhealthy(self) -> tuple[Unhealthy, ...]:
        """The GPUs whose replicas cannot be allocated now, since MPS does not work for them."""
        found = {uuid: reason for (_, uuid), reason in self._refused.items()}
        found |= {uuid: self.problem(share.resource, uuid) for share in self._wanted.shares for uuid in share.limits}
        return tuple(Unhealthy(uuid, "mps", problem, 0) for uuid, problem in found.items() if problem)

    def problem(self, resource: str, uuid: str) -> str:
        """Why replicas of the GPU cannot be allocated as this resource now, "" if they can."""
        if reason := self._refused.get((resource, uuid)):
            return reason
        share = by_resource(self._wanted.shares).get(resource)
        if share is None or uuid not in share.limits:
            return f"{uuid} is not shared by MPS as {resource}"
        if self._away:
            return self._away
        if self._state.id != self._wanted.id:
            return f"the MPS daemon of {resource} has not been requested yet"
        return self._state.problems.get(resource, {}).get(uuid, "")

    def client(self, resource: str, uuids: Sequence[str]) -> Edits:
        """The edits for a container with replicas of these GPUs. Raises MpsError if there is no daemon for it."""
        for uuid in uuids:
            if problem := self.problem(resource, uuid):
                raise MpsError(problem)
        share = by_resource(self._wanted.shares)[resource]
        pipe = str(self._folder / resource / "pipe")
        limits = [limit for uuid, limit in share.limits.items() if uuid in uuids]
        return Edits(
            env=(
                ("CUDA_MPS_PIPE_DIRECTORY", pipe),
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(share.percentage)),
                # Limits are by the container's device numbers, which follow the bus only with this variable.
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ",".join(f"{i}={limit}M" for i, limit in enumerate(limits))),
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
                    self._receive("", decode_json(line, MpsState))
                why = "it has closed the connection"
            except (OSError, ValueError) as error:
                why = str(error)
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
            self._receive(f"nothing keeps MPS daemons at {self._path} ({why}): add the function mps", MpsState())
            await asyncio.sleep(_AGAIN_S)

    def _receive(self, away: str, state: MpsState) -> None:
        if (away, state) == (self._away, self._state):
            return
        if away and self._wanted.shares and away != self._away:
            log.error("%s", away)
        self._away, self._state = away, state
        self._news.set()
        if not self._updating:
            self._changed()
