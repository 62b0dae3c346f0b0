# SPDX-License-Identifier: Apache-2.0
"""Whether a node's kubelet will let a pod in, and what its containers then hold.

Rules: the managers are asked in the kubelet's order: devices, CPUs, memory. In scope `container` each container is
decided and served before the next is asked; in scope `pod` one decision holds for all. Only then the kubelet looks
whether the pod's requests fit at all, so a pod that fits nowhere is refused by its topology first. What a refused pod
had been given is given back as the kubelet gives it back. A policy that is not known makes the verdict unknown if it
could matter. (topologymanager/scope*.go, lifecycle/predicate.go, the order of handlers in kubelet.go of Kubernetes
v1.37.)

Not predicted: preemption for critical pods, node affinity, ports and taints (the scheduler's own rules cover them), and
handlers that know nothing of resources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from dovetail.core.devices.kubelet.cpus import Cpus
from dovetail.core.devices.kubelet.devices import DeviceManager, Preference
from dovetail.core.devices.kubelet.hints import NO_HINT, Hint, Hints
from dovetail.core.devices.kubelet.holdings import (
    AllocationRefused,
    Arrival,
    HeldResources,
    Holdings,
    PodHeld,
    Provider,
)
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.memory import MemoryManager
from dovetail.core.devices.kubelet.pods import CPU, MEMORY, ManagedKind, ManagedPod, Qos, managed
from dovetail.core.devices.kubelet.shortcut import Shortcut, ShortcutAnswer
from dovetail.core.devices.kubelet.topology import TopologyManager

TOPOLOGY_AFFINITY = "TopologyAffinityError"
_NO_LOCALITY = "Resources cannot be allocated with Topology locality"
_POD_LEVEL = "Pod Scope pod with pod-level resources failed admission "
_POD_LEVEL_CONTAINER = _POD_LEVEL + "with a container-level topology manager"
_POD_LEVEL_POD = _POD_LEVEL + "under pod-scope topology manager"

EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"


class AdmissionRoom(Struct, frozen=True):
    """What the node allows for pods and what the other pods on it request, by resource: `pods` too, `cpu` in
    millicores, `memory` in bytes."""

    allocatable: Mapping[str, int]
    requested: Mapping[str, int]


class AdmissionVerdict(NamedTuple):
    """`admitted` None: it cannot be said, `message` says why. Else `reason` and `message` are the kubelet's, empty
    where it admits. `holdings` are those after it. `certain`: nothing was chosen that the kubelet chooses at random."""

    admitted: bool | None
    reason: str
    message: str
    holdings: Holdings
    certain: bool = True


_NOTHING = HeldResources()
NEW = "\0"
"""Stands for the uid of a pod that is not there yet."""


class _View(NamedTuple):
    """What the managers see in a pod, whoever else is there. `unknown` is why nothing can be said, else ""."""

    guaranteed: bool
    unknown: str
    providers: Sequence[Provider]
    shortcut: Shortcut | None


class Kubelet:
    """One for all nodes that share an inventory: it keeps nothing of any of them."""

    def __init__(self, inventory: Inventory, prefer: Preference | None = None) -> None:
        self.inventory = inventory
        self.devices = DeviceManager(inventory, prefer)
        self._providers: list[Provider] = [self.devices]
        if inventory.cpu_policy == "static":
            self._providers.append(Cpus(inventory))
        if inventory.memory_policy == "Static":
            self._providers.append(MemoryManager(inventory))
        merges = inventory.topology_policy not in (None, "none")
        self._topology = TopologyManager(inventory) if merges else None
        self._view = lru_cache(1024)(self._view_of)

    def admit(
        self, holdings: Holdings, uid: str, pod: ManagedPod, room: AdmissionRoom | None = None
    ) -> AdmissionVerdict:
        """`holdings` stays as it is. Without `room` it is not asked whether the requests fit the node."""
        view = self._view(pod)
        if view.unknown:
            return AdmissionVerdict(None, "", view.unknown, holdings, False)
        before = holdings.pods.get(uid)
        held = list(before.containers) if before else [_NOTHING] * len(pod.containers)
        arrival = Arrival(uid, pod, view.guaranteed, holdings.copy(), held)
        if before:
            arrival.pod_cpus, arrival.pod_memory = before.cpus, before.memory
        refused: AllocationRefused | None = None
        try:
            self._allocate(arrival, view.providers)
            if room is not None:
                self._fit(arrival, room)
        except AllocationRefused as error:
            refused = error
        after = arrival.holdings
        after.pods[uid] = PodHeld(pod, tuple(arrival.held), arrival.pod_cpus, arrival.pod_memory)
        if refused is None:
            return AdmissionVerdict(True, "", "", after, arrival.certain)
        return AdmissionVerdict(False, refused.reason, refused.message, self._released(after, uid), arrival.certain)

    def shortcut(self, pod: ManagedPod) -> Shortcut | None:
        """The short way in for pods like this one that nobody has heard of; None where they have to be `admit`ted."""
        return self._view(pod).shortcut

    def started(self, holdings: Holdings, uid: str, index: int) -> Holdings:
        """After the runtime has started the container at `index` of a pod that was admitted."""
        after = holdings.copy()
        for provider in self._providers:
            provider.started(uid, index, after)
        return after

    def release(self, holdings: Holdings, uid: str) -> Holdings:
        """After a pod has ended. The kubelet gives its things back before it next gives out any."""
        return self._released(holdings.copy(), uid)

    def _released(self, holdings: Holdings, uid: str) -> Holdings:
        for provider in self._providers:
            provider.release(uid, holdings)
        del holdings.pods[uid]
        return holdings

    def _view_of(self, pod: ManagedPod) -> _View:
        gates = self.inventory.gates
        qos = pod.qos(gates.pod_level_resources, gates.pod_level_resources_fix_kubelet_qos_class)
        guaranteed = qos is Qos.GUARANTEED
        providers = [provider for provider in self._providers if provider.serves(pod, guaranteed)]
        unknown = self._unknown(pod, guaranteed)
        shortcut = None if unknown else self._shortcut(pod, guaranteed, providers)
        return _View(guaranteed, unknown, providers, shortcut)

    def _shortcut(self, pod: ManagedPod, guaranteed: bool, providers: Sequence[Provider]) -> Shortcut | None:
        """None for a pod that has to go the long way."""
        container = pod.containers[0]
        if len(pod.containers) > 1 or container.kind is not ManagedKind.APP or pod.has_pod_level:
            return None
        cpus = next((one for one in providers if isinstance(one, Cpus) and container.whole_cpus), None)
        memory = next((one for one in providers if isinstance(one, MemoryManager)), None)
        if memory is not None and not memory.knows(container.memory_bytes):
            return None

        def decide(holdings: Holdings, enough_cpus: int, enough_memory: int) -> ShortcutAnswer | None:
            arrival = Arrival(NEW, pod, guaranteed, holdings, [_NOTHING])
            hint: Hint | None = NO_HINT
            if self._topology is not None:
                given: list[Hints] = []
                for provider in providers:
                    if cpus is not None and provider is cpus:
                        given.append(cpus.hints_where(enough_cpus, container.whole_cpus))
                    elif memory is not None and provider is memory:
                        given.append(memory.hints_where(enough_memory, container.memory_bytes))
                    else:
                        given.append(provider.hints(arrival, 0))
                hint = self._topology.admit(given)
            if hint is None:
                return None
            try:
                self.devices.allocate(arrival, 0, hint)
            except AllocationRefused:
                return None
            in_use = tuple(sorted(arrival.holdings.devices.items()))
            return ShortcutAnswer(hint, arrival.held[0].devices, in_use, arrival.certain)

        return Shortcut(pod, cpus, memory, self.devices in providers, decide)

    def _unknown(self, pod: ManagedPod, guaranteed: bool) -> str:
        inventory = self.inventory
        pins = guaranteed and (not pod.has_pod_level or inventory.gates.pod_level_resource_managers)
        if pins and inventory.cpu_policy is None:
            return "the CPU Manager's policy is not known"
        if pins and inventory.memory_policy is None:
            return "the Memory Manager's policy is not known"
        if inventory.topology_policy is None and (pins or self.devices.serves(pod, guaranteed)):
            return "the Topology Manager's policy is not known"
        return ""

    def _allocate(self, arrival: Arrival, providers: Sequence[Provider]) -> None:
        pod_level = arrival.pod.has_pod_level and self.inventory.gates.pod_level_resource_managers
        everyone = range(len(arrival.pod.containers))
        if self._topology is None:
            for index in everyone:
                _serve(providers, arrival, index, NO_HINT)
        elif self.inventory.scope == "container":
            for index in everyone:
                hint = self._topology.admit([provider.hints(arrival, index) for provider in providers])
                if hint is None:
                    raise AllocationRefused(TOPOLOGY_AFFINITY, _POD_LEVEL_CONTAINER if pod_level else _NO_LOCALITY)
                _serve(providers, arrival, index, hint)
        else:
            hint = self._topology.admit([provider.pod_hints(arrival) for provider in providers])
            if hint is None:
                raise AllocationRefused(TOPOLOGY_AFFINITY, _POD_LEVEL_POD if pod_level else _NO_LOCALITY)
            if pod_level:
                for provider in providers:
                    provider.allocate_pod(arrival, hint)
                return
            for index in everyone:
                _serve(providers, arrival, index, hint)

    def _fit(self, arrival: Arrival, room: AdmissionRoom) -> None:
        """NodeResourcesFit as the kubelet asks it again: extended resources that the node does not have are left out,
        and what the managers have handed out is never more than the node has."""
        requests = arrival.pod.total_requests(self.inventory.gates.pod_level_resources)
        allocatable = dict(room.allocatable)
        if any(held.devices for held in arrival.held):
            for resource, devices in arrival.holdings.devices.items():
                allocatable[resource] = max(allocatable.get(resource, 0), devices.bit_count())
        first = (PODS, CPU, MEMORY, EPHEMERAL_STORAGE)
        asked = {PODS: 1} | {name: requests[name] for name in first if name in requests}
        others = sorted(name for name in requests if name not in first)
        asked |= {name: requests[name] for name in others if name in allocatable or managed(name)}
        for name, value in asked.items():
            used, capacity = room.requested.get(name, 0), allocatable.get(name, 0)
            if value > 0 and value > capacity - used:
                raise AllocationRefused(
                    f"OutOf{name}",
                    f"Node didn't have enough resource: {name}, requested: {value}, used: {used}, capacity: {capacity}",
                )


def _serve(providers: Sequence[Provider], arrival: Arrival, index: int, hint: Hint) -> None:
    for provider in providers:
        provider.allocate(arrival, index, hint)
