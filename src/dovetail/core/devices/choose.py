# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a node a pod gets: for each set of free GPUs and each number asked for, the best set, in a table.

Rules, in order: the best quality of the set itself (bandwidth, NUMA nodes, PCIe, NICs); then what remains is worth most
to later requests, which is the quality of the best sets of 1, 2, 4, 8 ... GPUs that could still be had of it; then the
lowest numbers. Exact: every set of free GPUs is looked at. A table belongs to a layout, and equal layouts share it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail.core.devices.bandwidth import Sets, Table
from dovetail.core.devices.layout import Layout

PERMILLE = 1000
_NOTHING = -1


class Choices:
    """`closeness[k, free]` is the bandwidth of the best k of the free GPUs, in thousandths of the best k of all of
    them; -1 where fewer are free. `nvlinked[k, free]` is whether k free GPUs exist with a ring of NVLinks."""

    def __init__(self, layout: Layout) -> None:
        self.sets = sets = Sets(layout)
        count, everything = layout.gpus, (1 << layout.gpus) - 1
        self._best = np.array([_best_inside(sets, k, sets.quality) for k in range(count + 1)])
        worth = np.zeros_like(sets.masks)
        for k in (1 << power for power in range(count.bit_length())):
            worth += np.maximum(self._best[k], 0)
        self._worth: Table = worth
        ideal = np.array([max(sets.mbps_of(int(best[everything])), 1) for best in self._best])[:, None]
        mbps = np.array([sets.mbps_of(best) for best in self._best])
        permille = np.where(np.arange(count + 1)[:, None] < 2, PERMILLE, PERMILLE * mbps // ideal)
        self.closeness: NDArray[np.int16] = np.where(self._best == _NOTHING, -1, permille).astype(np.int16)
        linked = sets.nvlinked.astype(np.int64)
        self.nvlinked: NDArray[np.bool_] = np.array([_best_inside(sets, k, linked) == 1 for k in range(count + 1)])
        self._chosen: dict[tuple[int, int], int] = {}

    def choose(self, free: int, count: int) -> int:
        """The bits of the best `count` of the free GPUs; all free ones where they do not suffice."""
        if free.bit_count() <= count:
            return free
        chosen = self._chosen.get((free, count))
        if chosen is None:
            chosen = self._chosen[free, count] = self._search(free, count)
        return chosen

    def _search(self, free: int, count: int) -> int:
        sets = self.sets
        candidates = sets.masks[(sets.size == count) & (sets.masks & ~free == 0)]
        candidates = candidates[sets.quality[candidates] == self._best[count, free]]
        # argmax takes the first of equals, and masks ascend: the lowest numbers.
        return int(candidates[self._worth[free ^ candidates].argmax()])


def _best_inside(sets: Sets, size: int, value: Table) -> Table:
    """For each set, the highest value of those of its subsets that have this size; -1 where it has none."""
    best = np.where(sets.size == size, value, _NOTHING)
    for gpu in range(sets.layout.gpus):
        # Subsets differ from their superset in some GPUs: leave one out after the other.
        with_gpu = sets.masks[sets.masks >> gpu & 1 == 1]
        best[with_gpu] = np.maximum(best[with_gpu], best[with_gpu ^ 1 << gpu])
    return best


@lru_cache(maxsize=256)
def choices(layout: Layout) -> Choices:
    """The table of a layout. Raises ValueError for more GPUs than `bandwidth.MAX_GPUS`."""
    return Choices(layout)
