# SPDX-License-Identifier: Apache-2.0
"""Who holds which CPUs, memory and devices of one node, and a pod that is on its way in.

Every value inside is immutable, so a copy costs a few shallow copies and undoing means keeping the old one. CPU sets
are ints with bit i for CPU id i. Device sets are ints with bit i for position i of the inventory's pool.
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
    """What one container holds. None: the manager has no entry for it, which is not the same as an empty one."""

    cpus: int | None = None
    memory: tuple[Block, ...] | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """Devices by resource, sorted by its name; a resource of which it never got any is missing."""


class PodHeld(NamedTuple):
    """`containers` are parallel to the pod's. `cpus` and `memory` are what the pod holds as a whole, with pod-level
    resources that the kubelet manages; else None."""

    pod: ManagedPod
    containers: tuple[HeldResources, ...]
    cpus: int | None = None
    memory: tuple[Block, ...] | None = None


class MemoryNode(NamedTuple):
    """The Memory Manager's table of one NUMA node. `cells` is the group that the node belongs to. `free_bytes` and
    `allocatable_bytes`, what is free when nothing is taken, are parallel to the inventory's `memory_types`."""

    assignments: int
    cells: int
    free_bytes: tuple[int, ...]
    allocatable_bytes: tuple[int, ...]

    @property
    def taken_bytes(self) -> tuple[int, ...]:
        return tuple(map(sub, self.allocatable_bytes, self.free_bytes))


class Holdings:
    """`shared_cpus` is the default set of the static CPU policy, what is reserved included unless strictly reserved.
    `memory` is parallel to the inventory's `numa`. `devices` are all that are held, by resource."""

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
        """Nobody holds anything."""
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
    """A manager cannot give what was asked: the kubelet's own reason and message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


def unexpected(error: str) -> AllocationRefused:
    """An error without a reason of its own (admission/errors.go)."""
    return AllocationRefused("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


class Arrival(Struct):
    """A pod on its way in. The managers write to `holdings` what leaves the node's stock, and to `held`, parallel to
    the pod's containers, who holds it; nobody else reads either until the pod is in or out.

    What init containers have left for the containers after them is here too: it is gone when the pod is in."""

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
    """False once something was chosen that the kubelet chooses at random."""


class Provider(Protocol):
    """A manager that gives hints and allocates. It is made from an inventory and keeps no state of its own.

    `index` is the container's in `arrival.pod.containers`. `hint` is what the Topology Manager decided. Who already
    holds something (`arrival.held`) gets hints for what it holds, as after a restart of the kubelet."""

    def serves(self, pod: ManagedPod, guaranteed: bool) -> bool:
        """Whether the manager has anything to do with such a pod. Who is not served is not asked about: that is the
        same as no opinion."""
        ...

    def hints(self, arrival: Arrival, index: int) -> Hints: ...

    def pod_hints(self, arrival: Arrival) -> Hints: ...

    def allocate(self, arrival: Arrival, index: int, hint: Hint) -> None:
        """Raises Refused. What was written before stays written: the kubelet frees it only when it removes the pod."""
        ...

    def allocate_pod(self, arrival: Arrival, hint: Hint) -> None:
        """For a pod with pod-level resources in scope `pod`, where the kubelet manages those. Raises Refused."""
        ...

    def started(self, uid: str, index: int, holdings: Holdings) -> None:
        """The runtime has started a container: what its predecessors held may become free."""
        ...

    def release(self, uid: str, holdings: Holdings) -> None:
        """Gives back what the pod holds; it is still in `holdings.pods`."""
        ...
