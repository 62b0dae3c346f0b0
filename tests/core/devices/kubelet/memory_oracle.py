# SPDX-License-Identifier: Apache-2.0
"""The hints of the Memory Manager by definition: every set of NUMA nodes is examined, node by node, type by type."""

from itertools import combinations

from dovetail.core.devices.kubelet.hints import ids_of, mask_of
from dovetail.core.devices.kubelet.holdings import Holdings
from dovetail.core.devices.kubelet.inventory import Inventory

Described = list[tuple[tuple[int, ...], bool]]


def memory_hints(
    inventory: Inventory, holdings: Holdings, reusable: dict[tuple[int, str], int], sizes: dict[str, int]
) -> Described:
    types = inventory.memory_types
    empty = Holdings.of_empty(inventory).memory
    possible: list[tuple[int, ...]] = []
    available: list[tuple[int, ...]] = []
    for count in range(1, len(inventory.numa) + 1):
        for subset in combinations(range(len(inventory.numa)), count):
            numas = tuple(inventory.numa[i] for i in subset)
            if all(sum(empty[i].free_bytes[types.index(name)] for i in subset) >= sizes[name] for name in sizes):
                possible.append(numas)
                enough = all(
                    sum(holdings.memory[i].free_bytes[types.index(name)] for i in subset)
                    + reusable.get((mask_of(numas), name), 0)
                    >= sizes[name]
                    for name in sizes
                )
                nodes = [holdings.memory[i] for i in subset]
                if count == 1:
                    free_to_join = len(ids_of(nodes[0].cells)) == 1
                else:
                    free_to_join = all(node.assignments == 0 or ids_of(node.cells) == numas for node in nodes)
                if enough and free_to_join:
                    available.append(numas)
    least = min(map(len, possible), default=0)
    return [(numas, len(numas) == least) for numas in available]
