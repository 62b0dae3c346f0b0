# SPDX-License-Identifier: Apache-2.0
"""For a moment the kubelet is told the NUMA nodes of those devices alone that were chosen for the pod that comes next.

Why: a kubelet that aligns devices takes the lowest NUMA node on which the pod fits when it admits it. A pod that ends
in between makes room on a lower one than was reckoned with, and the pod is given other devices than were chosen for it.
A device without a NUMA node counts towards none, and stays allocatable: so of the sets of NUMA nodes only those that
hold what was chosen are left, and the kubelet has no other choice.

Rules
- The scheduler writes who comes and with which devices to the spec of the GPUNode, and binds when the status says that
  the fence stands. It stands once the kubelet itself shows it (PodResources).
- It falls when the pod has been given its devices, or has ended, or another one comes; after ten seconds in any case,
  since pods of other schedulers may find too few devices with a NUMA node meanwhile and are refused then.
- A kubelet that begins anew admits again the pods that run, and refuses those that do not find the NUMA nodes of their
  devices: they would be ended. So there are no fences before it has settled (see `settling`), and one that stands falls
  when a plugin registers.
- What was asked for before this process began stands no more.
Source: pkg/kubelet/cm/devicemanager of Kubernetes 1.37: topology_hints.go (generateDeviceTopologyHints), manager.go
(devicesToAllocate, filterByAffinity).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from dovetail.agent.apis import podresources_pb2 as wire
from dovetail.agent.apis.serving import SocketError
from dovetail.agent.kubelet.allocations import Allocations, parts_of
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.kubelet.settling import Settling
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import GPU_NODES
from dovetail.kube.objects.topology import Fence, GPUNode

log = logging.getLogger(__name__)

_UP_WITHIN_S = 1.0
_STANDS_S = 10.0
_LOOK_EVERY_S = 0.003


class Fenced(Protocol):
    """The device plugins of the node. `fence` names the parts that keep their NUMA nodes, () that all do; `fenced` says
    whether the kubelet has heard of it."""

    def fence(self, parts: Sequence[str]) -> None: ...
    def fenced(self, told: wire.AllocatableResourcesResponse) -> bool: ...


class NumaGuard:
    """Follows the GPUNode of the node `node_name`."""

    def __init__(
        self, client: Client, node_name: str, chosen: Allocations, kubelet: PodResources, plugins: Fenced,
        settling: Settling,
    ) -> None:  # fmt: skip
        self._client, self._chosen, self._kubelet, self._plugins = client, chosen, kubelet, plugins
        self._path = GPU_NODES.path(name=node_name, subresource="status")
        params = {"fieldSelector": f"metadata.name={node_name}"}
        self._gpu_nodes = Reflector(client, GPU_NODES, GPUNode, self._told, params=params)
        self._wanted: Fence | None = None
        self._last = ""
        self._news = asyncio.Event()
        self._settling = settling
        chosen.on_change(self._news.set)
        settling.on_change(self._news.set)

    @property
    def synced(self) -> asyncio.Event:
        return self._gpu_nodes.synced

    def _told(self, changes: Sequence[Change[GPUNode]]) -> None:
        wanted = changes[-1].object.spec.fence
        if wanted is not None and wanted.id != self._last:
            self._last = wanted.id
            if self._gpu_nodes.synced.is_set():
                self._wanted = wanted
                self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gpu_nodes.run())
            while True:
                while (wanted := self._wanted) is None:
                    await self._heard()
                await self._stand(wanted)
                if self._wanted is wanted:
                    self._wanted = None

    async def _heard(self) -> None:
        await self._news.wait()
        self._news.clear()

    async def _stand(self, wanted: Fence) -> None:
        parts = parts_of(wanted.devices)
        if parts is None:
            log.warning("no fence for pod %s: %r is no list of devices", wanted.pod, wanted.devices)
            return
        if not self._settling.settled:
            log.warning("no fence for pod %s: the kubelet may look again at the pods that run", wanted.pod)
            return
        turn = self._settling.turn
        self._plugins.fence(parts)
        fate = f"was not put up within {_UP_WITHIN_S:g} s"
        try:
            async with asyncio.timeout(_UP_WITHIN_S):
                await self._heard_by_kubelet()
                body = msgspec.json.encode({"status": {"fence": wanted.id}})
                await self._client.request("PATCH", self._path, body, content_type=MERGE_PATCH)
            fate = f"fell after {_STANDS_S:g} s, before the pod was given its devices"
            async with asyncio.timeout(_STANDS_S):
                await self._over(wanted, turn)
        except TimeoutError:
            log.warning("the fence for pod %s %s", wanted.pod, fate)
        except (KubeError, SocketError) as error:
            log.warning("no fence for pod %s: %s", wanted.pod, error)
        finally:
            self._plugins.fence(())

    async def _heard_by_kubelet(self) -> None:
        while True:
            if self._plugins.fenced(await self._kubelet.allocatable_as_told()):
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _over(self, wanted: Fence, turn: int) -> None:
        """Wait until the pod has been given what it asks for, or has ended, or until another one is to come, or a
        plugin has registered since this turn."""
        seen = False
        while self._wanted is wanted and self._settling.turn == turn:
            pod = self._chosen.pod(wanted.pod)
            if (seen and pod is None) or (pod is not None and (pod.at_work or not any(pod.open.values()))):
                return
            seen = pod is not None
            await self._heard()
