# SPDX-License-Identifier: Apache-2.0
"""What the queues hold and wait for, by queue and class: each with those below it."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import DIVIDED, Amounts

Books = dict[str, dict[str, int]]


class QueueTotals:
    """`allocated` is what is held, `fixed` that part of it that must not be preempted, `pending` what is waited for;
    `strangers` is what pods hold that are in no queue. `priorities` are numbers of pods by the queue that they are in,
    and by priority."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.allocated: Books = {}
        self.fixed: Books = {}
        self.pending: Books = {}
        self.strangers: dict[str, int] = {}
        self.priorities: dict[str, dict[int, int]] = {}
        self.moved: dict[tuple[str, str], int] = {}
        """By queue and class that is divided, how much more is held in the queue itself and waited for there than when
        this was last emptied (`fair_share`): what was taken back since then is not in it."""

    def hold(self, queue: str, priority: int, amounts: Amounts, fixed: bool, times: int) -> None:
        """So many pods more (fewer, where that is less than 0) are held that are alike; those of no queue are ""."""
        if not queue:
            add(self.strangers, amounts, times)
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
        """So many pods more (fewer) wait."""
        self._move(queue, amounts, times)
        self._add(self.pending, queue, amounts, times)

    def held(self, queue: str) -> Mapping[str, int]:
        """What the queue holds, with those below it."""
        return self.allocated.get(queue, {})

    def others_hold(self, queue: str) -> bool:
        """Whether pods are placed for other queues."""
        return any(pods and name != queue for name, pods in self.priorities.items())

    def _add(self, books: Books, queue: str, amounts: Amounts, times: int) -> None:
        for name in self._tree.known_path(queue):
            add(books.setdefault(name, {}), amounts, times)

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


def add(books: dict[str, int], amounts: Amounts, times: int) -> None:
    for name, amount in amounts:
        books[name] = books.get(name, 0) + times * amount
