# SPDX-License-Identifier: Apache-2.0
"""Requests a NUMA guard from the agent of a node before a pod is bound there: the agent leaves the kubelet only the
devices that were chosen for the pod.

Rules: a bind needs a guard if the node has several NUMA nodes, its kubelet aligns devices to them, and its agent
supports guards (see `agent.kubelet.numa_guard`). The scheduler writes the pod to `spec.fence` of the GPUNode; the
status shows when the guard is in force. After one second without it the pod is bound anyway. The kubelet may then
allocate other devices than chosen, and that difference is reported.
"""

from __future__ import annotations

import asyncio

import msgspec

from dovetail.core.decisions import Bind
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.resources import GPU_NODES
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import metrics, wire

_PATIENCE_S = 1.0
_ALIGNED = ("best-effort", "restricted", "single-numa-node")


def honours(gpu_node: GPUNode | None) -> bool:
    """Whether the device plugin of the node allocates the devices that were chosen for a pod."""
    return gpu_node is not None and gpu_node.status.agent is not None and gpu_node.status.agent.honours_choice


def aligns(gpu_node: GPUNode | None) -> bool:
    """Whether the plugin honours the choice and the kubelet also aligns devices to NUMA nodes."""
    kubelet = gpu_node.status.kubelet if gpu_node is not None else None
    return honours(gpu_node) and kubelet is not None and kubelet.topology_manager_policy in _ALIGNED


def fenced(gpu_node: GPUNode | None) -> bool:
    """Whether binds to the node need a NUMA guard, and its agent supports it."""
    if gpu_node is None or not aligns(gpu_node) or gpu_node.status.agent is None or not gpu_node.status.agent.fences:
        return False
    return len({gpu.numa_node for gpu in gpu_node.status.gpus if gpu.numa_node is not None}) > 1


def plugin_gone(gpu_node: GPUNode | None) -> bool:
    """Whether the kubelet would reject every pod that requests GPUs, as its device plugin is gone."""
    return gpu_node is not None and gpu_node.status.plugin_gone


class NumaGuards:
    """Await `put_up` before a bind is sent; pass every change of a GPUNode to `on_gpu_node`."""

    def __init__(self, client: Client, feed: Translator, run_id: str) -> None:
        self._client = client
        self._feed = feed
        self._run_id = run_id
        self._number = 0
        self._awaited: dict[str, asyncio.Event] = {}

    def on_gpu_node(self, node: GPUNode) -> None:
        """Receives every change of a GPUNode."""
        stands = self._awaited.get(node.status.fence)
        if stands is not None:
            stands.set()

    async def put_up(self, bind: Bind) -> bool:
        """Request a guard for this pod; whether it is in force. Returns at once where none is needed, and after one
        second at the latest."""
        chosen = wire.devices(bind)
        if not chosen or not fenced(self._feed.node_records.gpu_node(bind.node)):
            return False
        self._number += 1
        fence_id = f"{self._run_id}-{self._number}"
        stands = self._awaited[fence_id] = asyncio.Event()
        body = msgspec.json.encode({"spec": {"fence": {"id": fence_id, "pod": bind.uid, "devices": chosen}}})
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._client.request("PATCH", GPU_NODES.path(name=bind.node), body, content_type=MERGE_PATCH)
                await stands.wait()
            metrics.count(metrics.FENCES, "stood")
            return True
        except TimeoutError:
            metrics.count(metrics.FENCES, "late")
            metrics.log.warning("%s: no fence within %g s, a pod is bound without", bind.node, _PATIENCE_S)
        except KubeError as error:
            metrics.count(metrics.FENCES, "failed")
            metrics.log.warning("%s: no fence, a pod is bound without: %s", bind.node, error)
        finally:
            del self._awaited[fence_id]
        return False
