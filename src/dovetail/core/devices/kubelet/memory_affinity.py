# SPDX-License-Identifier: Apache-2.0
"""The NUMA affinity of memory: which sets of NUMA nodes can provide it, the hints for them, and the set that does.

A container gets its memory from one NUMA node or from a group of nodes. A node belongs to one group at a time: once
memory of it is in a group, no other group can use the node, nor can it be used alone, until the last of that memory is
released.

(pkg/kubelet/cm/memorymanager/policy_static.go of Kubernetes v1.27 to v1.37.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from dovetail.core.devices.kubelet.hints import Hint, Hints, narrowness
from dovetail.core.devices.kubelet.holdings import Holdings, MemoryNode, unexpected
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.memory_nodes import MemoryNodes
from dovetail.core.devices.kubelet.memory_requests import Sizes
from dovetail.core.devices.kubelet.subsets import remembered, subsets_of

NO_DEFAULT = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
DEFAULT_NOT_PREFERRED = "[memorymanager] failed to find the default preferred hint"
NOT_EXTENDED = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
EXTENDED_NOT_PREFERRED = "[memorymanager] failed to find the extended preferred hint"
VIOLATES_GROUPS = "[memorymanager] preferred hint violates NUMA node allocation"

Wants = tuple[tuple[int, int], ...]
"""Bytes by the index of their type in `Inventory.memory_types`."""
Reusable = Mapping[tuple[int, str], int]
"""Bytes by mask and type."""


class MemoryAffinity:
    """Hints, and the set of NUMA nodes for a request, on the NUMA nodes of one inventory."""

    __slots__ = ("_allocatable", "_memory_nodes", "_minor", "_numa", "_offers", "_open", "_subsets", "_types")

    def __init__(self, inventory: Inventory, memory_nodes: MemoryNodes) -> None:
        self._minor = inventory.minor
        self._numa = inventory.numa
        self._memory_nodes = memory_nodes
        self._types = memory_nodes.types
        self._subsets = subsets_of(inventory.numa)
        nodes = Holdings.of_empty(inventory).memory
        self._allocatable = tuple(
            tuple(self._subsets.sums([node.free_bytes[i] for node in nodes])) for i in self._types.values()
        )
        self._open = lru_cache(remembered(inventory.numa))(self._open_to)
        self._offers = lru_cache(remembered(inventory.numa))(self._offers_of)

    def knows(self, sizes: Sizes) -> bool:
        """Whether memory is requested, and only of types that the node has."""
        return bool(sizes) and self._types.keys() >= sizes.keys()

    def wants(self, sizes: Sizes) -> Wants:
        """The requests by index in `memory_types`; the node must have all their types."""
        return tuple([(self._types[name], size) for name, size in sizes.items()])

    def suffices(self, nodes: tuple[MemoryNode, ...], wants: Wants) -> int:
        """The sets of NUMA nodes that have so much memory and no node that is in a group with others, as bits. They
        determine the hints of a single container."""
        found = self._open(_groups(nodes))
        for i, size in wants:
            own = [node.free_bytes[i] for node in nodes]
            bit, sums = 1, [0]
            for rest, at in self._subsets.steps:
                free = sums[rest] + own[at]
                sums.append(free)
                if free < size:
                    found &= ~bit
                bit <<= 1
        return found

    def hints_where(self, enough: int, sizes: Sizes) -> Hints:
        """The hints of a single container, by the result of `suffices`."""
        offers = enumerate(self._offers(tuple(sizes.items())))
        found = [hint for i, hint in offers if hint is not None and enough >> i & 1]
        return dict.fromkeys(sizes, found) if found else {}

    def _open_to(self, groups: tuple[int, ...]) -> int:
        """The sets of NUMA nodes without a node that is in a group with others, as bits. `groups` has the group of each
        node, 0 for none."""
        busy, members = 0, dict[int, int]()
        for numa, group in zip(self._numa, groups, strict=True):
            if group:
                busy |= 1 << numa
                members[group] = members.get(group, 0) | 1 << numa
        masks = enumerate(self._subsets.masks)
        return sum(1 << i for i, mask in masks if not mask & busy & ~members.get(mask, 0))

    def hints(self, nodes: Sequence[MemoryNode], reusable: Reusable, sizes: Sizes) -> Hints:
        """The same hints for every type, or no opinion where there are none (calculateHints)."""
        if not self._types.keys() >= sizes.keys():
            return {name: [] for name in sizes}
        found = self._candidates(nodes, reusable, sizes)
        return dict.fromkeys(sizes, found) if found else {}

    def _candidates(self, nodes: Sequence[MemoryNode], reusable: Reusable, sizes: Sizes) -> list[Hint]:
        """Every set of NUMA nodes with enough free memory of each type and without a node that is in another group.
        Those with as few nodes as the empty machine would need are preferred."""
        masks, offers = self._subsets.masks, self._offers(tuple(sizes.items()))
        for name, size in sizes.items():
            i = self._types[name]
            free = self._subsets.sums([node.free_bytes[i] for node in nodes])
            if reusable:
                free = [n + reusable.get((mask, name), 0) for n, mask in zip(free, masks, strict=True)]
            offers = [hint if n >= size else None for hint, n in zip(offers, free, strict=True)]
        alone = self._open(_groups(nodes))
        return [hint for i, hint in enumerate(offers) if hint is not None and alone >> i & 1]

    def _offers_of(self, sizes: tuple[tuple[str, int], ...]) -> list[Hint | None]:
        """A hint for every set of NUMA nodes that has so much memory of each type when nothing is allocated."""
        totals = [(self._allocatable[self._types[name]], size) for name, size in sizes]
        enough = [all(total[i] >= size for total, size in totals) for i in range(len(self._subsets.masks))]
        least = next((size for size, ok in zip(self._subsets.sizes, enough, strict=True) if ok), len(self._numa))
        some = zip(self._subsets.hints, self._subsets.sizes, enough, strict=True)
        return [pair[size == least] if ok else None for pair, size, ok in some]

    def chosen(self, nodes: Sequence[MemoryNode], reusable: Reusable, sizes: Sizes, hint: Hint) -> int:
        """The NUMA nodes that will provide the memory. Raises AllocationRefused."""
        for name in sizes:
            if name not in self._types:
                raise unexpected(f"[memorymanager] no NUMA node has {name}: the kubelet would panic")
        if hint.mask is None:
            own = self._candidates(nodes, reusable, sizes) if sizes else []
            if not own:
                raise unexpected(NO_DEFAULT)
            mask, preferred = _best(own)
            if hint.preferred and not preferred:
                raise unexpected(DEFAULT_NOT_PREFERRED)
        else:
            mask, preferred = hint.mask, hint.preferred
        if self._memory_nodes.lacks(self._memory_nodes.of(nodes, mask), sizes):
            own = self._candidates(nodes, reusable, sizes)
            wider = [candidate for candidate in own if (candidate.mask or 0) & mask == mask]
            if not wider:
                raise unexpected(NOT_EXTENDED)
            mask, still_preferred = _best(wider)
            if preferred and not still_preferred:
                raise unexpected(EXTENDED_NOT_PREFERRED)
        # Kubelets before v1.32 did not check again.
        if self._minor >= 32 and mask.bit_count() > 1:
            groups = {node.cells for node in self._memory_nodes.of(nodes, mask) if node.assignments > 0}
            if groups - {mask}:
                raise unexpected(VIOLATES_GROUPS)
        return mask


def _groups(nodes: Iterable[MemoryNode]) -> tuple[int, ...]:
    """The group of each node, 0 for nodes that are not in use."""
    return tuple([node.cells if node.assignments > 0 else 0 for node in nodes])


def _best(hints: Iterable[Hint]) -> tuple[int, bool]:
    """The mask of the best hint, and whether it is preferred (findBestHint). Preferred ones are narrowest anyway."""
    best = min(hints, key=lambda hint: narrowness(hint.mask or 0))
    return best.mask or 0, best.preferred
