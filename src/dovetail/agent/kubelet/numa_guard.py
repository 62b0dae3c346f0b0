# SPDX-License-Identifier: Apache-2.0
"""The NUMA guard: for a moment the kubelet sees NUMA nodes only for the devices that were chosen for the next pod.

Why: a kubelet that aligns devices takes, when it admits the pod, the lowest NUMA node on which the pod fits. A pod that
ends between the bind and the admission can free a lower NUMA node; then the kubelet allocates other devices than the
chosen ones. A device without a NUMA node supports no alignment, and stays allocatable. So only those sets of NUMA nodes
remain that have the chosen devices, and the kubelet has no other choice. This state is called a fence.

Rules
- The scheduler writes the pod and its devices to the spec of the GPUNode. It binds the pod when the status names the
  fence. The status names it once the kubelet itself shows it (PodResources).
- The fence is removed when the pod has its devices, when the pod has ended, when the spec names another fence, and
  after ten seconds in any case: meanwhile pods of other schedulers may find too few devices with a NUMA node and be
  rejected.
- A restarted kubelet admits the running pods again, and ends those that do not find the NUMA nodes of their devices. So
  no fence is put up before the kubelet has settled (see `settling`), and a fence is removed when a plugin registers.
- A fence that was requested before this process started is not put up.
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
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.bound_pods import parts_of
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.kubelet.settling import Settling
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import GPU_NODES
from dovetail.kube.objects.topology import Fence, GPUNode

log = logging.getLogger(__name__)

_UP_WITHIN_S = 1.0
_UP_FOR_S = 10.0
_LOOK_EVERY_S = 0.003


class Fenced(Protocol):
    """The device plugins of the node. `fence` takes the parts that keep their NUMA nodes; () means all. `fenced`
    returns whether the kubelet shows the fence in its answer `allocatable`."""

    def fence(self, parts: Sequence[str]) -> None: ...
    def fenced(self, allocatable: wire.AllocatableResourcesResponse) -> bool: ...


class NumaGuard:
    """Watches the GPUNode of the node `node_name` and puts up the fences that its spec requests."""

    def __init__(
        self, client: Client, node_name: str, chosen: Allocations, kubelet: PodResources, plugins: Fenced,
        settling: Settling,
    ) -> None:  # fmt: skip
        self._client, self._chosen, self._kubelet, self._plugins = client, chosen, kubelet, plugins
        self._path = GPU_NODES.path(name=node_name, subresource="status")
        params = {"fieldSelector": f"metadata.name={node_name}"}
        self._gpu_nodes = Reflector(client, GPU_NODES, GPUNode, self._on_gpu_nodes, params=params)
        self._wanted: Fence | None = None
        self._last = ""
        self._changed = asyncio.Event()
        self._settling = settling
        chosen.on_change(self._changed.set)
        settling.on_change(self._changed.set)

    @property
    def synced(self) -> asyncio.Event:
        return self._gpu_nodes.synced

    def _on_gpu_nodes(self, changes: Sequence[Change[GPUNode]]) -> None:
        wanted = changes[-1].object.spec.fence
        if wanted is not None and wanted.id != self._last:
            self._last = wanted.id
            if self._gpu_nodes.synced.is_set():
                self._wanted = wanted
                self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gpu_nodes.run())
            while True:
                while (wanted := self._wanted) is None:
                    await self._next_change()
                await self._put_up(wanted)
                if self._wanted is wanted:
                    self._wanted = None

    async def _next_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _put_up(self, wanted: Fence) -> None:
        """Put the fence up, and remove it at its end."""
        parts = parts_of(wanted.devices)
        if parts is None:
            log.warning("no fence for pod %s: %r is not a list of devices", wanted.pod, wanted.devices)
            return
        if not self._settling.settled:
            log.warning("no fence for pod %s: the kubelet may still admit its running pods again", wanted.pod)
            return
        turn = self._settling.turn
        self._plugins.fence(parts)
        fate = f"was not put up within {_UP_WITHIN_S:g} s"
        try:
            async with asyncio.timeout(_UP_WITHIN_S):
                await self._shown_by_kubelet()
                body = msgspec.json.encode({"status": {"fence": wanted.id}})
                await self._client.request("PATCH", self._path, body, content_type=MERGE_PATCH)
            fate = f"was removed after {_UP_FOR_S:g} s: the pod did not get its devices in that time"
            async with asyncio.timeout(_UP_FOR_S):
                await self._until_over(wanted, turn)
        except TimeoutError:
            log.warning("the fence for pod %s %s", wanted.pod, fate)
        except (KubeError, SocketError) as error:
            log.warning("no fence for pod %s: %s", wanted.pod, error)
        finally:
            self._plugins.fence(())

    async def _shown_by_kubelet(self) -> None:
        while True:
            if self._plugins.fenced(await self._kubelet.allocatable_response()):
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _until_over(self, wanted: Fence, turn: int) -> None:
        """Return when the pod has its devices or has ended, when another fence is wanted, or when a plugin has
        registered since this turn."""
        seen = False
        while self._wanted is wanted and self._settling.turn == turn:
            pod = self._chosen.pod(wanted.pod)
            if (seen and pod is None) or (pod is not None and (pod.started or not any(pod.open.values()))):
                return
            seen = pod is not None
            await self._next_change()
