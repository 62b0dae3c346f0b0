# SPDX-License-Identifier: Apache-2.0
"""What can happen to a cluster. Each event carries the whole record (the last one wins) or the name of what is gone.

An event is idempotent: told twice, it changes nothing the second time. Order between objects does not matter for
correctness: a pod may be told before its node, its gang or its claims. Only what a pod that runs already has used since
its queue's usage was written down is charged if nodes and queues are told before it.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.dra.types import Claim, DeviceClass, Slice
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
    containers had ended (epoch ms, 0: now); `succeeded` is whether it did what it had to do, so that its run time says
    something about others of its family, `failed` whether it failed and nobody had told it to go. `gang` is the gang of
    one that had ended before it was told, in which it is not told itself."""

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
    """A ResourceClaim; its uid tells it from an older one of the same key."""

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
    """The driver could not carry out an `Evict` for the pod `uid`, which stays. Who was to have its room gives up."""

    uid: str
    message: str


class PodRejected(Struct, frozen=True):
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
