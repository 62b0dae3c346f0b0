# SPDX-License-Identifier: Apache-2.0
"""The bandwidth of every set of GPUs of a layout, computed for all sets at once.

Rules: a set is a bit mask over the GPUs. Its bandwidth is that of its best ring: the ring through all its GPUs whose
slowest pair is fastest, since collectives run in rings (NCCL) and are as fast as their slowest hop. Two GPUs are a ring
of one pair. Of sets of equal bandwidth those that span fewer NUMA nodes are better, then those that are closer by PCIe,
then those that are closer to their NICs; for pods that talk to other nodes the NICs come first of these. Exact for up
to MAX_LINKED_GPUS GPUs: all sets are compared.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail.core.devices.layout import MAX_LINKED_GPUS, SYS, UNKNOWN, Layout

NOTHING = -1
_MOST_COST = SYS * MAX_LINKED_GPUS * MAX_LINKED_GPUS // 2
"""More than any cost can be: PCIe levels of all pairs, NIC levels, NUMA nodes."""
_PART_BITS = 12
"""Wide enough to add up the qualities of sets of 1, 2, 4, 8 and 16 GPUs."""
Table = NDArray[np.int64]


class Sets:
    """`mbps[mask]` is the bandwidth, 0 for fewer than two GPUs; `nvlinked[mask]` whether a ring of NVLinks alone
    exists; `size[mask]` the number of GPUs. `quality[mask]` and `nic_quality[mask]` order sets of one size; higher is
    better. `worth[mask]` is the value of a set of free GPUs: the sum of the qualities of the best sets of 1, 2, 4, 8
    ... GPUs inside it. `ideal_mbps[k]` is the highest bandwidth of any k GPUs.

    Raises ValueError for more than MAX_LINKED_GPUS GPUs."""

    def __init__(self, layout: Layout) -> None:
        count = layout.gpus
        if count > MAX_LINKED_GPUS:
            raise ValueError(f"{count} GPUs: sets are computed for up to {MAX_LINKED_GPUS}")
        self.layout = layout
        self.masks: Table = np.arange(1 << count, dtype=np.int64)
        self.size: Table = np.bitwise_count(self.masks).astype(np.int64)
        pairs = np.array([[layout.pair_mbps(i, j) if i != j else 0 for j in range(count)] for i in range(count)])
        self.mbps: Table = np.zeros(1 << count, dtype=np.int64)
        for least in sorted({int(mbps) for mbps in pairs.flat if mbps}):
            self.mbps[self._rings(pairs >= least)] = least
        self.ideal_mbps = [int(self.mbps[self.size == size].max()) for size in range(count + 1)]
        self.nvlinked: NDArray[np.bool_] = self._rings(np.array(layout.nvlinks).reshape(count, count) > 0)
        self.nvlinked |= self.size < 2
        numa, pcie, nic = self._numa_nodes(), self._pcie_distance(), self._nic_distance()
        self.quality = _ordered(self.mbps, numa, pcie, nic)
        self.nic_quality = _ordered(self.mbps, nic, numa, pcie)
        self.worth = np.zeros_like(self.masks)
        for size in (1 << power for power in range(count.bit_length())):
            self.worth += np.maximum(self.best_inside(size, self.quality), 0)

    def best_inside(self, size: int, value: Table) -> Table:
        """For each set, the highest value of its subsets of this size; NOTHING where it has none."""
        best = np.where(self.size == size, value, NOTHING)
        for gpu in range(self.layout.gpus):
            # A subset lacks some GPUs of its superset: leave out one GPU after another.
            with_gpu = self.masks[self.masks >> gpu & 1 == 1]
            best[with_gpu] = np.maximum(best[with_gpu], best[with_gpu ^ 1 << gpu])
        return best

    def _rings(self, linked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The sets that have a ring of linked pairs. `ends` has for each set the GPUs where a path can end that starts
        at its first GPU and visits all of it. A path grows by one GPU at a time; it is a ring if it ends next to its
        start."""
        count = len(linked)
        near = [int(sum(1 << j for j in range(count) if linked[i, j])) for i in range(count)]
        ends = np.zeros(1 << count, dtype=np.int64)
        ends[[1 << i for i in range(count)]] = [1 << i for i in range(count)]
        for size in range(1, count):
            masks = self.masks[self.size == size]
            for gpu in range(1, count):
                # A path grows by GPUs after its first one only, so each set is reached from its own first GPU.
                later = masks[(masks >> gpu & 1 == 0) & (masks & (1 << gpu) - 1 != 0)]
                grown = later[ends[later] & near[gpu] != 0]
                ends[grown | 1 << gpu] |= 1 << gpu
        first = self.masks & -self.masks
        beside_first = np.zeros(1 << count, dtype=np.int64)
        for gpu in range(count):
            beside_first[first == 1 << gpu] = near[gpu]
        rings: NDArray[np.bool_] = (ends & beside_first != 0) & (self.size > 1)
        return rings

    def _numa_nodes(self) -> Table:
        nodes = np.zeros_like(self.masks)
        for node in set(self.layout.numa):
            members = sum(1 << gpu for gpu, own in enumerate(self.layout.numa) if own == node)
            nodes += self.masks & members != 0
        return nodes

    def _pcie_distance(self) -> Table:
        """The sum of the levels of all pairs. An unknown level is derived from the NUMA nodes, as for the bandwidth."""
        layout, total = self.layout, np.zeros_like(self.masks)
        for i in range(layout.gpus):
            for j in range(i):
                total += layout.level(i, j) * (self.masks >> i & self.masks >> j & 1)
        return total

    def _nic_distance(self) -> Table:
        """The sum of the levels of each GPU's nearest NIC."""
        layout, total = self.layout, np.zeros_like(self.masks)
        for gpu in range(layout.gpus if layout.nics else 0):
            levels = [nic.levels[gpu] for nic in layout.nics]
            total += min(SYS + 1 if level == UNKNOWN else level for level in levels) * (self.masks >> gpu & 1)
        return total


def _ordered(mbps: Table, *costs: Table) -> Table:
    """An integer that orders by more bandwidth first, then by less of each cost in turn; some of them can be added."""
    quality = mbps
    for cost in costs:
        quality = (quality << _PART_BITS) + (_MOST_COST - cost)
    return quality


@lru_cache(maxsize=256)
def sets_of(layout: Layout) -> Sets:
    """The sets of a layout; equal layouts share them. Raises ValueError for more than MAX_LINKED_GPUS GPUs."""
    return Sets(layout)
