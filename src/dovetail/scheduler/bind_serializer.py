# SPDX-License-Identifier: Apache-2.0
"""The order of binds to one node, where the device plugin allocates the devices chosen for each pod.

Rules
- The kubelet passes the resource and the number to the plugin, not the pod (see `kube.nodes.admissions`). So of the
  pods that request the same number of one resource, only one at a time is in flight to a node.
- A kubelet that aligns devices to NUMA nodes picks the NUMA nodes itself, from the devices free at that moment. The
  core predicted its pick for pods that arrive in the order of the decisions. So pods are bound to such a node one by
  one, and each waits until there was time to read back the devices of the one before. When a pod leaves the node, or
  got other devices than chosen, the waiting binds are handed back and decided again. Where a NUMA guard left the
  kubelet no choice (see `numa_guard`), the pods also go one by one, without the wait for the read-back. A pod that came
  without a guard is read back, whatever the agent supports by then.
- A bind waits half a minute at most, as a kubelet may admit no pod. The plugin then matches devices to pods by the
  order of their binds, and detects a wrong match afterwards.
- The rules do not apply to a node where the plugin does not honour the choice.
- No pod is bound to a node while its kubelet has no device plugin: the kubelet would reject it for good. The binds to
  that node are handed back and decided again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from dovetail.kube.nodes.admissions import Sizes
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler.numa_guard import aligns, fenced, honours, plugin_gone

T = TypeVar("T")
_PATIENCE_S = 30.0
_READ_BACK_S = 0.5
"""Within this time an agent has reported the devices of an admitted pod."""


class BindSerializer(Generic[T]):
    """Each item passed to `take` ends in one call: of `go`, at once or when its turn comes, or of `hand_back`."""

    def __init__(self, feed: Translator, go: Callable[[T], None], hand_back: Callable[[T], None]) -> None:
        self._feed = feed
        self._go = go
        self._hand_back = hand_back
        self._waiting: dict[str, list[tuple[str, Sizes, T]]] = {}
        self._sent: dict[str, dict[str, Sizes]] = {}
        """The pods in flight to each node: released, and not admitted yet."""
        self._sent_to: dict[str, str] = {}
        self._behind_fence: set[str] = set()
        """Those of them that were bound while a NUMA guard was in force."""
        self._settling: dict[str, int] = {}
        """The number of admitted pods per node that are not read back yet."""
        feed.admissions.listener = self
        feed.device_differences.changed = self._changed

    def take(self, node: str, uid: str, item: T) -> None:
        sizes, gpu_node = self._feed.admissions.sizes(uid), self._feed.node_records.gpu_node(node)
        if sizes and plugin_gone(gpu_node):
            self._hand_back(item)
            return
        if not sizes or not honours(gpu_node):
            self._go(item)
            return
        self._waiting.setdefault(node, []).append((uid, sizes, item))
        self._next(node)
        if node in self._waiting:
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._next, node, uid)

    def barred(self, node: str, uid: str) -> bool:
        """Whether the kubelet of the node would reject the pod, because it has no device plugin."""
        return plugin_gone(self._feed.node_records.gpu_node(node)) and bool(self._feed.admissions.sizes(uid))

    def on_gpu_node(self, node: GPUNode) -> None:
        """Receives every change of a GPUNode."""
        if node.status.plugin_gone:
            for _, _, item in self._waiting.pop(node.metadata.name, ()):
                self._hand_back(item)

    def fence_stands(self, uid: str) -> None:
        """Record that a NUMA guard is in force for this pod, which is about to be bound."""
        self._behind_fence.add(uid)

    def failed(self, uid: str) -> None:
        """The bind of the pod did not succeed: free its turn."""
        if uid in self._sent_to:
            self._next(self._arrived(uid))

    def admitted(self, uid: str, node: str) -> None:
        """See `admissions.Listener`."""
        behind_fence = uid in self._behind_fence
        self._arrived(uid)
        if self._aligns(node) and not behind_fence:
            self._settling[node] = self._settling.get(node, 0) + 1
            asyncio.get_running_loop().call_later(_READ_BACK_S, self._settled, node)
        self._next(node)

    def gone(self, uid: str, node: str) -> None:
        """See `admissions.Listener`."""
        sent_to = self._arrived(uid)
        left = node or sent_to
        if fenced(self._feed.node_records.gpu_node(left)):
            self._next(left)
        else:
            self._changed(left)

    def _aligns(self, node: str) -> bool:
        return aligns(self._feed.node_records.gpu_node(node))

    def _arrived(self, uid: str) -> str:
        self._behind_fence.discard(uid)
        node = self._sent_to.pop(uid, "")
        if node:
            del self._sent[node][uid]
        return node

    def _settled(self, node: str) -> None:
        self._settling[node] -= 1
        if not self._settling[node]:
            del self._settling[node]
        self._next(node)

    def _changed(self, node: str) -> None:
        """The free devices of the node have changed since the waiting binds were decided."""
        if self._aligns(node):
            for _, _, item in self._waiting.pop(node, ()):
                self._hand_back(item)
        else:
            self._next(node)

    def _next(self, node: str, impatient: str = "") -> None:
        """Release the binds that nothing blocks, and the pod `impatient`, which has waited long enough."""
        waiting, aligns = self._waiting.pop(node, []), self._aligns(node)
        under_way = self._feed.admissions.coming(node) | self._sent.get(node, {})
        taken = {size for sizes in under_way.values() for size in sizes}
        blocked = aligns and bool(under_way or node in self._settling)
        left = []
        for uid, sizes, item in waiting:
            if uid == impatient or not (blocked or taken & sizes):
                self._sent.setdefault(node, {})[uid] = sizes
                self._sent_to[uid] = node
                self._go(item)
                blocked = aligns
            else:
                left.append((uid, sizes, item))
            taken |= sizes
        if left:
            self._waiting[node] = left
