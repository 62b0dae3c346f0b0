# SPDX-License-Identifier: Apache-2.0
"""The queues whose guarantees follow a calendar (`guarantee_calendar`), as time goes on."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import Queue


def at_time(queue: Queue, now_ms: int) -> Queue:
    """The queue with the guarantee that it has at this time."""
    if queue.calendar is None or (guarantee := queue.calendar.at(now_ms)) == queue.guarantee:
        return queue
    return replace(queue, guarantee=guarantee)


class QueueCalendars:
    """`next_ms` is when the guarantee of a queue in `tree` changes, or when that is looked for again; None where no
    queue has a calendar."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.next_ms: int | None = None

    def due(self, now_ms: int) -> list[Queue]:
        """The queues that have another guarantee by now, with it."""
        if self.next_ms is None or now_ms < self.next_ms:
            return []
        found = [new for queue in self._tree.scheduled() if (new := at_time(queue, now_ms)) is not queue]
        self.look(now_ms)
        return found

    def look(self, now_ms: int) -> None:
        """Find out when the next change is. Called after each change of the tree."""
        times = []
        for queue in self._tree.scheduled():
            if queue.calendar is not None:
                change = queue.calendar.next_change(now_ms)
                times.append(change[0] if change is not None else queue.calendar.horizon_ms(now_ms))
        self.next_ms = min(times, default=None)
