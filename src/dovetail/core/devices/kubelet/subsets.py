# SPDX-License-Identifier: Apache-2.0
"""Sums over every set of NUMA nodes, which the CPU Manager and the Memory Manager need often."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from dovetail.core.devices.kubelet.hints import Hint, masks_over


class Subsets:
    """All non-empty subsets of NUMA ids in the kubelet's order: by size, then lexicographic. `hints[i]` are the two
    hints for `masks[i]`: not preferred and preferred. `steps[i]` is how a sum over `masks[i]` is made: 1 + the index
    of an earlier mask, 0 for none, and the index in `ids` of the other node."""

    __slots__ = ("hints", "ids", "masks", "sizes", "steps")

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids
        self.masks = masks_over(ids)
        self.sizes = tuple(mask.bit_count() for mask in self.masks)
        self.hints = tuple((Hint(mask, False), Hint(mask, True)) for mask in self.masks)
        place = {0: 0} | {mask: i for i, mask in enumerate(self.masks, 1)}
        position = {1 << numa: i for i, numa in enumerate(ids)}
        self.steps = tuple((place[mask & (mask - 1)], position[mask & -mask]) for mask in self.masks)

    def sums(self, values: Sequence[int]) -> list[int]:
        """By subset: the sum of its nodes' values; `values` is parallel to `ids`."""
        sums = [0]
        for rest, node in self.steps:
            sums.append(sums[rest] + values[node])
        return sums[1:]


@cache
def subsets_of(ids: tuple[int, ...]) -> Subsets:
    return Subsets(ids)


def remembered(ids: tuple[int, ...]) -> int:
    """The number of lists of hints over these NUMA nodes to keep: as many as have 65,536 hints."""
    return max(1, 65_536 >> len(ids))
