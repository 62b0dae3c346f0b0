# SPDX-License-Identifier: Apache-2.0
"""What the kubelet of one node manages, and by which policies and options.

Rules: an inventory names no node and holds no pod, so all nodes of one kind share one. A `Kubelet` reads it once. A
policy that is unknown is None and is never taken for `none`. An inventory with which a kubelet would refuse to start,
or that contradicts itself, cannot be made. (Policies and options: pkg/kubelet/cm of Kubernetes v1.37.)
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property

from msgspec import Struct

from dovetail.core.devices.contradiction import Contradiction
from dovetail.core.devices.kubelet.pods import MEMORY, ManagedPod, managed

OLDEST_MINOR = 27
NEWEST_MINOR = 37
"""The kubelets that this package models, v1.27 to v1.37, including the differences between them."""

TOPOLOGY_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")
CPU_POLICIES = ("none", "static")
MEMORY_POLICIES = ("None", "Static")
CPU_OPTIONS: Mapping[str, int] = {
    "full-pcpus-only": 22,
    "distribute-cpus-across-numa": 23,
    "align-by-socket": 25,
    "distribute-cpus-across-cores": 31,
    "strict-cpu-reservation": 32,
    "prefer-align-cpus-by-uncorecache": 32,
}
"""Options of the static CPU policy, and the minor version of the first kubelet that has them."""
EXCLUSIVE_OPTIONS = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)
"""Pairs with which the kubelet does not start (cpumanager/policy_options.go)."""

MAX_NUMA_ID = 63
LEAST_MAX_ALLOWABLE_NUMA = 8
MAX_ENUMERABLE_NUMA = 16
"""The managers try every set of NUMA nodes. Beyond this many neither a kubelet nor a prediction answers in time."""


class InventoryError(Contradiction):
    """A machine that contradicts itself, or whose kubelet would not start."""


class Gates(Struct, frozen=True):
    """The feature gates that change a decision. Resizing in place is not predicted, so its gates are not here."""

    pod_level_resources: bool = True
    pod_level_resource_managers: bool = False
    pod_level_resources_fix_kubelet_qos_class: bool = True

    @staticmethod
    def of_version(minor: int) -> Gates:
        """The gates of a kubelet without --feature-gates."""
        return Gates(pod_level_resources=minor >= 34, pod_level_resources_fix_kubelet_qos_class=minor >= 37)


class Cpu(Struct, frozen=True):
    """One logical CPU. `core` is the lowest CPU of its core, as the kubelet numbers cores. `uncore` is the id of its L3
    group; where the machine reports none, the socket's, as in the kubelet."""

    id: int
    core: int
    socket: int
    numa: int
    uncore: int


class MemoryPool(Struct, frozen=True):
    """The memory of one type on one NUMA node: `memory` (all of it, including huge pages) or a `hugepages-*` size."""

    numa: int
    type: str
    total_bytes: int
    reserved_bytes: int = 0


class ManagedDevice(Struct, frozen=True):
    """`numa` is None where the plugin sent no topology, () where it sent one without a node."""

    id: str
    numa: tuple[int, ...] | None = None
    healthy: bool = True


class DevicePool(Struct, frozen=True):
    """The devices that a plugin has registered under one resource name. `prefers`: it supports
    GetPreferredAllocation."""

    resource: str
    devices: tuple[ManagedDevice, ...]
    prefers: bool = False


