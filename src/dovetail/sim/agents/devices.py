# SPDX-License-Identifier: Apache-2.0
"""Free devices of nodes, and which of them to take. Devices are numbered from 0, node by node.

Rules: devices for one node come from the node with the fewest free ones that has enough. Others come from such a node
too if there is one, else from the nodes with the most free ones, so that few nodes are broken into.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence


def node_of_devices(nodes: Sequence[int]) -> list[int]:
    """The node of each device."""
    return [node for node, gpus in enumerate(nodes) for _ in range(gpus)]


class FreeDevices:
    """A set of free devices."""

    def __init__(self, nodes: Sequence[int], devices: Iterable[int]) -> None:
        self._node_of = node_of_devices(nodes)
        self._by_node: list[list[int]] = [[] for _ in nodes]
        self.count = 0
        self.add(devices)

    def add(self, devices: Iterable[int]) -> None:
        for device in devices:
            insort(self._by_node[self._node_of[device]], device)
            self.count += 1

    def remove(self, devices: Iterable[int]) -> None:
        """The devices are free, and no longer."""
        for device in devices:
            free = self._by_node[self._node_of[device]]
            del free[bisect_left(free, device)]
            self.count -= 1

    def of_node(self, node: int) -> list[int]:
        return self._by_node[node]

    def most_of_one_node(self) -> int:
        return max(map(len, self._by_node))

    def pick(self, least: int, most: int, *, same_node: bool = False, node: int | None = None) -> tuple[int, ...]:
        """At most `most` devices; none if there are fewer than `least`. `node`: of this one alone. They stay free."""
        if node is not None:
            there = self._by_node[node]
            return tuple(there[:most]) if len(there) >= least else ()
        if same_node:
            most = min(most, self.most_of_one_node())
        count = min(most, self.count)
        if count < max(1, least):
            return ()
        fitting = [free for free in self._by_node if len(free) >= count]
        if fitting:
            return tuple(min(fitting, key=len)[:count])
        found: list[int] = []
        for free in sorted(self._by_node, key=len, reverse=True):
            found += free[: count - len(found)]
        return tuple(found)
