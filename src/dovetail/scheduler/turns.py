# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is to go to a node whose device plugin gives pods the devices that were chosen for them.

Rules: such a plugin learns the resource and the number from the kubelet, not the pod (see `kube.admissions`). So of the
pods that ask for the same number of one resource only one at a time is on its way to a node; the others wait in the
order in which they were decided, half a minute at most, as a kubelet may admit nobody. The plugin then goes by the
order in which pods were bound, and finds out afterwards what it cannot know before. Nodes whose plugin does not honour
what was chosen are not concerned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from dovetail.kube.admissions import Sizes
from dovetail.kube.feed import Feed

T = TypeVar("T")
_PATIENCE_S = 30.0


class Turns(Generic[T]):
    """`go` is called with what was given to `take`, at once or when its turn has come."""

    def __init__(self, feed: Feed, go: Callable[[T], None]) -> None:
        self._feed = feed
        self._go = go
        self._waiting: dict[str, deque[tuple[str, Sizes, T]]] = {}
        self._sent: dict[str, dict[str, Sizes]] = {}
        """Who was let go to each node and is not admitted yet."""
        self._sent_to: dict[str, str] = {}
        feed.admissions.ended = self._ended

    def take(self, node: str, uid: str, item: T) -> None:
        sizes = self._feed.admissions.sizes(uid)
        if not sizes or not self._honours(node):
            self._go(item)
            return
        self._waiting.setdefault(node, deque()).append((uid, sizes, item))
        self._next(node)
        if node in self._waiting:
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._next, node, uid)

    def failed(self, uid: str) -> None:
        """It does not go there after all."""
        if uid in self._sent_to:
            self._ended(uid, "")

    def _honours(self, node: str) -> bool:
        told = self._feed.gpu_node(node)
        return told is not None and told.status.agent is not None and told.status.agent.honours_choice

    def _ended(self, uid: str, node: str) -> None:
        sent_to = self._sent_to.pop(uid, "")
        if sent_to:
            del self._sent[sent_to][uid]
            self._next(sent_to)
        if node not in ("", sent_to):
            self._next(node)

    def _next(self, node: str, impatient: str = "") -> None:
        """Let go whoever finds nobody before it that asks for the same, and who has waited long enough."""
        waiting = self._waiting.pop(node, deque())
        under_way = self._feed.admissions.coming(node) | self._sent.get(node, {})
        taken = {size for sizes in under_way.values() for size in sizes}
        left: deque[tuple[str, Sizes, T]] = deque()
        for uid, sizes, item in waiting:
            if uid == impatient or taken.isdisjoint(sizes):
                self._sent.setdefault(node, {})[uid] = sizes
                self._sent_to[uid] = node
                self._go(item)
            else:
                left.append((uid, sizes, item))
            taken |= sizes
        if left:
            self._waiting[node] = left
