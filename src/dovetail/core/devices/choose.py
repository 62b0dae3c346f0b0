# SPDX-License-Identifier: Apache-2.0
"""The choice of GPUs on a node: for each set of free GPUs and each number of GPUs the best set, in a table.

Rules, in order: the best quality of the set itself (bandwidth, NUMA nodes, PCIe, NICs; for requests near NICs these
come right after the bandwidth); then the most worth of the GPUs that remain; then the lowest numbers. Exact: every set
of free GPUs is compared. Equal layouts and kinds of requests share one table.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail.core.devices.bandwidth import NOTHING, sets_of
from dovetail.core.devices.layout import Layout
from dovetail.core.placing import layout

PERMILLE = layout.PERMILLE


class Choices:
    """The choices for requests that need a ring of NVLinks (`nvlinked`) or not, and prefer GPUs `near_nics` or not.

    `closeness[k, free]` is the bandwidth of the best k of the free GPUs, in thousandths of the best k of all of them;
    -1 where there are no such k."""

    def __init__(self, layout: Layout, nvlinked: bool, near_nics: bool) -> None:
        self.sets = sets = sets_of(layout)
        self._quality = sets.nic_quality if near_nics else sets.quality
        if nvlinked:
            self._quality = np.where(sets.nvlinked, self._quality, NOTHING)
        counts = range(layout.gpus + 1)
        self._best = np.array([sets.best_inside(k, self._quality) for k in counts])
        mbps = np.array([sets.best_inside(k, np.where(self._quality == NOTHING, NOTHING, sets.mbps)) for k in counts])
        ideal = np.maximum(mbps[:, -1:], 1)
        permille = np.where(np.array(counts)[:, None] < 2, PERMILLE, PERMILLE * mbps // ideal)
        self.closeness: NDArray[np.int16] = np.where(self._best == NOTHING, -1, permille).astype(np.int16)
        self._chosen: dict[tuple[int, int], int] = {}

    def choose(self, free: int, count: int) -> int:
        """The bits of the best `count` of the free GPUs; 0 where there are none."""
        chosen = self._chosen.get((free, count))
        if chosen is None:
            chosen = self._chosen[free, count] = self._search(free, count)
        return chosen

    def times(self, free: int, count: int) -> int:
        """How many times `count` GPUs can be chosen, one time after another."""
        times = 0
        while chosen := self.choose(free, count):
            free ^= chosen
            times += 1
        return times

    def _search(self, free: int, count: int) -> int:
        if not 0 < count < len(self._best) or self._best[count, free] == NOTHING:
            return 0
        sets = self.sets
        candidates = sets.masks[(sets.size == count) & (sets.masks & ~free == 0)]
        candidates = candidates[self._quality[candidates] == self._best[count, free]]
        # argmax takes the first of equals, and masks ascend: so the lowest numbers win.
        return int(candidates[sets.worth[free ^ candidates].argmax()])


@lru_cache(maxsize=1024)
def choices(layout: Layout, nvlinked: bool = False, near_nics: bool = False) -> Choices:
    """The table of a layout and a kind of request. Raises ValueError for more GPUs than `layout.MAX_LINKED_GPUS`."""
    return Choices(layout, nvlinked, near_nics)
