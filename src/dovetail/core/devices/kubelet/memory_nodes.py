# SPDX-License-Identifier: Apache-2.0
"""The memory of NUMA nodes: what of it is free, taken and released.

Within a group of nodes the amounts fill the nodes in ascending order, and also leave them in ascending order. A node is
in a group until the last of the memory in it is released.

(pkg/kubelet/cm/memorymanager/policy_static.go of Kubernetes v1.27 to v1.37.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from dovetail.core.devices.kubelet.hints import ids_of
from dovetail.core.devices.kubelet.holdings import Block, Holdings, MemoryNode
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.memory_requests import Sizes
from dovetail.core.devices.kubelet.subsets import remembered


class MemoryNodes:
    """The NUMA nodes of one inventory, and their types of memory. `types` are the indices of `Inventory.memory_types`
    by name."""

    __slots__ = ("_numa", "_positions", "types")

    def __init__(self, inventory: Inventory) -> None:
        self._numa = inventory.numa
        self.types = {name: i for i, name in enumerate(inventory.memory_types)}
        self._positions = lru_cache(remembered(inventory.numa))(self._positions_of)

    def _positions_of(self, mask: int) -> tuple[int, ...]:
        """The indices in `inventory.numa` of the nodes of a mask, by ascending id."""
        return tuple(self._numa.index(numa) for numa in ids_of(mask))

    def lacks(self, nodes: Sequence[MemoryNode], sizes: Sizes) -> bool:
        """Whether these nodes together have less free memory of a type."""
        for name, size in sizes.items():
            i = self.types[name]
            for node in nodes:
                size -= node.free_bytes[i]
            if size > 0:
                return True
        return False

    def of(self, nodes: Sequence[MemoryNode], mask: int) -> list[MemoryNode]:
        """The nodes of a mask, by ascending id."""
        return [nodes[at] for at in self._positions(mask)]

    def fill(self, nodes: list[MemoryNode], mask: int, name: str, size: int) -> None:
        """Take `size` bytes of the type from the nodes of the mask, which become one group."""
        i = self.types[name]
        for at in self._positions(mask):
            node = nodes[at]
            part = min(size, node.free_bytes[i])
            nodes[at] = _moved(node, node.assignments + 1, mask, i, part)
            size -= part

    def give_back(self, holdings: Holdings, blocks: Iterable[Block]) -> None:
        """Release blocks that `fill` has taken."""
        nodes = list(holdings.memory)
        for mask, name, size in blocks:
            i = self.types[name]
            for at in self._positions(mask):
                node = nodes[at]
                left = node.assignments - 1
                part = min(size, node.allocatable_bytes[i] - node.free_bytes[i])
                nodes[at] = _moved(node, left, node.cells if left else 1 << self._numa[at], i, -part)
                size -= part
        holdings.memory = tuple(nodes)


def _moved(node: MemoryNode, assignments: int, cells: int, i: int, size: int) -> MemoryNode:
    """The node after `size` bytes of type `i` are taken."""
    _, _, free, allocatable = node
    return MemoryNode(assignments, cells, (*free[:i], free[i] - size, *free[i + 1 :]), allocatable)
