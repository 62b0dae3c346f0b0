# SPDX-License-Identifier: Apache-2.0
"""Which node slots changed, in order, so that every cache can catch up lazily from where it last looked."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]


_NOTHING: Slots = np.empty(0, dtype=np.int64)


class Journal:
    """An append-only list of slots with cursors into it. Only the last `limit` entries are kept: a reader that fell
    further behind has to start over."""

    __slots__ = ("_limit", "end", "entries")

    def __init__(self, limit: int) -> None:
        self.entries: list[int] = []
        """The last of all that was added, with repetitions; only to be read."""
        self._limit = limit
        self.end = 0
        """The cursor of a reader that has seen everything."""

    def add(self, slot: int) -> None:
        self.entries.append(slot)
        self._added(1)

    def extend(self, slots: Collection[int]) -> None:
        self.entries.extend(slots)
        self._added(len(slots))

    def _added(self, count: int) -> None:
        self.end += count
        if len(self.entries) > 2 * self._limit:
            del self.entries[: -self._limit]

    def since(self, cursor: int) -> Slots | None:
        """The distinct slots changed since `cursor`; None where the journal no longer reaches back that far."""
        if cursor == self.end:
            return _NOTHING
        if cursor < self.end - len(self.entries):
            return None
        return np.array(list(dict.fromkeys(self.entries[cursor - self.end :])), dtype=np.int64)
