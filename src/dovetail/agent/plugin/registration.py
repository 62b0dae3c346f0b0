# SPDX-License-Identifier: Apache-2.0
"""Keeps one resource registered with the kubelet.

Rules
- Each registration has a socket with a new name. It is served from before the registration until the kubelet closes the
  connection, the kubelet restarts (a new kubelet.sock) or the socket is removed; then the next registration follows.
  The kubelet refuses a name that was used before until it notices that the old connection is dead; some releases never
  do.
- A failed registration is repeated at a change in the folder, and without one after growing pauses.
- A restarted kubelet admits all pods of its node at once, and fails for good those that request a resource without a
  plugin. So a new kubelet.sock ends every pause.
- If the kubelet already lists the resource, or one of its devices under another name, another plugin offers it. Then
  nothing is registered: the plugin that registers last would get the calls, while the devices of both counted.
  `readback` detects a plugin that registers later.
Source: pkg/kubelet/cm/devicemanager (manager.go, plugin/v1beta1) of Kubernetes 1.37.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from dovetail.agent.apis import deviceplugin_pb2 as wire
from dovetail.agent.apis.serving import SocketError, answers, call
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.plugin.folder import PluginFolder
from dovetail.agent.plugin.offers import ResourceOffer, unreplicated
from dovetail.agent.plugin.server import OPTIONS, PluginServer

log = logging.getLogger(__name__)

KUBELET = "kubelet.sock"
_OURS, _SUFFIX = "dovetail-", ".sock"
_SOON_S, _SPACED_S, _LATEST_S = 0.05, 2.0, 30.0
_HEARD_WITHIN_S = 10.0
_STEADY_S = 10.0
_PATIENCE = 5
"""How often in a row a rival must be seen: the kubelet needs a moment to notice that an earlier agent has ended."""


class _KubeletGone(SocketError):
    """The kubelet does not listen on its socket."""


class _Rival(Exception):
    """Another device plugin offers the same devices; the message names it and the remedy."""


class Registration:
    """Keeps `offer` registered from `start` to `close`. `serve` creates the server of an offer at a path. `registered`
    is called after every registration, `lost` when one has ended. `ours` are the resources that this process has
    registered. `fault` is why the resource is not registered, "" if it is or if that is expected; `hindrance` is the
    matching reason of the condition PluginRegistered."""

    def __init__(
        self,
        folder: PluginFolder,
        offer: ResourceOffer,
        kubelet: PodResources,
        ours: set[str],
        serve: Callable[[Path, ResourceOffer], PluginServer],
        registered: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self.fault = ""
        self.hindrance = "NotRegistered"
        self._folder, self._offer, self._kubelet, self._ours = folder, offer, kubelet, ours
        self._serve, self._registered, self._lost = serve, registered, lost
        self._server: PluginServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._name = self._unseen = ""

    @property
    def offered(self) -> ResourceOffer:
        return self._offer

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def offer(self, offer: ResourceOffer) -> None:
        """Offer this from now on."""
        self._offer = offer
        if self._server is not None:
            self._server.offer(offer)

    def fence(self, parts: frozenset[str]) -> None:
        """Call `PluginServer.fence` for the current registration."""
        if self._server is not None:
            self._server.fence(parts)

    async def close(self) -> None:
        """Send the kubelet an empty list, then remove the socket."""
        if self._server is not None:
            self._server.offer(replace(self._offer, devices={}))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        clock, task = asyncio.get_running_loop().time, asyncio.current_task()
        # A library may swallow a cancellation.
        while task is None or not task.cancelling():
            began_s, turn, kubelet = clock(), self._folder.turn, self._kubelet_now()
            try:
                anew = await self._live()
                # The next registration follows at once, unless the same kubelet drops us again and again.
                turn, self._failures = -1, 0 if anew or clock() - began_s > _STEADY_S else self._failures + 1
            except (SocketError, _Rival, OSError) as error:
                self._failures += 1
                self._complain(error)
            delay_s = _SOON_S * 2.0**self._failures
            # Other plugins change files in the folder all the time: each change is one attempt, after a pause.
            if await self._another_kubelet(kubelet, min(_SPACED_S, delay_s)):
                self._failures = 0
            else:
                await self._folder.changed(turn, min(_LATEST_S, delay_s))

    def _kubelet_now(self) -> tuple[int, int] | None:
        return identity(self._folder.path / KUBELET)

    async def _another_kubelet(self, known: tuple[int, int] | None, timeout_s: float) -> bool:
        """Wait until another kubelet than the known one has opened its socket, and return True; False after the
        time."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + timeout_s
        while (now := self._kubelet_now()) in (known, None) and clock() < until_s:
            turn = self._folder.turn
            if self._kubelet_now() == now:
                await self._folder.changed(turn, until_s - clock())
        return now not in (known, None)

    def _complain(self, error: Exception) -> None:
        if isinstance(error, _Rival) and self._failures < _PATIENCE:
            return
        hindrances = {_KubeletGone: "KubeletGone", _Rival: "OtherPlugin"}
        self.hindrance = hindrances.get(type(error), "NotRegistered")
        fault = f"{self._offer.resource} is not registered with the kubelet: {error}"
        if fault != self.fault:
            log.warning("%s; trying again", fault)
        self.fault = fault

    async def _live(self) -> bool:
        """Serve one registration to its end. True if it ended because the kubelet restarted or ended. Raises
        SocketError, _Rival."""
        kubelet = self._folder.path / KUBELET
        began = identity(kubelet)
        if began is None:
            raise _KubeletGone(f"{kubelet} is not there: the kubelet does not run, or keeps its sockets elsewhere")
        await self._look_for_rivals()
        name = self._name = self._name or self._new_name()
        self._server = server = self._serve(self._folder.path / name, self._offer)
        try:
            await server.open()
            self._name = ""
            if not answers(kubelet):
                raise _KubeletGone(f"no process listens on {kubelet}: the kubelet does not run")
            request = wire.RegisterRequest(
                version="v1beta1", endpoint=name, resource_name=self._offer.resource, options=OPTIONS
            )
            await call(kubelet, "/v1beta1.Registration/Register", request, wire.Empty)
            try:
                async with asyncio.timeout(_HEARD_WITHIN_S):
                    await server.heard.wait()
            except TimeoutError:
                raise SocketError(f"{kubelet} accepted the registration, but does not call ListAndWatch") from None
            self.fault = ""
            self._ours.add(self._offer.resource)
            log.info("%s is registered with the kubelet", self._offer.resource)
            self._registered()
            while True:
                turn = self._folder.turn
                anew = identity(kubelet) != began
                if anew or server.gone or identity(server.path) is None:
                    return anew
                await self._folder.changed(turn)
        finally:
            self._server = None
            if self._offer.resource in self._ours:
                self._ours.discard(self._offer.resource)
                self.hindrance = "NotRegistered"
                self._lost()
            await server.close()

    def _new_name(self) -> str:
        return f"{_OURS}{self._offer.resource.rpartition('/')[2]}-{secrets.token_hex(4)}{_SUFFIX}"

    async def _look_for_rivals(self) -> None:
        try:
            listed = await self._kubelet.allocatable()
        except SocketError as error:
            if str(error) != self._unseen:
                log.warning("whether another plugin offers %s cannot be seen: %s", self._offer.resource, error)
            self._unseen = str(error)
            return
        self._unseen = ""
        uuids = {device.uuid for device in self._offer.devices.values()}
        for resource, ids in listed.items():
            same = {unreplicated(id) for id in ids} & uuids
            if resource not in self._ours and (same or (resource == self._offer.resource and ids)):
                others = ", ".join(sorted(_other_sockets(self._folder.path))) or "none to be seen"
                raise _Rival(
                    f"another device plugin offers {min(same or ids)} as {resource} (sockets of others in "
                    f"{self._folder.path}: {others}): remove it from this node, or turn off ours"
                )


def identity(socket: Path) -> tuple[int, int] | None:
    """The inode and time of a socket, which differ for the next socket of the name; None without a socket."""
    try:
        found = socket.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None


def _other_sockets(folder: Path) -> list[str]:
    found = folder.glob(f"*{_SUFFIX}")
    return [one.name for one in found if one.name != KUBELET and not one.name.startswith(_OURS)]


def clear_stale(folder: Path) -> None:
    """Remove the sockets that killed agents left."""
    for socket in folder.glob(f"{_OURS}*{_SUFFIX}"):
        try:
            if identity(socket) is not None and not answers(socket):
                socket.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s, which an earlier agent left, cannot be removed: %s", socket, error.strerror)
