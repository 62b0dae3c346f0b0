# SPDX-License-Identifier: Apache-2.0
"""Changes after which a workload that was refused may fit.

Rules: each part of the core announces its changes here, by kind, as kube-scheduler's cluster events do. Every parked
workload is tried again after any of them. A trial that is undone takes back what it announced.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum


class ClusterChange(Enum):
    """What has changed. The comments name what announces each."""

    NODE = "node"
    """A node was added or offers something else."""
    POD = "pod"
    """A pod left its node, or has other labels."""
    DEVICES = "devices"
    """A node's devices are allocated differently, or there are other ResourceSlices and DeviceClasses."""
    CLAIM = "claim"
    """A ResourceClaim."""
    VOLUME = "volume"
    """A PersistentVolume, its claim, or a StorageClass."""
    NAMESPACE = "namespace"
    """The labels of a namespace."""
    QUEUE = "queue"
    """A queue, or the order in which the workloads of one wait."""
    FAIR_SHARE = "fair-share"
    """What is due to the queues has drifted with time."""
    BUDGET = "budget"
    """A PodDisruptionBudget allows more evictions."""
    RESERVATION = "reservation"
    """A reservation ended or failed."""
    NOMINATION = "nomination"
    """A pod has no nominated node any more."""
    BACK_OFF = "back-off"
    """A node that refused a pod is tried again."""
    VICTIMS = "victims"
    """Pods that ran too short to be victims may have run long enough."""


class Changes:
    """The changes since `take`, in order."""

    __slots__ = ("_announced", "_taken")

    def __init__(self) -> None:
        self._announced: list[ClusterChange] = []
        self._taken = 0

    def __bool__(self) -> bool:
        return bool(self._announced)

    def announce(self, change: ClusterChange) -> None:
        self._announced.append(change)

    @property
    def count(self) -> int:
        """How many were announced in all, those that were taken back left out. An answer that reads the cluster is
        valid as long as this stays as it is."""
        return self._taken + len(self._announced)

    def rewind(self, count: int) -> None:
        """Take back what was announced since `count`."""
        del self._announced[count - self._taken :]

    @property
    def announced(self) -> tuple[ClusterChange, ...]:
        """The changes since `take`."""
        return tuple(self._announced)

    def take(self) -> Counter[ClusterChange]:
        """How many of each kind there were since the last call."""
        taken = Counter(self._announced)
        self._taken += len(self._announced)
        self._announced.clear()
        return taken
