# SPDX-License-Identifier: Apache-2.0
"""The objects from which the walk of a node is read, reduced to what it needs. Rules of the structs: see
`kube/objects/base`.

A cluster has many pods and large GPUNodes: what is kept of each is small, so that 1,000 nodes fit into little memory.
Sources: k8s.io/api core/v1, apps/v1, events/v1.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field
from msgspec.structs import replace

from dovetail.kube.objects.base import ObjectMeta, Quantities, Wire, epoch_ms
from dovetail.kube.objects.pods import Affinity
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

NODE_OF_VALIDATION = "operator.dovetail.dev/node"
"""Annotation of a validation pod: the node that it validates."""
KEY_OF_VALIDATION = "operator.dovetail.dev/key"
"""Annotation of a validation pod: the driver, agent and layout that it validates."""
SPEC_OF_VALIDATION = "operator.dovetail.dev/spec"
"""Annotation of a validation pod: a digest of the spec.validation that it was made for."""
DEVICES = "dovetail.dev/devices"
"""Annotation that the scheduler writes with the binding: the devices that it chose."""
_KEPT_ANNOTATIONS = (NODE_OF_VALIDATION, KEY_OF_VALIDATION, SPEC_OF_VALIDATION, DEVICES)


class NodeInfo(Wire, frozen=True):
    boot_id: str = field(default="", name="bootID")


class WalkedNodeStatus(Wire, frozen=True):
    allocatable: Quantities = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    node_info: NodeInfo = NodeInfo()


class WalkedNodeSpec(Wire, frozen=True):
    """`taints` as they are written, because they are written back."""

    unschedulable: bool = False
    taints: tuple[dict[str, Any], ...] = ()


class WalkedNode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: WalkedNodeSpec = WalkedNodeSpec()
    status: WalkedNodeStatus = WalkedNodeStatus()


class WalkedGpu(Wire, frozen=True):
    index: int = 0
    uuid: str = ""
    healthy: bool = True


class WalkedGPUNodeStatus(Wire, frozen=True):
    observed_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    driver_version: str = ""
    gpus: tuple[WalkedGpu, ...] = ()
    quarantine: NodeQuarantine | None = None
    sharing: GpuSharing | None = None
    agent: AgentState | None = None
    differences: tuple[DeviceDifference, ...] = ()
    mig: MigState | None = None
    readiness: NodeReadiness | None = None


class WalkedGPUNode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: GPUNodeSpec = GPUNodeSpec()
    status: WalkedGPUNodeStatus = WalkedGPUNodeStatus()


class Waiting(Wire, frozen=True):
    reason: str = ""
    message: str = ""


class Started(Wire, frozen=True):
    started_at: datetime | None = None


class Ended(Wire, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None


class WalkedState(Wire, frozen=True):
    waiting: Waiting | None = None
    running: Started | None = None
    terminated: Ended | None = None


class WalkedContainer(Wire, frozen=True):
    """The status of a container. `last_state` is that of its run before."""

    name: str = ""
    image: str = ""
    ready: bool = False
    restart_count: int = 0
    state: WalkedState = WalkedState()
    last_state: WalkedState = WalkedState()


class WalkedAmounts(Wire, frozen=True):
    limits: dict[str, str | int] = field(default_factory=dict)


class WalkedContainerSpec(Wire, frozen=True):
    image: str = ""
    resources: WalkedAmounts = WalkedAmounts()


class WalkedPodSpec(Wire, frozen=True):
    node_name: str = ""
    affinity: Affinity | None = None
    containers: tuple[WalkedContainerSpec, ...] = ()
    init_containers: tuple[WalkedContainerSpec, ...] = ()


class WalkedPodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[WalkedContainer, ...] = ()
    container_statuses: tuple[WalkedContainer, ...] = ()


class WalkedPod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: WalkedPodSpec = WalkedPodSpec()
    status: WalkedPodStatus = WalkedPodStatus()


class WalkedDaemonSet(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class WalkedClass(Wire, frozen=True):
    """A RuntimeClass."""

    metadata: ObjectMeta = ObjectMeta()


class EventSeries(Wire, frozen=True):
    last_observed_time: datetime | None = None


class WalkedEvent(Wire, frozen=True):
    """An event of events.k8s.io/v1. Writers of the older API set `deprecated_last_timestamp` alone."""

    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    reason: str = ""
    note: str = ""
    event_time: datetime | None = None
    series: EventSeries | None = None
    deprecated_last_timestamp: datetime | None = None

    @property
    def last_ms(self) -> int:
        """When it was seen last; 0 where that is not known."""
        series = self.series.last_observed_time if self.series is not None else None
        return max(map(epoch_ms, (series, self.deprecated_last_timestamp, self.event_time)))


def _short(metadata: ObjectMeta, labels: tuple[str, ...], annotations: tuple[str, ...]) -> ObjectMeta:
    return replace(
        metadata,
        labels={key: metadata.labels[key] for key in labels if key in metadata.labels},
        annotations={key: metadata.annotations[key] for key in annotations if key in metadata.annotations},
    )


def kept_pod(pod: WalkedPod) -> WalkedPod:
    """A pod without the labels and annotations that the walk does not read."""
    names = ("app.kubernetes.io/name", "dovetail.dev/pool")
    return replace(pod, metadata=_short(pod.metadata, names, _KEPT_ANNOTATIONS))


def kept_node(node: WalkedNode) -> WalkedNode:
    """A node without its annotations."""
    return replace(node, metadata=_short(node.metadata, tuple(node.metadata.labels), ()))


def kept_gpu_node(gpu_node: WalkedGPUNode) -> WalkedGPUNode:
    """A GPUNode without its labels and annotations."""
    return replace(gpu_node, metadata=_short(gpu_node.metadata, (), ()))


def node_of(pod: WalkedPod) -> str:
    """The node of a pod of a DaemonSet, also before it is bound: the controller names it in the affinity."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if pod.spec.node_name or affinity is None or affinity.required is None:
        return pod.spec.node_name
    fields = (field for term in affinity.required.node_selector_terms for field in term.match_fields)
    return next((one.values[0] for one in fields if one.key == "metadata.name" and one.values), "")


def requests_gpus(pod: WalkedPod, resource: str = "") -> int:
    """How many devices the pod requests of a resource, or of all whose devices are GPUs, replicas or MIG instances; an
    extended resource has a limit. An amount that cannot be read counts as one: it is there, and no more is asked."""
    counts = [_gpus(container, resource) for container in pod.spec.containers]
    begun = [_gpus(container, resource) for container in pod.spec.init_containers]
    return max(sum(counts), max(begun, default=0))


def _gpus(container: WalkedContainerSpec, resource: str) -> int:
    limits = container.resources.limits.items()
    amounts = (str(text) for name, text in limits if (name == resource if resource else is_gpu_resource(name)))
    return sum(int(text) if text.isdecimal() else 1 for text in amounts)


def is_gpu_resource(name: str) -> bool:
    """Whether devices of this resource are GPUs, replicas of them, or MIG instances."""
    return name in ("nvidia.com/gpu", "nvidia.com/gpu.shared") or name.startswith("nvidia.com/mig-")
