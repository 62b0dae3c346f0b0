# SPDX-License-Identifier: Apache-2.0
"""The Device Manager: hints for devices, and the devices that a container gets.

Rules: for what is preferred, hints count every registered device, healthy and free or not; for what is possible, only
available ones. A device on several NUMA nodes counts for each; one without a node for none. Where the plugin does not
answer GetPreferredAllocation, or with too few devices, the kubelet picks in the order of a Go map: then the lowest
positions are taken here, and the arrival is no longer `certain`. (devicemanager/topology_hints.go and manager.go of
Kubernetes v1.37.)

Not predicted: devices that DRA allocates under an extended resource name, and plugins whose calls fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from dovetail.core.devices.kubelet.hints import Hint, Hints, ids_of, mask_of, masks_over
from dovetail.core.devices.kubelet.holdings import AllocationRefused, Arrival, HeldResources, Holdings, unexpected
from dovetail.core.devices.kubelet.inventory import DevicePool, Inventory
from dovetail.core.devices.kubelet.pods import ManagedKind, ManagedPod, effective
from dovetail.core.devices.kubelet.subsets import remembered

Preference = Callable[[str, int, int, int], int]
"""A plugin's GetPreferredAllocation: `size` devices of a resource out of `available`, with all of `must_include`. Sets
of devices are ints as in `Holdings`."""


class DeviceManager:
    """`prefer` answers for the pools whose plugin `prefers`; without it their answers are unknown."""

    def __init__(self, inventory: Inventory, prefer: Preference | None = None) -> None:
        pools = sorted(inventory.devices, key=lambda pool: pool.resource)
        self._pools = {pool.resource: _Pool(pool, inventory) for pool in pools}
        self._prefer = prefer

    def asked(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """The limits of a container or pod for resources of this manager, including zeros."""
        return {resource: amounts[resource] for resource in self._pools if resource in amounts}

    def serves(self, pod: ManagedPod, guaranteed: bool) -> bool:
        return any(self.asked(container.limit) for container in pod.containers)

    def hints(self, arrival: Arrival, index: int) -> Hints:
        wanted = self.asked(arrival.pod.containers[index].limit)
        held = dict(arrival.held[index].devices)
        return {
            resource: self._hints(arrival, resource, count, held, arrival.reusable_devices.get(resource, 0))
            for resource, count in wanted.items()
        }

    def pod_hints(self, arrival: Arrival) -> Hints:
        wanted = self.asked(effective((container.kind, container.limit) for container in arrival.pod.containers))
        held: dict[str, int] = {}
        for one in arrival.held:
            for resource, devices in one.devices:
                held[resource] = held.get(resource, 0) | devices
        return {resource: self._hints(arrival, resource, count, held, 0) for resource, count in wanted.items()}

    def _hints(
        self, arrival: Arrival, resource: str, count: int, held: Mapping[str, int], reusable: int
    ) -> list[Hint] | None:
        pool = self._pools[resource]
        if not pool.aligned:
            return None
        if had := held.get(resource, 0):
            return pool.hints(had, 0, count) if had.bit_count() == count else []
        available = pool.healthy & ~arrival.holdings.devices.get(resource, 0)
        return pool.hints(available, reusable, count) if (available | reusable).bit_count() >= count else []

    def allocate(self, arrival: Arrival, index: int, hint: Hint) -> None:
        """Raises AllocationRefused with the kubelet's message."""
        container = arrival.pod.containers[index]
        for resource, count in self.asked(container.limit).items():
            held = dict(arrival.held[index].devices)
            taken = self._take(arrival, index, resource, count, held.get(resource), hint)
            if taken:
                held[resource] = taken
                cpus, memory, _ = arrival.held[index]
                arrival.held[index] = HeldResources(cpus, memory, tuple(sorted(held.items())))
        for resource, devices in arrival.held[index].devices:
            before = arrival.reusable_devices.get(resource, 0)
            after = before | devices if container.kind is ManagedKind.INIT else before & ~devices
            arrival.reusable_devices[resource] = after

    def _take(self, arrival: Arrival, index: int, resource: str, count: int, held: int | None, hint: Hint) -> int:
        """Allocate what the container needs beyond what it holds: all of `count`, or nothing."""
        pool, name = self._pools[resource], arrival.pod.containers[index].name
        if held is not None and held.bit_count() != count:
            raise unexpected(
                f'pod "{arrival.uid}" container "{name}" changed request for resource "{resource}" '
                f"from {held.bit_count()} to {count}"
            )
        if not pool.healthy:
            raise unexpected(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if held is not None:
            if held & ~pool.healthy:
                raise unexpected(
                    f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
                )
            return 0
        if not count:
            return 0
        in_use = arrival.holdings.devices
        taking = _Taking(arrival, count)
        if not taking.take(arrival.reusable_devices.get(resource, 0)):
            available = pool.healthy & ~in_use.get(resource, 0) & ~taking.taken
            if available.bit_count() < taking.needed:
                raise unexpected(
                    f"requested number of devices unavailable for {resource}. "
                    f"Requested: {taking.needed}, Available: {available.bit_count()}"
                )
            for group in self._groups(pool, taking, available, count, hint):
                if taking.take(group):
                    break
        in_use[resource] = in_use.get(resource, 0) | taking.taken
        return taking.taken

    def _groups(self, pool: _Pool, taking: _Taking, available: int, count: int, hint: Hint) -> Iterator[int]:
        """The devices to try, one group after another; the plugin is called at its turn (devicesToAllocate)."""
        aligned, unaligned, nowhere = pool.split(available, hint)
        if taking.needed < aligned.bit_count():
            yield self._preferred(pool, aligned | taking.taken, taking.taken, count) & aligned
            yield aligned
            return
        yield aligned
        yield self._preferred(pool, available | taking.taken, taking.taken, count) & available
        yield unaligned
        yield nowhere

    def _preferred(self, pool: _Pool, available: int, must_include: int, size: int) -> int:
        if self._prefer is None or not pool.prefers:
            return 0
        return self._prefer(pool.resource, available, must_include, size)

    def allocate_pod(self, arrival: Arrival, hint: Hint) -> None:
        """With managed pod-level resources a pod gets its devices only when its containers start, and is not refused
        for lack of them (GetDeviceRunContainerOptions): until then other pods can take them."""
        for index, container in enumerate(arrival.pod.containers):
            if any(self.asked(container.limit).values()):
                arrival.certain = False
            try:
                self.allocate(arrival, index, hint)
            except AllocationRefused:
                return

    def started(self, uid: str, index: int, holdings: Holdings) -> None:
        """Devices stay with the pod until it ends."""

    def release(self, uid: str, holdings: Holdings) -> None:
        for held in holdings.pods[uid].containers:
            for resource, devices in held.devices:
                # Containers after an init container may hold what it held.
                if left := holdings.devices.pop(resource, 0) & ~devices:
                    holdings.devices[resource] = left


class _Taking:
    """The devices taken so far for one container and resource."""

    def __init__(self, arrival: Arrival, needed: int) -> None:
        self._arrival = arrival
        self.needed = needed
        self.taken = 0

    def take(self, devices: int) -> bool:
        """Take from `devices` until no more are needed. Returns whether that is so now."""
        left = devices & ~self.taken
        if left.bit_count() > self.needed:
            self._arrival.certain = False
            left = mask_of(ids_of(left)[: self.needed])
        self.taken |= left
        self.needed -= left.bit_count()
        return not self.needed


class _Pool:
    """Derived once for the devices of one resource."""

    def __init__(self, pool: DevicePool, inventory: Inventory) -> None:
        self.resource = pool.resource
        self.prefers = pool.prefers
        self.healthy = mask_of(i for i, device in enumerate(pool.devices) if device.healthy)
        self._with_topology = mask_of(i for i, device in enumerate(pool.devices) if device.numa is not None)
        self._on: dict[int, int] = {}
        for i, device in enumerate(pool.devices):
            for numa in device.numa or ():
                self._on[numa] = self._on.get(numa, 0) | 1 << i
        self.aligned = bool(self._on)
        # Since v1.37 only sets of nodes that have such devices get a hint, before that all (kubernetes#138244).
        self._numa = tuple(sorted(self._on)) if inventory.minor >= 37 else inventory.numa
        hinted = self.aligned and inventory.topology_policy not in (None, "none")
        self._masks = masks_over(self._numa) if hinted else ()
        self._touching = [self.touching(mask) for mask in self._masks]
        self._offers = lru_cache(remembered(self._numa))(self._offers_of)

    def touching(self, mask: int) -> int:
        """The devices on at least one node of `mask`."""
        found = 0
        for numa, devices in self._on.items():
            if mask >> numa & 1:
                found |= devices
        return found

    def hints(self, available: int, reusable: int, count: int) -> list[Hint]:
        """generateDeviceTopologyHints. All reusable devices must be on nodes of a mask, or on no node."""
        placed = reusable & self._with_topology
        lacking = count - placed.bit_count()
        return [
            hint
            for hint, devices in zip(self._offers(count), self._touching, strict=True)
            if (available & devices).bit_count() >= lacking and not placed & ~devices
        ]

    def _offers_of(self, count: int) -> list[Hint]:
        """A hint for every set of NUMA nodes. The smallest sets that can have so many devices are preferred."""
        enough = zip(self._masks, self._touching, strict=True)
        sizes = (mask.bit_count() for mask, devices in enough if devices.bit_count() >= count)
        least = min(sizes, default=len(self._numa))
        return [Hint(mask, mask.bit_count() == least) for mask in self._masks]

    def split(self, available: int, hint: Hint) -> tuple[int, int, int]:
        """The available devices in the hint's nodes, in other nodes, and without a node (filterByAffinity)."""
        if hint.mask is None or not self.aligned:
            return 0, 0, available
        aligned = available & self.touching(hint.mask)
        somewhere = available & self.touching(-1)
        return aligned, somewhere & ~aligned, available & ~somewhere
