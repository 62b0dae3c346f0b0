# SPDX-License-Identifier: Apache-2.0
"""The static policy of the kubelet's CPU Manager: whole CPUs for containers of Guaranteed pods.

A container gets exclusive CPUs if its pod is Guaranteed and it requests whole CPUs; all others run on the shared set.
Reserved CPUs are never allocated. The CPUs of an init container go to the containers after it first; a sidecar keeps
its own.

A pod with pod-level resources gets none unless the gate PodLevelResourceManagers is on. With it a container qualifies
only if it would be Guaranteed by itself, and in scope `pod` the pod gets one set of CPUs: qualifying containers get
parts of it, and the others share the rest.

(pkg/kubelet/cm/cpumanager/policy_static.go of Kubernetes v1.27 to v1.37. Resizing in place is not predicted.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dovetail.core.devices.kubelet.cpu_assignment import take
from dovetail.core.devices.kubelet.cpu_packed import CpuAssignmentError
from dovetail.core.devices.kubelet.cpu_topology import CpuTopology
from dovetail.core.devices.kubelet.hints import Hint, Hints, ids_of, mask_of
from dovetail.core.devices.kubelet.holdings import AllocationRefused, Arrival, HeldResources, Holdings, unexpected
from dovetail.core.devices.kubelet.inventory import NEWEST_MINOR, Cpu, Inventory, InventoryError
from dovetail.core.devices.kubelet.pods import CPU, ManagedContainer, ManagedKind, ManagedPod, Qos, effective
from dovetail.core.devices.kubelet.subsets import remembered, subsets_of

SMT_ALIGNMENT_ERROR = "SMTAlignmentError"
EMPTY_SHARED_POOL_ERROR = "EmptyPodSharedPoolError"
_REMEMBERED = 4096


def default_reservation(
    cpus: Sequence[Cpu], options: frozenset[str], reserved_milli: int, minor: int = NEWEST_MINOR
) -> frozenset[int]:
    """The CPUs that a kubelet reserves with an amount (kubeReserved + systemReserved) and without reservedSystemCPUs.

    Raises InventoryError where the machine has fewer, or nothing is reserved: the kubelet would not start."""
    count = -(-reserved_milli // 1000)
    topology = CpuTopology(cpus)
    if not 0 < count <= topology.all.bit_count():
        raise InventoryError("reserved_cpus", f"{reserved_milli}m cannot be reserved of {len(cpus)} CPUs")
    try:
        return frozenset(ids_of(take(topology, topology.all, count, options, minor)))
    except CpuAssignmentError as error:
        raise InventoryError("reserved_cpus", f"{reserved_milli}m cannot be reserved: {error}") from None


class Cpus:
    """Hints and allocates CPUs. The CPU policy of the inventory must be `static`."""

    __slots__ = (
        "_aligned",
        "_bits",
        "_inventory",
        "_known",
        "_minor",
        "_offers",
        "_options",
        "_reserved_cores",
        "_sockets_spanned",
        "_spans",
        "_subsets",
        "_topology",
        "_unreserved",
        "_whole_cores",
    )

    def __init__(self, inventory: Inventory) -> None:
        if inventory.cpu_policy != "static":
            raise ValueError(f"cpu_policy is {inventory.cpu_policy}, not static")
        self._inventory = inventory
        self._minor = inventory.minor
        self._options = inventory.cpu_options
        self._whole_cores = "full-pcpus-only" in inventory.cpu_options
        self._topology = topology = CpuTopology(inventory.cpus)
        self._known: dict[tuple[int, int], int] = {}
        """The taken CPUs by available CPUs and number: nodes that differ otherwise repeat the same request."""
        self._unreserved = topology.all & ~mask_of(inventory.reserved_cpus)
        self._reserved_cores = mask_of(
            cpu for core in topology.cores if core & ~self._unreserved for cpu in ids_of(core)
        )
        self._subsets = subsets = subsets_of(tuple(topology.numas))
        self._spans = [self._cpus_in(mask) for mask in subsets.masks]
        self._sockets_spanned = [sum(1 for unit in topology.sockets if unit & span) for span in self._spans]
        self._bits = [(1 << i, span & self._unreserved) for i, span in enumerate(self._spans)]
        self._offers = lru_cache(remembered(subsets.ids))(self._offers_of)
        self._aligned = lru_cache(remembered(subsets.ids))(self._aligned_with)

    def serves(self, pod: ManagedPod, guaranteed: bool) -> bool:
        return guaranteed and not self._inventory.leaves_alone(pod)

    def hints(self, arrival: Arrival, index: int) -> Hints:
        container = arrival.pod.containers[index]
        count = self._exclusive(arrival, container)
        if not count or self._inventory.leaves_alone(arrival.pod):
            return {}
        held = arrival.held[index].cpus
        if held is None:
            return {CPU: self._hints(self._available(arrival), arrival.reusable_cpus, count)}
        return {CPU: self._hints(held, 0, count) if held.bit_count() == count else []}

    def pod_hints(self, arrival: Arrival) -> Hints:
        pod = arrival.pod
        count = self._exclusive_of_pod(arrival)
        if not count or self._inventory.leaves_alone(pod):
            return {}
        if self._inventory.manages_whole(pod) and self._without_shared_cpus(arrival, count):
            return {CPU: []}
        held_by_pod = 0
        for container, held in zip(pod.containers, arrival.held, strict=True):
            if held.cpus is not None:
                if held.cpus.bit_count() != self._exclusive(arrival, container):
                    return {CPU: []}
                held_by_pod |= held.cpus
        if held_by_pod.bit_count() == count:
            return {CPU: self._hints(held_by_pod, 0, count)}
        return {CPU: self._hints(self._available(arrival), arrival.reusable_cpus | held_by_pod, count)}

    def allocate(self, arrival: Arrival, index: int, hint: Hint) -> None:
        """Raises AllocationRefused: SMTAlignmentError, or too few CPUs."""
        container = arrival.pod.containers[index]
        count = self._exclusive(arrival, container)
        if not count or self._inventory.leaves_alone(arrival.pod):
            return
        cpus = arrival.held[index].cpus
        # Before v1.37 a kubelet with full-pcpus-only refused a container that had its CPUs from one without it.
        if cpus is None or self._minor < 37:
            self._check_smt(arrival.holdings.shared_cpus, count)
        if cpus is None:
            cpus = self._allocate(arrival.holdings.shared_cpus, count, hint.mask, arrival.reusable_cpus)
            arrival.holdings.shared_cpus &= ~cpus
            _, memory, devices = arrival.held[index]
            arrival.held[index] = HeldResources(cpus, memory, devices)
        if container.kind is ManagedKind.INIT:
            arrival.reusable_cpus |= cpus
        else:
            arrival.reusable_cpus &= ~cpus

    def suffices(self, shared: int, count: int) -> int:
        """The sets of NUMA nodes that have so many CPUs available, as bits. They determine the hints of a single
        container."""
        found = 0
        for bit, span in self._bits:
            if (shared & span).bit_count() >= count:
                found |= bit
        return found

    def hints_where(self, enough: int, count: int) -> Hints:
        """The hints of a single container, by the result of `suffices`."""
        return {CPU: [hint for i, hint in enumerate(self._offers(count)) if enough >> i & 1]}

    def take(self, shared: int, count: int, hint: Hint) -> int:
        """The CPUs of a single container. Raises AllocationRefused as `allocate`."""
        if self._whole_cores:
            self._check_smt(shared, count)
        return self._allocate(shared, count, hint.mask, 0)

    def allocate_pod(self, arrival: Arrival, hint: Hint) -> None:
        """Raises AllocationRefused: EmptyPodSharedPoolError, SMTAlignmentError, or too few CPUs."""
        count = self._exclusive_of_pod(arrival)
        if not count:
            return
        empty = self._without_shared_cpus(arrival, count)
        if empty:
            raise AllocationRefused(EMPTY_SHARED_POOL_ERROR, empty)
        self._check_smt(arrival.holdings.shared_cpus, count)
        arrival.pod_cpus = whole = self._allocate(arrival.holdings.shared_cpus, count, hint.mask, 0)
        arrival.holdings.shared_cpus &= ~whole
        of_sidecars = 0
        own: dict[int, int] = {}
        app_pool: int | None = None
        for index, container in enumerate(arrival.pod.containers):
            if container.kind is ManagedKind.APP and app_pool is None:
                app_pool = whole & ~of_sidecars
            exclusive = self._exclusive(arrival, container)
            pool = whole & ~of_sidecars if app_pool is None else app_pool
            if exclusive:
                own[index] = self._taken(pool, exclusive)
            elif container.kind is ManagedKind.INIT:
                own[index] = pool
            if container.kind is ManagedKind.SIDECAR:
                of_sidecars |= own.get(index, 0)
            elif app_pool is not None:
                app_pool &= ~own.get(index, 0)
        shared = whole & ~of_sidecars if app_pool is None else app_pool
        for index, held in enumerate(arrival.held):
            arrival.held[index] = held._replace(cpus=own.get(index, shared))

    def started(self, uid: str, index: int, holdings: Holdings) -> None:
        """The CPUs of init containers stay with the pod until it is gone."""

    def release(self, uid: str, holdings: Holdings) -> None:
        pod = holdings.pods[uid]
        if pod.cpus is not None:
            holdings.shared_cpus |= pod.cpus
            return
        for held in pod.containers:
            holdings.shared_cpus |= held.cpus or 0

    def _exclusive(self, arrival: Arrival, container: ManagedContainer) -> int:
        """The number of exclusive CPUs of the container (guaranteedCPUs)."""
        if not arrival.guaranteed or (
            self._inventory.manages_whole(arrival.pod) and container.qos is not Qos.GUARANTEED
        ):
            return 0
        return container.whole_cpus

    def _exclusive_of_pod(self, arrival: Arrival) -> int:
        """The number of CPUs that the pod needs at its peak, whole ones only (podGuaranteedCPUs)."""
        pod = arrival.pod
        if self._inventory.manages_whole(pod):
            whole = pod.whole.request.get(CPU, 0) if pod.whole and arrival.guaranteed else 0
            return 0 if whole % 1000 else whole // 1000
        return effective((c.kind, {CPU: self._exclusive(arrival, c)}) for c in pod.containers).get(CPU, 0)

    def _available(self, arrival: Arrival) -> int:
        return arrival.holdings.shared_cpus & self._unreserved

    def _hints(self, available: int, reusable: int, count: int) -> list[Hint]:
        """All sets of NUMA nodes with `count` CPUs available and all the reusable ones. Those with as few nodes as the
        CPUs would need on the empty machine are preferred (generateCPUTopologyHints)."""
        return [
            hint
            for hint, span in zip(self._offers(count), self._spans, strict=True)
            if (available & span).bit_count() + (reusable & span).bit_count() >= count and not reusable & ~span
        ]

    def _offers_of(self, count: int) -> list[Hint]:
        """A hint for every set of NUMA nodes. The smallest sets that can have so many CPUs are preferred."""
        subsets, numas = self._subsets, len(self._topology.numas)
        enough = zip(subsets.sizes, self._spans, strict=True)
        least = next((size for size, span in enough if span.bit_count() >= count), numas)
        preferred = [size == least for size in subsets.sizes]
        if "align-by-socket" in self._options and (numas_per_socket := numas // len(self._topology.sockets)):
            sockets = -(-least // numas_per_socket)
            preferred = [p or n == sockets for p, n in zip(preferred, self._sockets_spanned, strict=True)]
        return [pair[p] for pair, p in zip(subsets.hints, preferred, strict=True)]

    def _check_smt(self, shared: int, count: int) -> None:
        if not self._whole_cores:
            return
        threads = self._topology.cpus_per_core
        available = (shared & ~self._reserved_cores).bit_count()
        if count % threads:
            text = f"requested {count} cpus not multiple cpus per core = {threads}"
        elif count > available:
            text = (
                f"not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {count}, "
                f"CPUs per core = {threads}"
            )
        else:
            return
        raise AllocationRefused(SMT_ALIGNMENT_ERROR, f"SMT Alignment Error: {text}")

    def _allocate(self, shared: int, count: int, mask: int | None, reusable: int) -> int:
        """CPUs from the NUMA nodes of the mask first, the rest from anywhere (allocateCPUs)."""
        allocatable = (shared & self._unreserved) | reusable
        cpus = 0
        if mask is not None:
            aligned = allocatable & self._aligned(mask)
            cpus = self._taken(aligned, min(count, aligned.bit_count()))
        rest = count - cpus.bit_count()
        return cpus | self._taken(allocatable & ~cpus, rest) if rest else cpus

    def _aligned_with(self, mask: int) -> int:
        cpus = self._cpus_in(mask)
        if "align-by-socket" in self._options:
            return mask_of(cpu for socket in self._topology.sockets if socket & cpus for cpu in ids_of(socket))
        return cpus

    def _cpus_in(self, mask: int) -> int:
        cpus = 0
        for numa, unit in self._topology.numas.items():
            if mask >> numa & 1:
                cpus |= unit
        return cpus

    def _taken(self, available: int, count: int) -> int:
        asked = available, count
        cpus = self._known.get(asked)
        if cpus is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            try:
                cpus = self._known[asked] = take(self._topology, available, count, self._options, self._minor)
            except CpuAssignmentError as error:
                raise unexpected(str(error)) from None
        return cpus

    def _without_shared_cpus(self, arrival: Arrival, count: int) -> str:
        """The fault where a container is left without a shared CPU, else "" (validatePodScopeResources)."""
        running = 0
        sharing = False
        for container in arrival.pod.containers:
            exclusive = self._exclusive(arrival, container)
            if container.kind is not ManagedKind.INIT:
                running += exclusive
                sharing = sharing or not exclusive
            elif not exclusive and running >= count:
                return "pod rejected, pod has shared init containers but no cpus available for them"
        if sharing and running >= count:
            return (
                "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared "
                "containers"
            )
        return ""
