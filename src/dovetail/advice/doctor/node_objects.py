# SPDX-License-Identifier: Apache-2.0
"""What the doctor takes from nodes and from the objects that describe them: ResourceSlices, GPUNodes and
NodeResourceTopologies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import field

from dovetail.advice.doctor.records import GpuNode, KubeletRecord, NodeRecord
from dovetail.core.quantities import QuantityError, units
from dovetail.kube.nodes.inventories import zones_of
from dovetail.kube.objects.base import ObjectMeta, Quantities, Wire
from dovetail.kube.objects.topology import GPUNode, NodeResourceTopology


class DoctorCondition(Wire, frozen=True):
    """A condition of a node or a pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _NodeStatus(Wire, frozen=True):
    capacity: Quantities = field(default_factory=dict)
    allocatable: Quantities = field(default_factory=dict)
    conditions: tuple[DoctorCondition, ...] = ()


class DoctorNode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _NodeStatus = _NodeStatus()


class _SliceSpec(Wire, frozen=True):
    driver: str = ""
    node_name: str = ""


class DoctorSlice(Wire, frozen=True):
    """A ResourceSlice."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _SliceSpec = _SliceSpec()


def is_gpu(resource: str) -> bool:
    """Whether this is a resource name of NVIDIA's device plugin: whole GPUs, shared GPUs or MIG instances."""
    return resource == "nvidia.com/gpu" or resource.startswith(("nvidia.com/gpu.", "nvidia.com/mig-"))


def nodes_of(objects: Iterable[DoctorNode]) -> tuple[NodeRecord, ...]:
    return tuple(
        NodeRecord(
            one.metadata.name,
            one.metadata.labels or {},
            _gpus(one.status.allocatable),
            _unready(one.status.conditions),
            _gpus(one.status.capacity),
            tuple(
                name for name, value in one.status.allocatable.items() if is_extended(name) and not is_gpu(name)
                if _units(value)
            ),
        )
        for one in objects
    )  # fmt: skip


def is_extended(resource: str) -> bool:
    """Whether this is the name of an extended resource, which only a device plugin offers."""
    return "/" in resource and not resource.startswith("kubernetes.io/")


def _gpus(amounts: Quantities) -> dict[str, int]:
    return {name: _units(value) for name, value in amounts.items() if is_gpu(name)}


def _unready(conditions: Iterable[DoctorCondition]) -> str:
    ready = next((one for one in conditions if one.type == "Ready" and one.status != "True"), None)
    return "" if ready is None else f"{ready.status}, {ready.reason}: {ready.message}"


def _units(value: str | float) -> int:
    try:
        return units(str(value))
    except QuantityError:
        return 0


def drivers_of(objects: Iterable[DoctorSlice]) -> Mapping[str, set[str]]:
    """The nodes of each DRA driver."""
    drivers: dict[str, set[str]] = {}
    for one in objects:
        drivers.setdefault(one.spec.driver, set()).add(one.spec.node_name)
    return drivers


def gpu_nodes_of(objects: Iterable[GPUNode]) -> Mapping[str, GpuNode]:
    """By node."""
    return {one.metadata.name: _gpu_node(one) for one in objects}


def _gpu_node(one: GPUNode) -> GpuNode:
    status = one.status
    driver = next((c for c in status.conditions if c.type == "DriverReady" and c.status == "False"), None)
    mig = status.mig
    kubelet = None
    if status.kubelet is not None:
        numa = tuple(sorted({gpu.numa_node for gpu in status.gpus if gpu.numa_node is not None}))
        devices = [device for plugin in status.kubelet.devices if is_gpu(plugin.resource) for device in plugin.devices]
        kubelet = KubeletRecord(
            f"GPUNode {one.metadata.name}",
            status.kubelet.topology_manager_policy,
            status.kubelet.cpu_manager_policy,
            numa,
            bool(numa and devices) and not any(device.numa_nodes for device in devices),
        )
    return GpuNode(
        "" if driver is None else driver.message or driver.reason or "the agent reports no reason",
        "" if mig is None else mig.state,
        "" if mig is None else mig.message,
        kubelet,
        status.foreign_processes,
        len(status.gpus),
        tuple(f"GPU {gpu.index} ({gpu.uuid})" for gpu in status.gpus if not gpu.healthy),
        any(gpu.mig is not None for gpu in status.gpus),
        status.gpu_direct or (),
    )


def topologies_of(objects: Iterable[NodeResourceTopology]) -> Mapping[str, KubeletRecord]:
    """By node."""
    found = {}
    for one in objects:
        zones, _problems = zones_of(one)
        numa = {number for name, counts in zones.devices if is_gpu(name) for number, count in counts if count}
        source = f"NodeResourceTopology {one.metadata.name}"
        found[one.metadata.name] = KubeletRecord(source, zones.policy, gpu_numa=tuple(sorted(numa)))
    return found
