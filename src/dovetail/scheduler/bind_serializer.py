# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is to go to a node whose device plugin gives pods the devices that were chosen for them.

Rules
- Such a plugin learns the resource and the number from the kubelet, not the pod (see `kube.nodes.admissions`). So of
  the pods that ask for the same number of one resource only one at a time is on its way to a node.
- A kubelet that aligns devices to NUMA nodes decides by itself on which, from what is free at that moment. What it will
  say was worked out for pods that come in the order in which they were decided: so all go there one by one, and the
  next only when there was time to hear what the one before was given. When a pod leaves the node, or was given others
  than were chosen, who still waits is handed back, to be decided anew. Where a fence left the kubelet no choice (see
  `fences`), they go one by one as well, and there is nothing else to wait for; of a pod that came without one, what it
  was given is waited for, whatever the agent can do by then.
- Nobody waits longer than half a minute, as a kubelet may admit nobody. The plugin then goes by the order in which pods
  were bound, and finds out afterwards what it cannot know before.
- Nodes whose plugin does not honour what was chosen are not concerned.
- Nobody goes to a node whose kubelet has no device plugin at the moment, since it would reject the pod for good: who
  was to go there, or waits for it, is handed back, to be decided anew.
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
"""In which an agent has told what a pod was given."""


class BindSerializer(Generic[T]):
    """`go` is called with what was given to `take`, at once or when its turn has come, or `hand_back`."""

    def __init__(self, feed: Translator, go: Callable[[T], None], hand_back: Callable[[T], None]) -> None:
        self._feed = feed
        self._go = go
        self._hand_back = hand_back
        self._waiting: dict[str, list[tuple[str, Sizes, T]]] = {}
        self._sent: dict[str, dict[str, Sizes]] = {}
        """Who was let go to each node and is not admitted yet."""
        self._sent_to: dict[str, str] = {}
        self._behind_fence: set[str] = set()
        """Those of them for which a fence stood when they were bound."""
        self._settling: dict[str, int] = {}
        """Of how many pods of a node it may still be told that they were given others."""
        feed.admissions.listener = self
        feed.given.changed = self._changed

    def take(self, node: str, uid: str, item: T) -> None:
        sizes, told = self._feed.admissions.sizes(uid), self._feed.gpu_node(node)
        if sizes and plugin_gone(told):
            self._hand_back(item)
            return
        if not sizes or not honours(told):
            self._go(item)
            return
        self._waiting.setdefault(node, []).append((uid, sizes, item))
        self._next(node)
        if node in self._waiting:
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._next, node, uid)

    def barred(self, node: str, uid: str) -> bool:
        """Whether the kubelet of the node would reject the pod, as it has no device plugin."""
        return plugin_gone(self._feed.gpu_node(node)) and bool(self._feed.admissions.sizes(uid))

    def told(self, node: GPUNode) -> None:
        """Hears of every GPUNode."""
        if node.status.plugin_gone:
            for _, _, item in self._waiting.pop(node.metadata.name, ()):
                self._hand_back(item)

    def fence_stands(self, uid: str) -> None:
        """For a pod that was let go, which is bound now."""
        self._behind_fence.add(uid)

    def failed(self, uid: str) -> None:
        """It does not go there after all."""
        if uid in self._sent_to:
            self._next(self._arrived(uid))

    def admitted(self, uid: str, node: str) -> None:
        """As of `admissions.Listener`."""
        behind_fence = uid in self._behind_fence
        self._arrived(uid)
        if self._aligns(node) and not behind_fence:
            self._settling[node] = self._settling.get(node, 0) + 1
            asyncio.get_running_loop().call_later(_READ_BACK_S, self._settled, node)
        self._next(node)

    def gone(self, uid: str, node: str) -> None:
        """As of `admissions.Listener`."""
        sent_to = self._arrived(uid)
        left = node or sent_to
        if fenced(self._feed.gpu_node(left)):
            self._next(left)
        else:
            self._changed(left)

    def _aligns(self, node: str) -> bool:
        return aligns(self._feed.gpu_node(node))

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
        """The books of the node are no longer those by which was decided who waits for it."""
        if self._aligns(node):
            for _, _, item in self._waiting.pop(node, ()):
                self._hand_back(item)
        else:
            self._next(node)

    def _next(self, node: str, impatient: str = "") -> None:
        """Let go whoever finds nobody in the way, and who has waited long enough."""
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
