# SPDX-License-Identifier: Apache-2.0
"""What can happen to a cluster. Each event carries the whole record (the last one wins) or the name of what is gone.

An event is idempotent: the second of two equal ones changes nothing. The order between objects does not matter for
correctness: a pod may come before its node, its gang or its claims. One thing depends on it: the usage of a running pod
since the status of its queue was written is charged only if nodes and queues come before the pod.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.bargaining.types import GpuLease, LeaseAction, LeaseRequest, Plane
from dovetail.core.dra.types import Claim, DeviceClass, Slice
from dovetail.core.fabric import FabricSpeeds
from dovetail.core.model import Gang, Namespace, Node, Pod, StorageClass, Volume, VolumeClaim
from dovetail.core.queues.types import Budget, Queue


class NodeChanged(Struct, frozen=True):
    node: Node


class NodeRemoved(Struct, frozen=True):
    name: str


class PodChanged(Struct, frozen=True):
    """A pod that is not finished, new or changed; with `pod.node` set it holds its resources there."""

    pod: Pod


class PodRemoved(Struct, frozen=True):
    """A pod that is deleted or finished (phase Succeeded or Failed): it holds nothing any more. `ended_ms` is when its
    containers ended (epoch ms, 0: now). `succeeded`: it completed, so that its run time counts for others of its
    family. `failed`: it failed by itself, not by deletion or eviction. `gang`: the gang of a pod that ended before it
    became known; such a pod has no PodChanged."""

    uid: str
    ended_ms: int = 0
    succeeded: bool = False
    failed: bool = False
    gang: str = ""


class GangChanged(Struct, frozen=True):
    gang: Gang


class GangRemoved(Struct, frozen=True):
    id: str


class NamespaceChanged(Struct, frozen=True):
    namespace: Namespace


class NamespaceRemoved(Struct, frozen=True):
    name: str


class VolumeClaimChanged(Struct, frozen=True):
    claim: VolumeClaim


class VolumeClaimRemoved(Struct, frozen=True):
    key: str


class VolumeChanged(Struct, frozen=True):
    volume: Volume


class VolumeRemoved(Struct, frozen=True):
    name: str


class StorageClassChanged(Struct, frozen=True):
    storage_class: StorageClass


class StorageClassRemoved(Struct, frozen=True):
    name: str


class FabricChanged(Struct, frozen=True):
    fabric: FabricSpeeds


class FabricRemoved(Struct, frozen=True):
    name: str


class SliceChanged(Struct, frozen=True):
    """A ResourceSlice, with the taints that DeviceTaintRules add to its devices."""

    slice: Slice


class SliceRemoved(Struct, frozen=True):
    name: str


class DeviceClassChanged(Struct, frozen=True):
    device_class: DeviceClass


class DeviceClassRemoved(Struct, frozen=True):
    name: str


class ClaimChanged(Struct, frozen=True):
    """A ResourceClaim; its uid differs from that of an older one of the same key."""

    claim: Claim


class ClaimRemoved(Struct, frozen=True):
    """`key` is "namespace/name"."""

    key: str


class QueueChanged(Struct, frozen=True):
    queue: Queue


class QueueRemoved(Struct, frozen=True):
    name: str


class BudgetChanged(Struct, frozen=True):
    budget: Budget


class BudgetRemoved(Struct, frozen=True):
    """`key` is "namespace/name"."""

    key: str


class BindFailed(Struct, frozen=True):
    """The driver could not carry out a `Bind`: the pod holds nothing and is pending again. The pod is not tried on
    `node` before `retry_at_ms`."""

    uid: str
    node: str
    message: str
    retry_at_ms: int


class EvictionFailed(Struct, frozen=True):
    """The driver could not carry out an `Evict` or a `Drain` for the pod `uid`, which stays. The reservation of the
    preemptor fails."""

    uid: str
    message: str


class PodRejected(Struct, frozen=True):
    """The kubelet of `node` did not admit a pod of this owner, for `reason` (TopologyAffinityError ...). The pod itself
    has a PodRemoved."""

    owner: str
    node: str
    reason: str


class PlaneChanged(Struct, frozen=True):
    plane: Plane


class PlaneRemoved(Struct, frozen=True):
    """`id` is "namespace/name"."""

    id: str


class PlaneHeartbeat(Struct, frozen=True):
    """The agent of a plane is alive."""

    plane: str


class PlaneSilent(Struct, frozen=True):
    """Heartbeats of the plane are missing, as a scheduler reported: for a state that follows none."""

    plane: str


class LeaseRequestChanged(Struct, frozen=True):
    """A request that is new, has changed, or was answered."""

    request: LeaseRequest


class LeaseRequestRemoved(Struct, frozen=True):
    """The request was withdrawn, or its object is gone after it was granted."""

    id: str


class LeaseChanged(Struct, frozen=True):
    """A lease as its object has it; read at the start."""

    lease: GpuLease


class LeaseRemoved(Struct, frozen=True):
    """The object of the lease with this fence (0: any) is gone, or was not `made`, as the API server refused it."""

    id: str
    fence: int = 0
    made: bool = True


class LeaseRan(Struct, frozen=True):
    """A lease that was over when it was first read. It charged the queue of its plane `rate_milli` (milli-GPU) from
    `start_ms` to `ended_ms`. `scavenged`: it was of the class that has no least charge."""

    id: str
    plane: str
    rate_milli: int
    start_ms: int
    ended_ms: int
    scavenged: bool = False


class LeaseActed(Struct, frozen=True):
    """The agent wants something of a live lease."""

    action: LeaseAction


Event = (
    NodeChanged
    | NodeRemoved
    | PodChanged
    | PodRemoved
    | GangChanged
    | GangRemoved
    | NamespaceChanged
    | NamespaceRemoved
    | VolumeClaimChanged
    | VolumeClaimRemoved
    | VolumeChanged
    | VolumeRemoved
    | StorageClassChanged
    | StorageClassRemoved
    | FabricChanged
    | FabricRemoved
    | SliceChanged
    | SliceRemoved
    | DeviceClassChanged
    | DeviceClassRemoved
    | ClaimChanged
    | ClaimRemoved
    | QueueChanged
    | QueueRemoved
    | BudgetChanged
    | BudgetRemoved
    | BindFailed
    | EvictionFailed
    | PodRejected
    | PlaneChanged
    | PlaneRemoved
    | PlaneHeartbeat
    | PlaneSilent
    | LeaseRequestChanged
    | LeaseRequestRemoved
    | LeaseChanged
    | LeaseRemoved
    | LeaseRan
    | LeaseActed
)
