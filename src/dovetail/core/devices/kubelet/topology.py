# SPDX-License-Identifier: Apache-2.0
"""The Topology Manager: one decision from the hints of all managers.

Upstream tries every combination of one hint per resource: the product of the lists' lengths. Its result depends only on
the masks that come out, preferred or not, so here they are computed without the combinations:

- A combination is preferred if all its hints are and all their masks, as far as they have one, are equal. So the
  preferred masks are those that every list has, or leaves open. If there is one, nothing else is tried.
- Else no combination is preferred, and the results are the intersections of one mask per list. Two lists are combined
  into one by an AND-convolution: sums over supersets, multiplied, and back. That takes n 2^n steps for n NUMA nodes.

The choice among the masks is the closed form of HintMerger.compare. (topologymanager/policy*.go and numa_info.go of
Kubernetes v1.37.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail.core.devices.kubelet.hints import Hint, Hints, ids_of, mask_of, narrowness
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.subsets import remembered

_ANY = (Hint(None, True),)
_NONE = (Hint(None, False),)

Lists = Sequence[Sequence[Hint]]


class TopologyManager:
    """Raises ValueError for an inventory whose policy is unknown or `none`: then there is no merge."""

    def __init__(self, inventory: Inventory) -> None:
        policy = inventory.topology_policy
        if policy in (None, "none"):
            raise ValueError(f"topology policy {policy} merges no hints")
        self.all = mask_of(inventory.numa)
        self.single = policy == "single-numa-node"
        self.admits_all = policy == "best-effort"
        closest = inventory.prefer_closest_numa and not self.single
        self._rows = dict(zip(inventory.numa, inventory.distances, strict=True)) if closest else None
        self._distance: dict[int, int] = {}
        self._decided = lru_cache(remembered(inventory.numa))(self._decide)

    def merge(self, hints: Iterable[Hints]) -> tuple[Hint, bool]:
        """The decision from the hints of all managers, and whether the pod may be admitted."""
        lists = self._read(filtered(hints))
        best = self._preferred(lists)
        if best is not None:
            return best, True
        best = self._second_best(lists)
        if self.single and best.mask == self.all:
            best = Hint(None, False)
        return best, self.admits_all

    def admit(self, hints: Iterable[Hints]) -> Hint | None:
        """As `merge`; None for a pod that may not be admitted, which needs no decision."""
        return self._decided(tuple([tuple(offered) for offered in filtered(hints)]))

    def _decide(self, lists: Lists) -> Hint | None:
        """Kept by lists, since the same lists come often."""
        lists = self._read(lists)
        best = self._preferred(lists)
        return best if best is not None or not self.admits_all else self._second_best(lists)

    def _read(self, lists: Lists) -> Lists:
        """The hints that the policy uses."""
        if self.single:
            return [[hint for hint in offered if hint.preferred and _single(hint.mask)] for offered in lists]
        return lists

    def _preferred(self, lists: Lists) -> Hint | None:
        """The best hint that all lists prefer, None where there is none."""
        preferred = _agreed(self.all, lists)
        if not preferred:
            return None
        mask = min(preferred, key=self._fitness)
        return Hint(None if self.single and mask == self.all else mask, True)

    def _second_best(self, lists: Lists) -> Hint:
        """The best hint where no hint is preferred by all."""
        masks = _intersections(self.all, lists)
        if not masks:
            return Hint(self.all, False)
        # The best is as wide as the most demanding resource needs; else the widest narrower one; else any wider one.
        wanted = max((min(widths) for offered in lists if (widths := _widths(offered))), default=0)
        width = max((count for mask in masks if (count := mask.bit_count()) <= wanted), default=None)
        if width is not None:
            masks = [mask for mask in masks if mask.bit_count() == width]
        return Hint(min(masks, key=self._fitness), False)

    def _fitness(self, mask: int) -> tuple[int, int, int]:
        count, value = narrowness(mask)
        return count, self._total_distance(mask), value

    def _total_distance(self, mask: int) -> int:
        """The sum over all ordered pairs of nodes, including pairs of one node. Upstream compares averages, but only of
        equal numbers of nodes."""
        if self._rows is None:
            return 0
        found = self._distance.get(mask)
        if found is None:
            ids = ids_of(mask)
            found = self._distance[mask] = sum(self._rows[i][j] for i in ids for j in ids)
        return found


def filtered(hints: Iterable[Hints]) -> list[Sequence[Hint]]:
    """One list per manager and resource (filterProvidersHints)."""
    lists: list[Sequence[Hint]] = []
    for offered in hints:
        if not offered:
            lists.append(_ANY)
        for found in offered.values():
            lists.append(_ANY if found is None else found or _NONE)
    return lists


def _single(mask: int | None) -> bool:
    return mask is None or mask.bit_count() == 1


def _widths(hints: Iterable[Hint]) -> list[int]:
    return [hint.mask.bit_count() for hint in hints if hint.mask is not None]


def _agreed(everything: int, lists: Lists) -> set[int]:
    """The non-empty masks of preferred combinations."""
    offers = [{hint.mask for hint in offered if hint.preferred} for offered in lists]
    masks: set[int | None] = {None}
    masks.update(*offers)
    for offer in offers:
        if None not in offer:
            masks &= offer
    return {everything if mask is None else mask & everything for mask in masks} - {0}


def _intersections(everything: int, lists: Lists) -> list[int]:
    """The non-empty intersections of one mask per list."""
    offers = [{everything if hint.mask is None else hint.mask & everything for hint in offered} for offered in lists]
    named = 0
    for mask in set().union(*offers) - {everything}:
        named |= mask
    masks, index = _dense(named, everything)

    def table(offer: set[int]) -> NDArray[np.int64]:
        counts = np.zeros(len(masks), dtype=np.int64)
        counts[[index[mask] for mask in offer]] = 1
        return _over_supersets(counts, np.add)

    total = table({everything})
    for offer in offers:
        total = np.sign(_over_supersets(total * table(offer), np.subtract))
        _over_supersets(total, np.add)
    found = np.flatnonzero(_over_supersets(total, np.subtract))
    return [masks[dense] for dense in found.tolist() if dense]


@cache
def _dense(named: int, everything: int) -> tuple[list[int], dict[int, int]]:
    """The masks numbered without gaps, and back. NUMA nodes that no hint names (a machine can have dozens without CPUs
    and devices) always occur together and are one bit of the number."""
    atoms = [1 << numa for numa in ids_of(named)]
    if everything != named:
        atoms.append(everything & ~named)
    masks = [0]
    for atom in atoms:
        masks += [mask | atom for mask in masks]
    return masks, {mask: dense for dense, mask in enumerate(masks)}


def _over_supersets(counts: NDArray[np.int64], move: np.ufunc) -> NDArray[np.int64]:
    """In place: add to every mask's count (np.add), or subtract again (np.subtract), those of all its supersets."""
    width = 1
    while width < len(counts):
        pairs = counts.reshape(-1, 2, width)
        move(pairs[:, 0], pairs[:, 1], out=pairs[:, 0])
        width *= 2
    return counts
