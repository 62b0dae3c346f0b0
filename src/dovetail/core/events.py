# SPDX-License-Identifier: Apache-2.0
"""What can happen to a cluster. Each event carries the whole record (the last one wins) or the name of what is gone.

An event is idempotent: told twice, it changes nothing the second time. Order between objects does not matter for
correctness: a pod may be told before its node, its gang or its claims. Only what a pod that runs already has used since
its queue's usage was written down is charged if nodes and queues are told before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.dra.records import Claim, DeviceClass, Slice
from dovetail.core.model import Gang, Namespace, Node, Pod, StorageClass, Volume, VolumeClaim
from dovetail.core.sharing.records import Budget, Queue


@dataclass(frozen=True, slots=True)
class NodeChanged:
    node: Node


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class PodChanged:
    """A pod that is not finished, new or changed; with `pod.node` set it holds its resources there."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodRemoved:
    """A pod that is deleted or finished (phase Succeeded or Failed): it holds nothing any more. `ended_ms` is when its
    containers had ended (epoch ms, 0: now); `succeeded` is whether it did what it had to do, so that its run time says
    something about others of its family."""

    uid: str
    ended_ms: int = 0
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class GangChanged:
    gang: Gang


@dataclass(frozen=True, slots=True)
class GangRemoved:
    id: str


@dataclass(frozen=True, slots=True)
class NamespaceChanged:
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class NamespaceRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class VolumeClaimChanged:
    claim: VolumeClaim


@dataclass(frozen=True, slots=True)
class VolumeClaimRemoved:
    key: str


@dataclass(frozen=True, slots=True)
class VolumeChanged:
    volume: Volume


@dataclass(frozen=True, slots=True)
class VolumeRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class StorageClassChanged:
    storage_class: StorageClass


@dataclass(frozen=True, slots=True)
class StorageClassRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class SliceChanged:
    """A ResourceSlice, with the taints that DeviceTaintRules add to its devices."""

    slice: Slice


@dataclass(frozen=True, slots=True)
class SliceRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class DeviceClassChanged:
    device_class: DeviceClass


@dataclass(frozen=True, slots=True)
class DeviceClassRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class ClaimChanged:
    """A ResourceClaim; its uid tells it from an older one of the same key."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class ClaimRemoved:
    """`key` is "namespace/name"."""

    key: str


@dataclass(frozen=True, slots=True)
class QueueChanged:
    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    budget: Budget


@dataclass(frozen=True, slots=True)
class BudgetRemoved:
    """`key` is "namespace/name"."""

    key: str


@dataclass(frozen=True, slots=True)
class BindFailed:
    """The driver could not carry out a `Bind`: the pod holds nothing and is pending again. The pod is not tried on
    `node` before `retry_at_ms`."""

    uid: str
    node: str
    message: str
    retry_at_ms: int


@dataclass(frozen=True, slots=True)
class EvictionFailed:
    """The driver could not carry out an `Evict` for the pod `uid`, which stays. Who was to have its room gives up."""

    uid: str
    message: str


@dataclass(frozen=True, slots=True)
class PodRejected:
    """The kubelet of `node` did not admit a pod of this owner, for `reason` (TopologyAffinityError ...). The pod itself
    is told as removed."""

    owner: str
    node: str
    reason: str


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
)
