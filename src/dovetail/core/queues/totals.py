# SPDX-License-Identifier: Apache-2.0
"""What the queues hold and wait for, by queue and class. Each queue includes those below it."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import DIVIDED, Amounts

_ByQueue = dict[str, dict[str, int]]


class QueueTotals:
    """`allocated` is what is held, `fixed` the part of it that must not be preempted, `pending` what is waited for.
    `unmanaged` is what pods hold that Dovetail does not schedule. `priorities` has by leaf queue and priority the
    number of placed pods."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.allocated: _ByQueue = {}
        self.fixed: _ByQueue = {}
        self.pending: _ByQueue = {}
        self.unmanaged: dict[str, int] = {}
        self.priorities: dict[str, dict[int, int]] = {}
        self.moved: dict[tuple[str, str], int] = {}
        """By leaf queue and class that is divided: the change of what is held and waited for since `fair_share` last
        emptied it. Changes that cancel out are not in it."""

    def hold(self, queue: str, priority: int, amounts: Amounts, fixed: bool, times: int) -> None:
        """Count so many more placed pods with these amounts (fewer below 0). `queue` "" is for unmanaged pods."""
        if not queue:
            add(self.unmanaged, amounts, times)
            return
        self._move(queue, amounts, times)
        self._add(self.allocated, queue, amounts, times)
        if fixed:
            self._add(self.fixed, queue, amounts, times)
        pods = self.priorities.setdefault(queue, {})
        pods[priority] = pods.get(priority, 0) + times
        if not pods[priority]:
            del pods[priority]

    def wait(self, queue: str, amounts: Amounts, times: int) -> None:
        """Count so many more waiting pods (fewer below 0)."""
        self._move(queue, amounts, times)
        self._add(self.pending, queue, amounts, times)

    def held(self, queue: str) -> Mapping[str, int]:
        """The holdings of the queue and of those below it."""
        return self.allocated.get(queue, {})

    def others_hold(self, queue: str) -> bool:
        """Whether pods are placed for other queues."""
        return any(pods and name != queue for name, pods in self.priorities.items())

    def _add(self, by_queue: _ByQueue, queue: str, amounts: Amounts, times: int) -> None:
        for name in self._tree.known_path(queue):
            add(by_queue.setdefault(name, {}), amounts, times)

    def _move(self, queue: str, amounts: Amounts, times: int) -> None:
        moved = self.moved
        for name, amount in amounts:
            if name in DIVIDED:
                key = queue, name
                left = moved.get(key, 0) + times * amount
                if left:
                    moved[key] = left
                else:
                    moved.pop(key, None)


def add(by_class: dict[str, int], amounts: Amounts, times: int) -> None:
    for name, amount in amounts:
        by_class[name] = by_class.get(name, 0) + times * amount
