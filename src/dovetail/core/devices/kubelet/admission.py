# SPDX-License-Identifier: Apache-2.0
"""The kubelet's admission of a pod, and what its containers hold afterwards.

Rules: the managers run in the kubelet's order: devices, CPUs, memory. In scope `container` each container is decided
and allocated before the next; in scope `pod` one decision holds for all. The kubelet checks only then whether the pod's
requests fit at all, so a pod that fits nowhere is refused by its topology first. The allocations of a refused pod are
released as the kubelet releases them. An unknown policy makes the verdict unknown if it could matter.
(topologymanager/scope*.go, lifecycle/predicate.go, the order of handlers in kubelet.go of Kubernetes v1.37.)

Not predicted: preemption for critical pods; node affinity, ports and taints (the scheduler's own filters cover them);
and handlers that do not depend on resources.
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
    """The node's capacity for pods and the requests of the other pods on it, by resource: including `pods`, with `cpu`
    in millicores and `memory` in bytes."""

    allocatable: Mapping[str, int]
    requested: Mapping[str, int]


class AdmissionVerdict(NamedTuple):
    """`admitted` None: unknown, for the reason in `message`. Else `reason` and `message` are the kubelet's, empty where
    it admits. `holdings` are those afterwards. `certain`: no choice was one that the kubelet makes at random."""

    admitted: bool | None
    reason: str
    message: str
    holdings: Holdings
    certain: bool = True


_NOTHING = HeldResources()
NEW = "\0"
"""The uid of a pod that does not exist yet."""


class _View(NamedTuple):
    """A pod as the managers see it, whatever other pods there are. `unknown` is why no answer is possible, else ""."""

    guaranteed: bool
    unknown: str
    providers: Sequence[Provider]
    shortcut: Shortcut | None


class Kubelet:
    """The kubelets of all nodes with one inventory. It keeps no state of a node."""

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
        """Admit a pod; `holdings` is not changed. Without `room` the fit of the requests on the node is not checked."""
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
        """The shortcut for single pods like this one; None where they have to take the full way, `admit`."""
        return self._view(pod).shortcut

    def started(self, holdings: Holdings, uid: str, index: int) -> Holdings:
        """The holdings after the runtime has started the container at `index` of an admitted pod."""
        after = holdings.copy()
        for provider in self._providers:
            provider.started(uid, index, after)
        return after

    def release(self, holdings: Holdings, uid: str) -> Holdings:
        """The holdings after a pod has ended. The kubelet releases them before its next allocation."""
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
        """None for a pod that has to take the full way."""
        container = pod.containers[0]
        if len(pod.containers) > 1 or container.kind is not ManagedKind.APP or pod.has_pod_level:
            return None
        cpus = next((one for one in providers if isinstance(one, Cpus) and container.whole_cpus), None)
        memory = next((one for one in providers if isinstance(one, MemoryManager)), None)
        if memory is not None and not memory.affinity.knows(container.memory_bytes):
            return None

        def decide(holdings: Holdings, enough_cpus: int, enough_memory: int) -> ShortcutAnswer | None:
            arrival = Arrival(NEW, pod, guaranteed, holdings, [_NOTHING])
            hint: Hint | None = NO_HINT
            if self._topology is not None:
                offered: list[Hints] = []
                for provider in providers:
                    if cpus is not None and provider is cpus:
                        offered.append(cpus.hints_where(enough_cpus, container.whole_cpus))
                    elif memory is not None and provider is memory:
                        offered.append(memory.affinity.hints_where(enough_memory, container.memory_bytes))
                    else:
                        offered.append(provider.hints(arrival, 0))
                hint = self._topology.admit(offered)
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
        """The kubelet's own NodeResourcesFit: it leaves out extended resources that the node does not have. What the
        managers have allocated never exceeds the node."""
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
