# SPDX-License-Identifier: Apache-2.0
"""Requests of memory and huge pages, as the kubelet's Memory Manager counts them: of a container, and of a pod at its
peak. Pod-level resources: as in `cpus`.

(pkg/kubelet/cm/memorymanager/policy_static.go of Kubernetes v1.27 to v1.37.)
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.pods import ManagedContainer, ManagedKind, ManagedPod, Qos, effective, managed

Sizes = Mapping[str, int]
"""Bytes by type."""


def requests_of(inventory: Inventory, pod: ManagedPod, container: ManagedContainer) -> Sizes:
    """The memory requests of the container; 0 bytes of a type count too (getContainerRequestedResources)."""
    if inventory.manages_whole(pod) and container.qos is not Qos.GUARANTEED:
        return {}
    return container.memory_bytes


def requests_of_pod(inventory: Inventory, pod: ManagedPod) -> Sizes:
    """The pod's need at its peak, of the types that an app container requests (getPodRequestedResources)."""
    if inventory.manages_whole(pod) and pod.whole:
        return {name: size for name, size in pod.whole.requests if managed(name) and size > 0}
    requests = [(container.kind, requests_of(inventory, pod, container)) for container in pod.containers]
    apps = {name for kind, sizes in requests if kind is ManagedKind.APP for name in sizes}
    return {name: size for name, size in sorted(effective(requests).items()) if name in apps}


def without_shared_memory(inventory: Inventory, pod: ManagedPod, whole: Sizes) -> str:
    """The fault where a container is left without shared memory, else "" (validatePodScopeResources)."""
    running: dict[str, int] = {}
    sharing = False
    for container in pod.containers:
        sizes = requests_of(inventory, pod, container)
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
