# SPDX-License-Identifier: Apache-2.0
"""Nodes and GPUNodes, as far as the operator reads them. Source: k8s.io/api core/v1."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field
from msgspec.structs import replace

from dovetail.kube.objects.base import ObjectMeta, Quantities, Wire
from dovetail.kube.objects.topology import (
    AgentState,
    Condition,
    DeviceDifference,
    GPUNodeSpec,
    GpuSharing,
    MigState,
    NodeQuarantine,
    NodeReadiness,
)

_OURS = "dovetail.dev/"


class WatchedNodeInfo(Wire, frozen=True):
    boot_id: str = field(default="", name="bootID")
    operating_system: str = ""


class WatchedNodeSpec(Wire, frozen=True):
    """`taints` as they are written, because they are written back."""

    unschedulable: bool = False
    taints: tuple[dict[str, Any], ...] = ()


class WatchedNodeStatus(Wire, frozen=True):
    allocatable: Quantities = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    node_info: WatchedNodeInfo = WatchedNodeInfo()


class WatchedNode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: WatchedNodeSpec = WatchedNodeSpec()
    status: WatchedNodeStatus = WatchedNodeStatus()

    @property
    def reachable(self) -> bool:
        """Whether its kubelet answers."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)

    @property
    def gpus(self) -> int:
        """The whole GPUs that it offers."""
        amount = str(self.status.allocatable.get("nvidia.com/gpu", 0))
        return int(amount) if amount.isdecimal() else 0


class WatchedGpu(Wire, frozen=True):
    index: int = 0
    uuid: str = ""
    healthy: bool = True


class WatchedGPUNodeStatus(Wire, frozen=True):
    observed_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    driver_version: str = ""
    gpus: tuple[WatchedGpu, ...] = ()
    quarantine: NodeQuarantine | None = None
    sharing: GpuSharing | None = None
    agent: AgentState | None = None
    differences: tuple[DeviceDifference, ...] = ()
    mig: MigState | None = None
    readiness: NodeReadiness | None = None


class WatchedGPUNode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: GPUNodeSpec = GPUNodeSpec()
    status: WatchedGPUNodeStatus = WatchedGPUNodeStatus()


def is_gpu_resource(name: str) -> bool:
    """Whether devices of this resource are GPUs, replicas of them, or MIG instances."""
    return name in ("nvidia.com/gpu", "nvidia.com/gpu.shared") or name.startswith("nvidia.com/mig-")


def content(node: WatchedNode) -> object:
    """What counts of a node: all but its version, which changes with each heartbeat."""
    return node.metadata.labels, node.metadata.annotations, node.metadata.deletion_timestamp, node.spec, node.status


def service_state(gpu_node: WatchedGPUNode) -> object:
    """What decides whether the node is in service, and how it counts."""
    status = gpu_node.status
    return gpu_node.spec.maintenance, status.quarantine, status.readiness, len(status.gpus)


def kept_node(node: WatchedNode) -> WatchedNode:
    """A node with its labels, our annotations, its GPUs, and the condition that counts."""
    meta, status = node.metadata, node.status
    annotations = {key: value for key, value in meta.annotations.items() if key.startswith(_OURS)}
    amounts = {name: value for name, value in status.allocatable.items() if is_gpu_resource(name)}
    conditions = tuple(one for one in status.conditions if one.type == "Ready")
    kept = replace(meta, annotations=annotations)
    return replace(node, metadata=kept, status=replace(status, allocatable=amounts, conditions=conditions))


def kept_gpu_node(gpu_node: WatchedGPUNode) -> WatchedGPUNode:
    """A GPUNode without its labels and annotations."""
    return replace(gpu_node, metadata=replace(gpu_node.metadata, labels={}, annotations={}))
