# SPDX-License-Identifier: Apache-2.0
"""Whether the kubelet has taken up the pods of its node, after it, or this agent, began anew.

Why: a kubelet that begins anew admits again every pod of its node, in the order in which they were made, before it
forgets those that have ended. Whoever is bound to the node until then finds devices taken that nobody holds any more,
and fails for good. Running pods have to find the NUMA nodes of their devices, so there are no fences until then.

Rules
- A kubelet whose socket is another one than before has begun anew. An agent that begins does not know, and takes it for
  one that has.
- It has settled when PodResources shows all pods that work with our devices, and one of those that work at all, and a
  second more: it takes them up one by one, and forgets those that have ended after the last. On a node where none works
  there is nothing to see; its kubelet is given the time that it needs to hear of its pods.
- Ten seconds after it has the plugin nobody waits for it any longer: pods come without fences until it has settled.
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

BEGINS = "KubeletBegins", "the kubelet, or this agent, has begun anew: it takes up the pods of the node"
"""A reason of the condition PluginRegistered, and words."""


class Registering(Protocol):
    """The device plugins of the node. `registering` is called before one of them is registered, with whether the
    kubelet is another one than before, `has_registered` when the kubelet has it."""

    registering: Callable[[bool], None]
    has_registered: Callable[[], None]

    @property
    def resources(self) -> Collection[str]: ...


class Settling:
    """`settled`: the kubelet has taken up its pods; `awaited`: it has not, and has had the plugin for less than ten
    seconds. `turn` grows with every registration."""

    def __init__(self, chosen: Allocations, kubelet: PodResources, plugins: Registering) -> None:
        self.settled = self.awaited = False
        self.turn = 0
        self._chosen, self._kubelet, self._plugins = chosen, kubelet, plugins
        self._begins = 0
        self._taken = asyncio.Event()
        self._late: asyncio.TimerHandle | None = None
        self._why = ""
        self._hear: list[Callable[[], None]] = []
        plugins.registering, plugins.has_registered = self._registering, self._has_registered

    def on_change(self, hear: Callable[[], None]) -> None:
        """`hear` is called when any of it has changed."""
        self._hear.append(hear)

    def _tell(self) -> None:
        for hear in self._hear:
            hear()

    def _registering(self, anew: bool) -> None:
        self.turn += 1
        if anew:
            self._begins += 1
            self.settled = False
            self._wait_no_longer()
        self._tell()

    def _has_registered(self) -> None:
        if not self.settled and self._late is None:
            self.awaited = True
            self._late = asyncio.get_running_loop().call_later(_PATIENCE_S, self._overdue)
            self._taken.set()

    def _overdue(self) -> None:
        self.awaited = False
        log.warning("pods are sent here without fences: %s", self._why)
        self._tell()

    def _wait_no_longer(self) -> None:
        self.awaited = False
        if self._late is not None:
            self._late.cancel()
            self._late = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._taken.wait()
            self._taken.clear()
            begins = self._begins
            self._why = "which pods the node has is not known yet"
            await self._chosen.synced.wait()
            await asyncio.sleep(_SETTLED_AFTER_S if await self._shown(begins) else _UNSEEN_AFTER_S)
            if begins == self._begins and not self.settled:
                self.settled = True
                self._wait_no_longer()
                self._tell()

    async def _shown(self, begins: int) -> bool:
        """Wait until the kubelet shows its pods, or has begun anew once more; whether there was anything to see."""
        while begins == self._begins:
            working = [pod for pod in self._chosen.pods if pod.at_work]
            names = {(pod.namespace, pod.name) for pod in working}
            resources = {*self._plugins.resources}
            ours = {(pod.namespace, pod.name) for pod in working if resources & pod.asks.keys()}
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
