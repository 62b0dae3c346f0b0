# SPDX-License-Identifier: Apache-2.0
"""The Static policy of the kubelet's Memory Manager: memory and huge pages of chosen NUMA nodes for Guaranteed pods.

A container gets its memory from one NUMA node or from a group of nodes. A node belongs to one group at a time: once
memory of it is in a group, no other group can use the node, nor can it be used alone, until the last of that memory is
released. Within a group the amounts fill the nodes in ascending order, and also leave them in ascending order.

The memory of an init container goes to the containers after it first, if they are on the same nodes, and is released
when the next container starts; a sidecar keeps its own. Pod-level resources: as in `cpus`.

Two answers of the kubelet depend on the order of a Go map and are decided here by container and by name: which
container of a pod releases its memory first (this matters only if a group's node was also used alone), and which type
a message about an empty shared pool names.

(pkg/kubelet/cm/memorymanager/policy_static.go of Kubernetes v1.27 to v1.37. Resizing in place is not predicted.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from dovetail.core.devices.kubelet.hints import Hint, Hints, ids_of, narrowness
from dovetail.core.devices.kubelet.holdings import (
    AllocationRefused,
    Arrival,
    Block,
    HeldResources,
    Holdings,
    MemoryNode,
    unexpected,
)
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.pods import ManagedContainer, ManagedKind, ManagedPod, Qos, effective, managed
from dovetail.core.devices.kubelet.subsets import remembered, subsets_of

EMPTY_SHARED_POOL_ERROR = "EmptyPodSharedPoolError"
NO_DEFAULT = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
DEFAULT_NOT_PREFERRED = "[memorymanager] failed to find the default preferred hint"
NOT_EXTENDED = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
EXTENDED_NOT_PREFERRED = "[memorymanager] failed to find the extended preferred hint"
VIOLATES_GROUPS = "[memorymanager] preferred hint violates NUMA node allocation"

Sizes = Mapping[str, int]
"""Bytes by type."""
Wants = tuple[tuple[int, int], ...]
"""Bytes by the index of their type in `Inventory.memory_types`."""
Reusable = Mapping[tuple[int, str], int]
"""Bytes by mask and type."""

_new = tuple.__new__
"""The `__new__` of a NamedTuple is written in Python; this one is faster."""


class MemoryManager:
    """Hints and allocates memory. The memory policy of the inventory must be `Static`."""

    __slots__ = (
        "_allocatable",
        "_alone",
        "_inventory",
        "_minor",
        "_numa",
        "_offers",
        "_open",
        "_positions",
        "_subsets",
        "_types",
    )

    def __init__(self, inventory: Inventory) -> None:
        if inventory.memory_policy != "Static":
            raise ValueError(f"memory_policy is {inventory.memory_policy}, not Static")
        self._inventory = inventory
        self._minor = inventory.minor
        self._numa = inventory.numa
        self._types = {name: i for i, name in enumerate(inventory.memory_types)}
        self._alone = {1 << numa: at for at, numa in enumerate(inventory.numa)}
        self._positions = lru_cache(remembered(inventory.numa))(self._positions_of)
        self._subsets = subsets_of(inventory.numa)
        nodes = Holdings.of_empty(inventory).memory
        self._allocatable = tuple(
            tuple(self._subsets.sums([node.free_bytes[i] for node in nodes])) for i in self._types.values()
        )
        self._open = lru_cache(remembered(inventory.numa))(self._open_to)
        self._offers = lru_cache(remembered(inventory.numa))(self._offers_of)

    def serves(self, pod: ManagedPod, guaranteed: bool) -> bool:
        return guaranteed and not self._inventory.leaves_alone(pod)

    def hints(self, arrival: Arrival, index: int) -> Hints:
        sizes = self._requests(arrival.pod, arrival.pod.containers[index])
        if not arrival.guaranteed or not sizes or self._inventory.leaves_alone(arrival.pod):
            return {}
        held = arrival.held[index].memory
        if held is not None:
            return _hints_again(held, sizes)
        return self._hints(arrival, sizes)

    def pod_hints(self, arrival: Arrival) -> Hints:
        pod = arrival.pod
        if not arrival.guaranteed or self._inventory.leaves_alone(pod):
            return {}
        sizes = self._requests_of_pod(pod)
        if self._inventory.manages_whole(pod) and self._without_shared_memory(pod, sizes):
            return {name: [] for name in sizes}
        if not sizes:
            return {}
        for held in arrival.held:
            if held.memory is not None:
                return _hints_again(held.memory, sizes)
        return self._hints(arrival, sizes)

    def allocate(self, arrival: Arrival, index: int, hint: Hint) -> None:
        """Raises AllocationRefused."""
        pod, container = arrival.pod, arrival.pod.containers[index]
        if not arrival.guaranteed or self._inventory.leaves_alone(pod):
            return
        sizes = self._requests(pod, container)
        if not sizes and self._minor >= 37:
            return
        blocks = arrival.held[index].memory
        if blocks is not None:
            self._reuse(arrival, container, blocks)
            return
        mask = self._affinity(arrival.holdings.memory, arrival.reusable_memory, sizes, hint)
        blocks = tuple([Block(mask, name, size) for name, size in sizes.items()])
        nodes = list(arrival.holdings.memory)
        for _, name, size in blocks:
            self._fill(nodes, mask, name, max(size - arrival.reusable_memory.get((mask, name), 0), 0))
        arrival.holdings.memory = tuple(nodes)
        cpus, _, devices = arrival.held[index]
        arrival.held[index] = HeldResources(cpus, blocks, devices)
        self._reuse(arrival, container, blocks)
        self._shrink_predecessors(arrival, index, blocks)

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
        names = tuple(self._types)
        sizes = {names[i]: size for i, size in wants}
        mask = self._affinity(nodes, {}, sizes, hint)
        after = list(nodes)
        for name, size in sizes.items():
            self._fill(after, mask, name, size)
        return mask, tuple(after)

    def allocate_pod(self, arrival: Arrival, hint: Hint) -> None:
        """Raises AllocationRefused."""
        pod = arrival.pod
        if not arrival.guaranteed:
            return
        whole = self._requests_of_pod(pod)
        empty = self._without_shared_memory(pod, whole)
        if empty:
            raise AllocationRefused(EMPTY_SHARED_POOL_ERROR, empty)
        mask = self._affinity(arrival.holdings.memory, arrival.reusable_memory, whole, hint)
        own: dict[int, Sizes] = {}
        of_sidecars: dict[str, int] = {}
        of_apps: dict[str, int] = {}
        for index, container in enumerate(pod.containers):
            sizes = self._requests(pod, container)
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
            self._fill(nodes, mask, name, size)
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
                    self._give_back(holdings, blocks)
        holdings.pods[uid] = pod._replace(containers=tuple(containers))

    def release(self, uid: str, holdings: Holdings) -> None:
        pod = holdings.pods[uid]
        if pod.memory is not None:
            self._give_back(holdings, pod.memory)
            return
        for held in pod.containers:
            self._give_back(holdings, held.memory or ())

    def _requests(self, pod: ManagedPod, container: ManagedContainer) -> Sizes:
        """The memory requests of the container; 0 bytes of a type count too (getContainerRequestedResources)."""
        if self._inventory.manages_whole(pod) and container.qos is not Qos.GUARANTEED:
            return {}
        return container.memory_bytes

    def _requests_of_pod(self, pod: ManagedPod) -> Sizes:
        """The pod's need at its peak, of the types that an app container requests (getPodRequestedResources)."""
        if self._inventory.manages_whole(pod) and pod.whole:
            return {name: size for name, size in pod.whole.requests if managed(name) and size > 0}
        requests = [(container.kind, self._requests(pod, container)) for container in pod.containers]
        apps = {name for kind, sizes in requests if kind is ManagedKind.APP for name in sizes}
        return {name: size for name, size in sorted(effective(requests).items()) if name in apps}

    def _hints(self, arrival: Arrival, sizes: Sizes) -> Hints:
        """The same hints for every type, or no opinion where there are none (calculateHints)."""
        if not self._types.keys() >= sizes.keys():
            return {name: [] for name in sizes}
        found = self._candidates(arrival.holdings.memory, arrival.reusable_memory, sizes)
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

    def _affinity(self, nodes: Sequence[MemoryNode], reusable: Reusable, sizes: Sizes, hint: Hint) -> int:
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
        if self._lacks(self._of(nodes, mask), sizes):
            own = self._candidates(nodes, reusable, sizes)
            wider = [candidate for candidate in own if (candidate.mask or 0) & mask == mask]
            if not wider:
                raise unexpected(NOT_EXTENDED)
            mask, still_preferred = _best(wider)
            if preferred and not still_preferred:
                raise unexpected(EXTENDED_NOT_PREFERRED)
        # Kubelets before v1.32 did not check again.
        if self._minor >= 32 and mask.bit_count() > 1:
            groups = {node.cells for node in self._of(nodes, mask) if node.assignments > 0}
            if groups - {mask}:
                raise unexpected(VIOLATES_GROUPS)
        return mask

    def _positions_of(self, mask: int) -> tuple[int, ...]:
        """The indices in `inventory.numa` of the nodes of a mask, by ascending id."""
        return tuple(self._numa.index(numa) for numa in ids_of(mask))

    def _lacks(self, nodes: Sequence[MemoryNode], sizes: Sizes) -> bool:
        for name, size in sizes.items():
            i = self._types[name]
            for node in nodes:
                size -= node.free_bytes[i]
            if size > 0:
                return True
        return False

    def _of(self, nodes: Sequence[MemoryNode], mask: int) -> list[MemoryNode]:
        return [nodes[at] for at in self._positions(mask)]

    def _fill(self, nodes: list[MemoryNode], mask: int, name: str, size: int) -> None:
        i = self._types[name]
        for at in self._positions(mask):
            node = nodes[at]
            part = min(size, node.free_bytes[i])
            nodes[at] = _moved(node, node.assignments + 1, mask, i, part)
            size -= part

    def _give_back(self, holdings: Holdings, blocks: Iterable[Block]) -> None:
        nodes = list(holdings.memory)
        for mask, name, size in blocks:
            i = self._types[name]
            for at in self._positions(mask):
                node = nodes[at]
                left = node.assignments - 1
                part = min(size, node.allocatable_bytes[i] - node.free_bytes[i])
                nodes[at] = _moved(node, left, node.cells if left else 1 << self._numa[at], i, -part)
                size -= part
        holdings.memory = tuple(nodes)

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

    def _without_shared_memory(self, pod: ManagedPod, whole: Sizes) -> str:
        """The fault where a container is left without shared memory, else "" (validatePodScopeResources)."""
        running: dict[str, int] = {}
        sharing = False
        for container in pod.containers:
            sizes = self._requests(pod, container)
            if container.kind is not ManagedKind.INIT:
                sharing = sharing or not sizes
                for name, size in sizes.items():
                    running[name] = running.get(name, 0) + size
            elif not sizes:
                for name, size in whole.items():
                    if running.get(name, 0) >= size:
                        return f"pod rejected, pod has shared init containers but no {name} available for them"
        for name, size in whole.items():
            if sharing and running.get(name, 0) >= size:
                return (
                    f"pod rejected, sum of exclusive container {name} requests equals pod budget, leaving no memory "
                    "for shared containers"
                )
        return ""


