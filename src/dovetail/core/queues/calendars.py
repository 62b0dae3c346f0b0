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
    """When the guarantee of each queue in `tree` that has a calendar changes next, or when that is looked for again."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._due_ms: dict[str, int] = {}

    @property
    def next_ms(self) -> int | None:
        """When that is due for the first of them; None where no queue has a calendar."""
        return min(self._due_ms.values(), default=None)

    def due(self, now_ms: int) -> list[Queue]:
        """The queues that have another guarantee by now, with it."""
        found = []
        for name in [name for name, due_ms in self._due_ms.items() if due_ms <= now_ms]:
            queue = self._tree.written[name]
            if (new := at_time(queue, now_ms)) is not queue:
                found.append(new)
            self.look(name, now_ms)
        return found

    def look(self, name: str, now_ms: int) -> None:
        """Find out when the guarantee of this queue changes next. Called after its calendar has changed, and when the
        queue is gone."""
        queue = self._tree.written.get(name)
        if queue is None or queue.calendar is None:
            self._due_ms.pop(name, None)
            return
        change = queue.calendar.next_change(now_ms)
        self._due_ms[name] = change[0] if change is not None else queue.calendar.horizon_ms(now_ms)
