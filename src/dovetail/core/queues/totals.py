# SPDX-License-Identifier: Apache-2.0
"""What the queues hold and wait for, by queue and class: each with those below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.core.queues.types import Amounts

Books = dict[str, dict[str, int]]


class QueueTotals:
    """`allocated` is what is held, `fixed` that part of it that must not be preempted, `pending` what is waited for;
    `strangers` is what pods hold that are in no queue. `priorities` are numbers of pods by the queue that they are in,
    and by priority."""

    def __init__(self, path: Callable[[str], Iterable[str]]) -> None:
        """path: the queue and those above it."""
        self.allocated: Books = {}
        self.fixed: Books = {}
        self.pending: Books = {}
        self.strangers: dict[str, int] = {}
        self.priorities: dict[str, dict[int, int]] = {}
        self._path = path

    def hold(self, queue: str, priority: int, amounts: Amounts, fixed: bool, times: int) -> None:
        """So many pods more (fewer, where that is less than 0) are held that are alike; those of no queue are ""."""
        if not queue:
            add(self.strangers, amounts, times)
            return
        self._add(self.allocated, queue, amounts, times)
        if fixed:
            self._add(self.fixed, queue, amounts, times)
        pods = self.priorities.setdefault(queue, {})
        pods[priority] = pods.get(priority, 0) + times
        if not pods[priority]:
            del pods[priority]

    def wait(self, queue: str, amounts: Amounts, times: int) -> None:
        """So many pods more (fewer) wait."""
        self._add(self.pending, queue, amounts, times)

    def _add(self, books: Books, queue: str, amounts: Amounts, times: int) -> None:
        for name in self._path(queue):
            add(books.setdefault(name, {}), amounts, times)


def add(books: dict[str, int], amounts: Amounts, times: int) -> None:
    for name, amount in amounts:
        books[name] = books.get(name, 0) + times * amount
