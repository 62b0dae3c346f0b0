# SPDX-License-Identifier: Apache-2.0
"""The CPUs, memory and devices that the pods of one node hold, and a pod that is being admitted.

All values inside are immutable, so a copy is a few shallow copies, and an undo keeps the old one. CPU sets are ints
with bit i for CPU id i. Device sets are ints with bit i for position i of the inventory's pool.
"""

from __future__ import annotations

from operator import sub
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from dovetail.core.devices.kubelet.hints import Hint, Hints
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.pods import MEMORY, ManagedPod


class Block(NamedTuple):
    """Memory of one type within the nodes of `mask` (memorymanager/state.Block)."""

    mask: int
    type: str
    size_bytes: int


class HeldResources(NamedTuple):
    """What one container holds. None: the manager has no entry for it, which differs from an empty entry."""

    cpus: int | None = None
    memory: tuple[Block, ...] | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """Devices by resource, sorted by its name; a resource without an allocation is missing."""


class PodHeld(NamedTuple):
    """`containers` are parallel to the pod's. `cpus` and `memory` are what the pod holds as a whole, where the kubelet
    manages its pod-level resources; else None."""

    pod: ManagedPod
    containers: tuple[HeldResources, ...]
    cpus: int | None = None
    memory: tuple[Block, ...] | None = None


class MemoryNode(NamedTuple):
    """The Memory Manager's table of one NUMA node. `cells` is the group of the node. `free_bytes`, and
    `allocatable_bytes`, which is free when nothing is allocated, are parallel to the inventory's `memory_types`."""

    assignments: int
    cells: int
    free_bytes: tuple[int, ...]
    allocatable_bytes: tuple[int, ...]

    @property
    def taken_bytes(self) -> tuple[int, ...]:
        return tuple(map(sub, self.allocatable_bytes, self.free_bytes))


class Holdings:
    """`shared_cpus` is the default set of the static CPU policy, including reserved CPUs unless they are strictly
    reserved. `memory` is parallel to the inventory's `numa`. `devices` are all that are held, by resource."""

    __slots__ = ("devices", "memory", "pods", "shared_cpus")

    def __init__(
        self, shared_cpus: int, memory: tuple[MemoryNode, ...], devices: dict[str, int], pods: dict[str, PodHeld]
    ) -> None:
        self.shared_cpus = shared_cpus
        self.memory = memory
        self.devices = devices
        self.pods = pods

    @staticmethod
    def of_empty(inventory: Inventory) -> Holdings:
        """The holdings of an empty node."""
        shared = 0
        for cpu in inventory.cpus:
            shared |= 1 << cpu.id
        if inventory.has_option("strict-cpu-reservation"):
            for cpu_id in inventory.reserved_cpus:
                shared &= ~(1 << cpu_id)
        pools = {(pool.numa, pool.type): pool for pool in inventory.memory}
        nodes = []
        for numa in inventory.numa:
            huge = sum(pool.total_bytes for pool in inventory.memory if pool.numa == numa and pool.type != MEMORY)
            free = tuple(
                pool.total_bytes - pool.reserved_bytes - (huge if kind == MEMORY else 0)
                if (pool := pools.get((numa, kind)))
                else 0
                for kind in inventory.memory_types
            )
            nodes.append(MemoryNode(0, 1 << numa, free, free))
        return Holdings(shared, tuple(nodes), {}, {})

    def copy(self) -> Holdings:
        return Holdings(self.shared_cpus, self.memory, dict(self.devices), dict(self.pods))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Holdings):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


class AllocationRefused(Exception):
    """A manager cannot allocate the request: the kubelet's own reason and message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


def unexpected(error: str) -> AllocationRefused:
    """An error without a reason of its own (admission/errors.go)."""
    return AllocationRefused("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


class Arrival(Struct):
    """A pod that is being admitted. The managers write to `holdings` what the node no longer has, and to `held`,
    parallel to the pod's containers, which container holds it; both are read only once the pod is admitted or refused.

    It also has what init containers have left for the containers after them: that is gone once the pod is admitted."""

    uid: str
    pod: ManagedPod
    guaranteed: bool
    holdings: Holdings
    held: list[HeldResources]
    pod_cpus: int | None = None
    pod_memory: tuple[Block, ...] | None = None
    reusable_cpus: int = 0
    reusable_memory: dict[tuple[int, str], int] = field(default_factory=dict)
    """Bytes by mask and type."""
    reusable_devices: dict[str, int] = field(default_factory=dict)
    certain: bool = True
    """False once a choice was made that the kubelet makes at random."""


class Provider(Protocol):
    """A manager that gives hints and allocates. It is made from an inventory and keeps no state of its own.

    `index` is the container's in `arrival.pod.containers`. `hint` is the decision of the Topology Manager. A container
    that already holds something (`arrival.held`) gets hints for that, as after a restart of the kubelet."""

    def serves(self, pod: ManagedPod, guaranteed: bool) -> bool:
        """Whether the manager has a part in such a pod. For any other pod it is not called, which equals no opinion."""
        ...

    def hints(self, arrival: Arrival, index: int) -> Hints: ...

    def pod_hints(self, arrival: Arrival) -> Hints: ...

    def allocate(self, arrival: Arrival, index: int, hint: Hint) -> None:
        """Raises AllocationRefused. Earlier entries stay: the kubelet frees them only when it removes the pod."""
        ...

    def allocate_pod(self, arrival: Arrival, hint: Hint) -> None:
        """Allocate for a pod with pod-level resources in scope `pod`, where the kubelet manages them. Raises
        AllocationRefused."""
        ...

    def started(self, uid: str, index: int, holdings: Holdings) -> None:
        """The runtime has started a container: its predecessors may release what they hold."""
        ...

    def release(self, uid: str, holdings: Holdings) -> None:
        """Release what the pod holds; it is still in `holdings.pods`."""
        ...