def _groups(nodes: Iterable[MemoryNode]) -> tuple[int, ...]:
    """The group of each node, 0 for nodes that are not in use."""
    return tuple([node.cells if node.assignments > 0 else 0 for node in nodes])


def _hints_again(blocks: Sequence[Block], sizes: Sizes) -> Hints:
    """Hints for what is held already; no opinion where that differs from the request (regenerateHints)."""
    if len(blocks) != len(sizes) or any(sizes.get(block.type) != block.size_bytes for block in blocks):
        return {}
    return {block.type: [Hint(block.mask, True)] for block in blocks}


def _best(hints: Iterable[Hint]) -> tuple[int, bool]:
    """The mask of the best hint, and whether it is preferred (findBestHint). Preferred ones are narrowest anyway."""
    best = min(hints, key=lambda hint: narrowness(hint.mask or 0))
    return best.mask or 0, best.preferred


def _moved(node: MemoryNode, assignments: int, cells: int, i: int, size: int) -> MemoryNode:
    """The node after `size` bytes of type `i` are taken."""
    _, _, free, allocatable = node
    return MemoryNode(assignments, cells, (*free[:i], free[i] - size, *free[i + 1 :]), allocatable)


def _less(sizes: Sizes, taken: Sizes) -> Sizes:
    return {name: size - taken.get(name, 0) for name, size in sizes.items()}
