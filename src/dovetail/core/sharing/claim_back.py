# SPDX-License-Identifier: Apache-2.0
"""What one job may take back from other queues, one victim after another.

Rules: where the queues of the job and of the victim part, and below that, the job's side has to stay within what is due
to it, and the victim's side has to hold more than is due to it. More means by more than a whole GPU, since what is due
is rounded to whole GPUs and moves with what was used: nobody is evicted for a GPU that is due to another tomorrow. (Not
where the job's side is due all that it asks for: nothing was rounded up for it, and who asks for little must get it.)
Of a victim at least half must be too much. A side that stays within its guarantee takes whatever others hold beyond
theirs. Who gives way already, and for whom, counts as done. So nobody who took back can be taken from in the same
moment, and no two take from each other in turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.core.sharing.records import DIVIDED

if TYPE_CHECKING:
    from dovetail.core.sharing.shares import Shares


class ClaimBack:
    def __init__(self, shares: Shares, queue: str, amounts: Mapping[str, int]) -> None:
        self._shares = shares
        self._path = shares.path(queue)
        self._amounts = amounts
        self._wanted = [resource for resource in DIVIDED if amounts.get(resource, 0)]
        self._taken: dict[str, dict[str, int]] = {}
        self._pledged = shares.pledged()
        self._classes = [shares.entitlements.standing_class(name, self._with_pledged(name)) for name in self._path]

    def takes(self, queue: str, amounts: Mapping[str, int]) -> bool:
        """Whether a victim of the queue with these amounts may be taken. If so, it counts as taken."""
        theirs = [name for name in self._shares.path(queue) if name not in self._path]
        level = self._parting(queue, theirs)
        if level is None or max(self._classes[: level + 1]) == 2:
            return False
        guaranteed = self._classes[level] == 0
        content = self._content(self._path[level])
        if not all(self._above(name, amounts, guaranteed, content) for name in theirs):
            return False
        for name in theirs:
            taken = self._taken.setdefault(name, {})
            for resource, amount in amounts.items():
                taken[resource] = taken.get(resource, 0) + amount
        return True

    def _parting(self, queue: str, theirs: list[str]) -> int | None:
        """Where on the job's path its side begins; None where they never part."""
        if not theirs or queue == self._path[0]:
            return None
        queues = self._shares.tree.queues
        parent = queues[theirs[-1]].parent
        return next((level for level, name in enumerate(self._path) if queues[name].parent == parent), None)

    def _with_pledged(self, name: str) -> dict[str, int]:
        """What the job wants, with what others of the queue have been promised, less what was promised of it."""
        pledged = self._pledged.get(name, {})
        return {resource: amount + pledged.get(resource, 0) for resource, amount in self._amounts.items()}

    def _content(self, name: str) -> bool:
        """Whether the queue is due all that it asks for."""
        held, pending, due = self._shares.allocated(name), self._shares.pending(name), self._shares.due(name)
        return all(held.get(r, 0) + pending.get(r, 0) <= due.get(r, 0) for r in self._wanted)

    def _above(self, name: str, amounts: Mapping[str, int], guaranteed: bool, content: bool) -> bool:
        """Whether the queue holds more than it may keep of something that the job wants."""
        held, taken, due = self._shares.allocated(name), self._taken.get(name, {}), self._shares.due(name)
        guarantee, pledged = dict(self._shares.tree.queues[name].guarantee), self._pledged.get(name, {})
        for resource in self._wanted:
            left = held.get(resource, 0) + pledged.get(resource, 0) - taken.get(resource, 0)
            if guaranteed and left > guarantee.get(resource, 0):
                return True
            excess = left - due.get(resource, 0)
            if excess > (0 if content else DIVIDED[resource]) and 2 * excess >= amounts.get(resource, 0):
                return True
        return False