class Inventory(Struct, frozen=True, cache_hash=True, dict=True):
    """`numa` lists the NUMA ids in ascending order. `distances` has a row per node of `numa`; as in the kubelet,
    position i of a row is the distance to NUMA id i. Empty: not known. Raises InventoryError."""

    numa: tuple[int, ...]
    topology_policy: str | None = None
    scope: str = "container"
    prefer_closest_numa: bool = False
    max_allowable_numa: int = LEAST_MAX_ALLOWABLE_NUMA
    cpu_policy: str | None = None
    cpu_options: frozenset[str] = frozenset()
    memory_policy: str | None = None
    distances: tuple[tuple[int, ...], ...] = ()
    cpus: tuple[Cpu, ...] = ()
    reserved_cpus: frozenset[int] = frozenset()
    memory: tuple[MemoryPool, ...] = ()
    devices: tuple[DevicePool, ...] = ()
    minor: int = NEWEST_MINOR
    gates: Gates = Gates()

    def __post_init__(self) -> None:
        if not OLDEST_MINOR <= self.minor <= NEWEST_MINOR:
            raise InventoryError("minor", f"kubelet v1.{self.minor} is not from v1.{OLDEST_MINOR} to v1.{NEWEST_MINOR}")
        self._check_gates()
        self._check_numa()
        self._check_cpus()
        self._check_memory()
        self._check_devices()

    @cached_property
    def memory_types(self) -> tuple[str, ...]:
        return tuple(sorted({pool.type for pool in self.memory}))

    def has_option(self, option: str) -> bool:
        return option in self.cpu_options

    def manages_whole(self, pod: ManagedPod) -> bool:
        """Whether the managers serve the pod's resources as a whole."""
        return self.gates.pod_level_resource_managers and pod.has_pod_level

    def leaves_alone(self, pod: ManagedPod) -> bool:
        """Whether the pod has pod-level resources without a manager for them. From v1.34 on the managers ignore such
        pods if the gate PodLevelResources is on, from v1.36 on always."""
        if not pod.has_pod_level or self.gates.pod_level_resource_managers:
            return False
        return self.minor >= 36 or (self.minor >= 34 and self.gates.pod_level_resources)

    def _check_gates(self) -> None:
        gates = self.gates
        if gates.pod_level_resource_managers and not gates.pod_level_resources:
            raise InventoryError(
                "gates.pod_level_resource_managers", "is on without pod_level_resources, on which it depends"
            )
        if gates.pod_level_resource_managers and self.minor < 36:
            raise InventoryError("gates.pod_level_resource_managers", f"is on, but a kubelet v1.{self.minor} lacks it")

    def _check_numa(self) -> None:
        if not self.numa:
            raise InventoryError("numa", "is empty; a machine without NUMA has the one node 0")
        if list(self.numa) != sorted(set(self.numa)):
            raise InventoryError("numa", f"{list(self.numa)} must be in ascending order, without repetition")
        for numa in (self.numa[0], self.numa[-1]):
            if not 0 <= numa <= MAX_NUMA_ID:
                raise InventoryError("numa", f"{numa} is not from 0 to {MAX_NUMA_ID}")
        _known("topology_policy", self.topology_policy, TOPOLOGY_POLICIES)
        _known("scope", self.scope, SCOPES)
        if self.max_allowable_numa < LEAST_MAX_ALLOWABLE_NUMA:
            raise InventoryError(
                "max_allowable_numa",
                f"{self.max_allowable_numa} is less than {LEAST_MAX_ALLOWABLE_NUMA}, the kubelet's least",
            )
        if self.topology_policy not in (None, "none") and len(self.numa) > self.max_allowable_numa:
            raise InventoryError(
                "numa",
                f"{len(self.numa)} nodes are more than max_allowable_numa {self.max_allowable_numa}; with the policy "
                f"{self.topology_policy} the kubelet would not start",
            )
        if self.distances and len(self.distances) != len(self.numa):
            raise InventoryError("distances", f"has {len(self.distances)} rows for {len(self.numa)} NUMA nodes")
        if self.prefer_closest_numa and self.topology_policy != "none":
            if not self.distances:
                raise InventoryError("distances", "are not known, but prefer_closest_numa needs them")
            for i, row in enumerate(self.distances):
                if len(row) <= self.numa[-1]:
                    raise InventoryError(
                        f"distances[{i}]", f"ends before NUMA id {self.numa[-1]}; a row is indexed by NUMA id"
                    )

    def _check_cpus(self) -> None:
        _known("cpu_policy", self.cpu_policy, CPU_POLICIES)
        for option in sorted(self.cpu_options):
            _known("cpu_options", option, tuple(CPU_OPTIONS))
            if CPU_OPTIONS[option] > self.minor:
                raise InventoryError(
                    "cpu_options", f"{option} came with v1.{CPU_OPTIONS[option]}, the kubelet is v1.{self.minor}"
                )
        if self.cpu_policy == "none" and self.cpu_options:
            raise InventoryError("cpu_options", "the CPU policy none has no options; the kubelet would not start")
        for one, other in EXCLUSIVE_OPTIONS:
            if {one, other} <= self.cpu_options:
                raise InventoryError("cpu_options", f"{one} and {other} cannot be used at the same time")
        place: dict[int, tuple[int, int, int]] = {}
        seen: set[int] = set()
        for i, cpu in enumerate(self.cpus):
            if cpu.id in seen or cpu.id < 0:
                raise InventoryError(f"cpus[{i}].id", f"{cpu.id} is negative or listed twice")
            seen.add(cpu.id)
            self._on_node(f"cpus[{i}].numa", cpu.numa)
            if place.setdefault(cpu.core, (cpu.socket, cpu.numa, cpu.uncore)) != (cpu.socket, cpu.numa, cpu.uncore):
                raise InventoryError(
                    f"cpus[{i}].core", f"core {cpu.core} lies in more than one socket, NUMA node or L3 group"
                )
        for i, cpu in enumerate(self.cpus):
            if cpu.core not in seen or cpu.core > cpu.id:
                raise InventoryError(f"cpus[{i}].core", f"{cpu.core} is not the lowest CPU of the core of CPU {cpu.id}")
        for cpu_id in sorted(self.reserved_cpus - seen):
            raise InventoryError("reserved_cpus", f"the machine has no CPU {cpu_id}")
        if self.cpu_policy != "static":
            return
        if not self.cpus:
            raise InventoryError("cpus", "are not known, but the static CPU policy needs them")
        if not self.reserved_cpus:
            raise InventoryError("reserved_cpus", "is empty; with the static CPU policy the kubelet would not start")
        if "align-by-socket" in self.cpu_options:
            if self.topology_policy == "single-numa-node":
                raise InventoryError("cpu_options", "align-by-socket excludes the topology policy single-numa-node")
            if len({cpu.socket for cpu in self.cpus}) > len({cpu.numa for cpu in self.cpus}):
                raise InventoryError(
                    "cpu_options", "align-by-socket excludes machines with more sockets than NUMA nodes"
                )

    def _check_memory(self) -> None:
        _known("memory_policy", self.memory_policy, MEMORY_POLICIES)
        seen: set[tuple[int, str]] = set()
        huge: dict[int, int] = {}
        for i, pool in enumerate(self.memory):
            where = f"memory[{i}]"
            self._on_node(f"{where}.numa", pool.numa)
            if not managed(pool.type):
                raise InventoryError(f"{where}.type", f"{pool.type!r} is neither memory nor hugepages-<size>")
            if (pool.numa, pool.type) in seen:
                raise InventoryError(where, f"NUMA node {pool.numa} has {pool.type} twice")
            seen.add((pool.numa, pool.type))
            if not 0 <= pool.reserved_bytes <= pool.total_bytes:
                raise InventoryError(
                    f"{where}.reserved_bytes", f"{pool.reserved_bytes} is not from 0 to the total {pool.total_bytes}"
                )
            if pool.type != MEMORY:
                huge[pool.numa] = huge.get(pool.numa, 0) + pool.total_bytes
        for i, pool in enumerate(self.memory):
            if pool.type == MEMORY and pool.reserved_bytes + huge.get(pool.numa, 0) > pool.total_bytes:
                raise InventoryError(
                    f"memory[{i}].total_bytes", f"{pool.total_bytes} is less than what is reserved and in huge pages"
                )
        if self.memory_policy != "Static":
            return
        for numa in self.numa:
            for kind in self.memory_types or (MEMORY,):
                if (numa, kind) not in seen:
                    raise InventoryError(
                        "memory", f"NUMA node {numa} has no {kind}; write a pool of 0 bytes if it is so"
                    )
        if not any(pool.reserved_bytes for pool in self.memory if pool.type == MEMORY):
            raise InventoryError("memory", "none is reserved; with the Static policy the kubelet would not start")
        if len(self.numa) > MAX_ENUMERABLE_NUMA:
            raise InventoryError("numa", f"the Memory Manager would try all sets of {len(self.numa)} nodes without end")

    def _check_devices(self) -> None:
        names = [pool.resource for pool in self.devices]
        for i, pool in enumerate(self.devices):
            if names.index(pool.resource) != i:
                raise InventoryError(f"devices[{i}].resource", f"{pool.resource} is listed twice")
            ids: set[str] = set()
            nodes: set[int] = set()
            for j, device in enumerate(pool.devices):
                where = f"devices[{i}].devices[{j}]"
                if device.id in ids:
                    raise InventoryError(f"{where}.id", f"{device.id!r} is listed twice")
                ids.add(device.id)
                nodes.update(device.numa or ())
                for numa in device.numa or ():
                    self._on_node(f"{where}.numa", numa)
            asked = len(nodes if self.minor >= 37 else self.numa)
            if nodes and asked > MAX_ENUMERABLE_NUMA and self.topology_policy != "none":
                raise InventoryError(
                    f"devices[{i}]", f"the Device Manager would try all sets of {asked} NUMA nodes without end"
                )

    def _on_node(self, field: str, numa: int) -> None:
        if numa not in self.numa:
            raise InventoryError(field, f"NUMA node {numa} is not among {list(self.numa)}")


def _known(field: str, value: str | None, values: tuple[str, ...]) -> None:
    if value is None or value in values:
        return
    near = get_close_matches(value, values, 1, 0.0)[0]
    raise InventoryError(field, f"{value!r} is not known; did you mean {near!r}? The kubelet has {', '.join(values)}")
