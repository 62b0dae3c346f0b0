# SPDX-License-Identifier: Apache-2.0
"""Whether the kubelet has admitted the pods of its node again, after a restart of the kubelet or of this agent.

Why: a restarted kubelet admits every pod of its node again, in the order of their creation. Only then it forgets the
pods that have ended. A pod that is bound to the node before that finds devices taken by pods that have ended, and fails
for good. Running pods must find the NUMA nodes of their devices, so no fence is up until the kubelet has settled.

Rules
- A new kubelet.sock means that the kubelet has restarted. An agent that starts cannot see that, and assumes a restart.
- The kubelet has settled one second after PodResources shows all running pods that have our devices, and at least one
  running pod: it admits them one by one, and forgets the ended pods after the last. On a node without running pods
  there is nothing to see; its kubelet gets the time that it needs to list its pods.
- Ten seconds after the plugin was registered the wait ends: pods come without fences until the kubelet has settled.
Source: pkg/kubelet of Kubernetes 1.37: kubelet.go (syncLoopIteration: HandlePodAdditions, then AddSource), cm/
devicemanager/manager.go (UpdateAllocatedDevices), config/apiserver.go (WaitForAPIServerSyncPeriod, a second).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from dovetail.agent.apis.serving import SocketError
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.podresources import PodResources

log = logging.getLogger(__name__)

_PATIENCE_S = 10.0
_SETTLED_AFTER_S, _UNSEEN_AFTER_S = 1.0, 2.0
_LOOK_EVERY_S, _LOOK_LATE_S = 0.2, 5.0

BEGINS = "KubeletBegins", "the kubelet or this agent has restarted: the kubelet admits the pods of the node again"
"""A reason of the condition PluginRegistered, and its message."""


class Registering(Protocol):
    """The device plugins of the node. `registering` is called before a registration; its argument is whether the
    kubelet has restarted. `has_registered` is called after a registration."""

    registering: Callable[[bool], None]
    has_registered: Callable[[], None]

    @property
    def resources(self) -> Collection[str]: ...


class Settling:
    """`settled`: the kubelet has admitted its pods. `awaited`: it has not, and the plugin was registered less than ten
    seconds ago. `turn` counts registrations."""

    def __init__(self, chosen: Allocations, kubelet: PodResources, plugins: Registering) -> None:
        self.settled = self.awaited = False
        self.turn = 0
        self._chosen, self._kubelet, self._plugins = chosen, kubelet, plugins
        self._restarts = 0
        self._has_plugin = asyncio.Event()
        self._late: asyncio.TimerHandle | None = None
        self._why = ""
        self._callbacks: list[Callable[[], None]] = []
        plugins.registering, plugins.has_registered = self._registering, self._has_registered

    def on_change(self, callback: Callable[[], None]) -> None:
        """`callback` is called when `settled`, `awaited` or `turn` has changed."""
        self._callbacks.append(callback)

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()

    def _registering(self, restarted: bool) -> None:
        self.turn += 1
        if restarted:
            self._restarts += 1
            self.settled = False
            self._stop_timer()
        self._notify()

    def _has_registered(self) -> None:
        if not self.settled and self._late is None:
            self.awaited = True
            self._late = asyncio.get_running_loop().call_later(_PATIENCE_S, self._overdue)
            self._has_plugin.set()

    def _overdue(self) -> None:
        self.awaited = False
        log.warning("the kubelet has not settled, so pods come without fences: %s", self._why)
        self._notify()

    def _stop_timer(self) -> None:
        self.awaited = False
        if self._late is not None:
            self._late.cancel()
            self._late = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._has_plugin.wait()
            self._has_plugin.clear()
            restarts = self._restarts
            self._why = "the pods of the node are not known yet"
            await self._chosen.synced.wait()
            await asyncio.sleep(_SETTLED_AFTER_S if await self._shown(restarts) else _UNSEEN_AFTER_S)
            if restarts == self._restarts and not self.settled:
                self.settled = True
                self._stop_timer()
                self._notify()

    async def _shown(self, restarts: int) -> bool:
        """Wait until the kubelet shows its pods, or has restarted again. False if no pod was running."""
        while restarts == self._restarts:
            running = [pod for pod in self._chosen.pods if pod.started]
            names = {(pod.namespace, pod.name) for pod in running}
            resources = {*self._plugins.resources}
            ours = {(pod.namespace, pod.name) for pod in running if resources & pod.requests.keys()}
            try:
                shown = {(one.namespace, one.name) for one in await self._kubelet.list()}
            except SocketError as error:
                self._why = str(error)
            else:
                if ours <= shown and (not names or names & shown):
                    return bool(names)
                missing = sorted(f"{namespace}/{name}" for namespace, name in (ours or names) - shown)
                self._why = f"the kubelet does not show {', '.join(missing)}"
            await asyncio.sleep(_LOOK_EVERY_S if self.awaited else _LOOK_LATE_S)
        return True
