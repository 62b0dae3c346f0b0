# SPDX-License-Identifier: Apache-2.0
"""The Static policy of the kubelet's Memory Manager: memory and huge pages of chosen NUMA nodes for Guaranteed pods.

A container gets its memory from one NUMA node or from a group of nodes: `memory_affinity` chooses it.

The memory of an init container goes to the containers after it first, if they are on the same nodes, and is released
when the next container starts; a sidecar keeps its own. Pod-level resources: as in `cpus`.

Two answers of the kubelet depend on the order of a Go map and are decided here by container and by name: which
container of a pod releases its memory first (this matters only if a group's node was also used alone), and which type
a message about an empty shared pool names.

(pkg/kubelet/cm/memorymanager/policy_static.go of Kubernetes v1.27 to v1.37. Resizing in place is not predicted.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.core.devices.kubelet.hints import Hint, Hints
from dovetail.core.devices.kubelet.holdings import (
    AllocationRefused,
    Arrival,
    Block,
    HeldResources,
    Holdings,
    MemoryNode,
)
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.memory_affinity import MemoryAffinity, Wants
from dovetail.core.devices.kubelet.memory_nodes import MemoryNodes
from dovetail.core.devices.kubelet.memory_requests import Sizes, requests_of, requests_of_pod, without_shared_memory
from dovetail.core.devices.kubelet.pods import ManagedContainer, ManagedKind, ManagedPod

EMPTY_SHARED_POOL_ERROR = "EmptyPodSharedPoolError"

_new = tuple.__new__
"""The `__new__` of a NamedTuple is written in Python; this one is faster."""


class MemoryManager:
    """Hints and allocates memory. The memory policy of the inventory must be `Static`."""

    __slots__ = ("_alone", "_inventory", "_memory_nodes", "_minor", "affinity")

    def __init__(self, inventory: Inventory) -> None:
        if inventory.memory_policy != "Static":
            raise ValueError(f"memory_policy is {inventory.memory_policy}, not Static")
        self._inventory = inventory
        self._minor = inventory.minor
        self._alone = {1 << numa: at for at, numa in enumerate(inventory.numa)}
        self._memory_nodes = MemoryNodes(inventory)
        self.affinity = MemoryAffinity(inventory, self._memory_nodes)

    def serves(self, pod: ManagedPod, guaranteed: bool) -> bool:
        return guaranteed and not self._inventory.leaves_alone(pod)

    def hints(self, arrival: Arrival, index: int) -> Hints:
        sizes = requests_of(self._inventory, arrival.pod, arrival.pod.containers[index])
        if not arrival.guaranteed or not sizes or self._inventory.leaves_alone(arrival.pod):
            return {}
        held = arrival.held[index].memory
        if held is not None:
            return _hints_again(held, sizes)
        return self.affinity.hints(arrival.holdings.memory, arrival.reusable_memory, sizes)

    def pod_hints(self, arrival: Arrival) -> Hints:
        pod = arrival.pod
        if not arrival.guaranteed or self._inventory.leaves_alone(pod):
            return {}
        sizes = requests_of_pod(self._inventory, pod)
        if self._inventory.manages_whole(pod) and without_shared_memory(self._inventory, pod, sizes):
            return {name: [] for name in sizes}
        if not sizes:
            return {}
        for held in arrival.held:
            if held.memory is not None:
                return _hints_again(held.memory, sizes)
        return self.affinity.hints(arrival.holdings.memory, arrival.reusable_memory, sizes)

    def allocate(self, arrival: Arrival, index: int, hint: Hint) -> None:
        """Raises AllocationRefused."""
        pod, container = arrival.pod, arrival.pod.containers[index]
        if not arrival.guaranteed or self._inventory.leaves_alone(pod):
            return
        sizes = requests_of(self._inventory, pod, container)
        if not sizes and self._minor >= 37:
            return
        blocks = arrival.held[index].memory
        if blocks is not None:
            self._reuse(arrival, container, blocks)
            return
        mask = self.affinity.chosen(arrival.holdings.memory, arrival.reusable_memory, sizes, hint)
        blocks = tuple([Block(mask, name, size) for name, size in sizes.items()])
        nodes = list(arrival.holdings.memory)
        for _, name, size in blocks:
            self._memory_nodes.fill(nodes, mask, name, max(size - arrival.reusable_memory.get((mask, name), 0), 0))
        arrival.holdings.memory = tuple(nodes)
        cpus, _, devices = arrival.held[index]
        arrival.held[index] = HeldResources(cpus, blocks, devices)
        self._reuse(arrival, container, blocks)
        self._shrink_predecessors(arrival, index, blocks)

    def take(self, nodes: tuple[MemoryNode, ...], wants: Wants, hint: Hint) -> tuple[int, tuple[MemoryNode, ...]]:
        """The NUMA nodes of a single container's memory, and all nodes afterwards. Raises AllocationRefused as
        `allocate`."""
        mask = hint.mask or 0
        at = self._alone.get(mask)
        if at is not None:
            # For one node, which is nearly always the case, in fewer steps.
            node, enough = nodes[at], True
            left = list(node.free_bytes)
            for i, size in wants:
                left[i] -= size
                enough = enough and left[i] >= 0
            if enough:
                after = list(nodes)
                after[at] = _new(MemoryNode, (node.assignments + len(wants), mask, tuple(left), node.allocatable_bytes))
                return mask, tuple(after)
        names = tuple(self._memory_nodes.types)
        sizes = {names[i]: size for i, size in wants}
        mask = self.affinity.chosen(nodes, {}, sizes, hint)
        after = list(nodes)
        for name, size in sizes.items():
            self._memory_nodes.fill(after, mask, name, size)
        return mask, tuple(after)

    def allocate_pod(self, arrival: Arrival, hint: Hint) -> None:
        """Raises AllocationRefused."""
        pod = arrival.pod
        if not arrival.guaranteed:
            return
        whole = requests_of_pod(self._inventory, pod)
        empty = without_shared_memory(self._inventory, pod, whole)
        if empty:
            raise AllocationRefused(EMPTY_SHARED_POOL_ERROR, empty)
        mask = self.affinity.chosen(arrival.holdings.memory, arrival.reusable_memory, whole, hint)
        own: dict[int, Sizes] = {}
        of_sidecars: dict[str, int] = {}
        of_apps: dict[str, int] = {}
        for index, container in enumerate(pod.containers):
            sizes = requests_of(self._inventory, pod, container)
            if sizes:
                own[index] = sizes
            elif container.kind is ManagedKind.INIT:
                own[index] = _less(whole, of_sidecars)
            if container.kind is not ManagedKind.INIT:
                taken = of_sidecars if container.kind is ManagedKind.SIDECAR else of_apps
                for name, size in sizes.items():
                    taken[name] = taken.get(name, 0) + size
        shared = _less(_less(whole, of_sidecars), of_apps)
        nodes = list(arrival.holdings.memory)
        for name, size in whole.items():
            self._memory_nodes.fill(nodes, mask, name, size)
        arrival.holdings.memory = tuple(nodes)
        arrival.pod_memory = tuple(Block(mask, name, size) for name, size in whole.items())
        for index, held in enumerate(arrival.held):
            blocks = tuple(Block(mask, name, size) for name, size in own.get(index, shared).items() if size > 0)
            arrival.held[index] = held._replace(memory=blocks)

    def started(self, uid: str, index: int, holdings: Holdings) -> None:
        pod = holdings.pods[uid]
        containers = list(pod.containers)
        for i in range(index):
            blocks = containers[i].memory
            if pod.pod.containers[i].kind is ManagedKind.INIT and blocks is not None:
                containers[i] = containers[i]._replace(memory=None)
                if pod.memory is None:
                    self._memory_nodes.give_back(holdings, blocks)
        holdings.pods[uid] = pod._replace(containers=tuple(containers))

    def release(self, uid: str, holdings: Holdings) -> None:
        pod = holdings.pods[uid]
        if pod.memory is not None:
            self._memory_nodes.give_back(holdings, pod.memory)
            return
        for held in pod.containers:
            self._memory_nodes.give_back(holdings, held.memory or ())

    def _reuse(self, arrival: Arrival, container: ManagedContainer, blocks: Iterable[Block]) -> None:
        """Init containers leave their largest block of a type; the containers after them use it up."""
        for mask, name, size in blocks:
            left = arrival.reusable_memory.get((mask, name), 0)
            if container.kind is ManagedKind.INIT:
                arrival.reusable_memory[mask, name] = max(left, size)
            elif left:
                arrival.reusable_memory[mask, name] = max(left - size, 0)

    def _shrink_predecessors(self, arrival: Arrival, index: int, blocks: Iterable[Block]) -> None:
        """Subtract from init containers' blocks what this container reuses, so that the sum is what the pod holds."""
        for mask, name, size in blocks:
            for i in range(index):
                before = arrival.held[i].memory
                if arrival.pod.containers[i].kind is not ManagedKind.INIT or not before:
                    continue
                shrunk = []
                for block in before:
                    part = min(size, block.size_bytes) if (block.mask, block.type) == (mask, name) else 0
                    shrunk.append(block._replace(size_bytes=block.size_bytes - part))
                    size -= part
                arrival.held[i] = arrival.held[i]._replace(memory=tuple(shrunk))


def _hints_again(blocks: Sequence[Block], sizes: Sizes) -> Hints:
    """Hints for what is held already; no opinion where that differs from the request (regenerateHints)."""
    if len(blocks) != len(sizes) or any(sizes.get(block.type) != block.size_bytes for block in blocks):
        return {}
    return {block.type: [Hint(block.mask, True)] for block in blocks}


def _less(sizes: Sizes, taken: Sizes) -> Sizes:
    return {name: size - taken.get(name, 0) for name, size in sizes.items()}
