# SPDX-License-Identifier: Apache-2.0
"""What one job may take back from other queues, one victim after another.

Rules: a queue takes back only what is due to it, from queues that hold more than is due to them, at the level where the
two part and below it on the side of the victim. A queue that stays within its guarantee takes from all that are beyond
theirs. So nobody who took back can be taken from in the same moment, and no two take from each other in turns.
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
        self._taken: dict[str, dict[str, int]] = {}

    def takes(self, queue: str, amounts: Mapping[str, int]) -> bool:
        """Whether a victim of the queue with these amounts may be taken. If so, it counts as taken."""
        shares, tree = self._shares, self._shares.tree
        theirs = [name for name in shares.path(queue) if name not in self._path]
        if queue == self._path[0] or not theirs:
            return False
        parent = tree.queues[theirs[-1]].parent
        own = next((name for name in self._path if tree.queues[name].parent == parent), None)
        if own is None:
            # Of two trees that hang nowhere.
            return False
        guaranteed = shares.standing_class(own, self._amounts) == 0
        for name in theirs:
            if not self._above(name, shares.due(name)) and not (
                guaranteed and self._above(name, dict(tree.queues[name].guarantee))
            ):
                return False
        for name in theirs:
            taken = self._taken.setdefault(name, {})
            for resource, amount in amounts.items():
                taken[resource] = taken.get(resource, 0) + amount
        return True

    def _above(self, name: str, level: Mapping[str, int]) -> bool:
        held, taken = self._shares.allocated(name), self._taken.get(name, {})
        return any(
            held.get(resource, 0) - taken.get(resource, 0) > level.get(resource, 0)
            for resource in DIVIDED
            if self._amounts.get(resource, 0)
        )
