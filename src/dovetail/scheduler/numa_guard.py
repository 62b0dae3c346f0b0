# SPDX-License-Identifier: Apache-2.0
"""Has the agent of a node leave its kubelet no other devices than those that were chosen, before a pod is bound there.

Rules: it concerns nodes whose kubelet aligns devices to NUMA nodes, where these are several and the agent says that it
can (see `agent.kubelet.numa_guard`). Who is to come is written to the spec of the GPUNode, and its status says when the
fence stands. After a second without it the pod is bound all the same: it may be given others than were chosen, as
without a fence, and that is told.
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


def honours(told: GPUNode | None) -> bool:
    """Whether the device plugin of the node gives pods what was chosen for them."""
    return told is not None and told.status.agent is not None and told.status.agent.honours_choice


def aligns(told: GPUNode | None) -> bool:
    """Whether also its kubelet has a say in it."""
    kubelet = told.status.kubelet if told is not None else None
    return honours(told) and kubelet is not None and kubelet.topology_manager_policy in _ALIGNED


def fenced(told: GPUNode | None) -> bool:
    """Whether a fence makes the kubelet give what was chosen."""
    if told is None or not aligns(told) or told.status.agent is None or not told.status.agent.fences:
        return False
    return len({gpu.numa_node for gpu in told.status.gpus if gpu.numa_node is not None}) > 1


def plugin_gone(told: GPUNode | None) -> bool:
    """Whether its kubelet would reject whoever asks for GPUs."""
    return told is not None and told.status.plugin_gone


class NumaGuards:
    """`put_up` is awaited before a bind is sent; `told` is to hear of every GPUNode."""

    def __init__(self, client: Client, feed: Translator, run_id: str) -> None:
        self._client = client
        self._feed = feed
        self._run_id = run_id
        self._number = 0
        self._awaited: dict[str, asyncio.Event] = {}

    def told(self, node: GPUNode) -> None:
        """Hears of every GPUNode."""
        stands = self._awaited.get(node.status.fence)
        if stands is not None:
            stands.set()

    async def put_up(self, bind: Bind) -> bool:
        """Whether a fence stands for this pod. Returns at once where it needs none, and after a second at the
        latest."""
        chosen = wire.devices(bind)
        if not chosen or not fenced(self._feed.gpu_node(bind.node)):
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
