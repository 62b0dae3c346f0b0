# SPDX-License-Identifier: Apache-2.0
"""The waiting pods: their queues, and the amounts that they count.

Rules: waiting pods are counted in groups, by queue and shape. Most new pods are placed at once: so the totals are
updated only when they are read, before queues change, and when the time changes. A pod counts those of its claims that
will count for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import Pod
from dovetail.core.queues.accounting import Accounting
from dovetail.core.queues.totals import QueueTotals, add
from dovetail.core.queues.types import Amounts


class _WaitingPods:
    """Waiting pods of one queue and shape, which count the same amounts. The totals include `entered` of them; `moved`
    is set where that may differ from `pods`."""

    __slots__ = ("amounts", "entered", "moved", "pods", "queue", "shape")

    def __init__(self, queue: str, shape: Shape, amounts: Amounts) -> None:
        self.queue = queue
        self.shape = shape
        self.amounts = amounts
        self.pods = 0
        self.entered = 0
        self.moved = False


class PendingPods:
    def __init__(self, cluster: Cluster, accounting: Accounting, totals: QueueTotals) -> None:
        self._cluster = cluster
        self._accounting = accounting
        self._totals = totals
        self._by_uid: dict[str, _WaitingPods] = {}
        self._by_shape: dict[tuple[str, int], _WaitingPods] = {}
        self._moved: list[_WaitingPods] = []
        """The groups whose number in the totals may be out of date."""
        self._version = 0
        """The version of `Demand` that the amounts are from."""

    def put(self, pod: Pod, queue: str) -> None:
        """Count the pod as waiting in the queue."""
        shape = self._shape_of(pod)
        group = self._by_shape.get((queue, shape.id))
        if group is None:
            amounts = self._accounting.demand.wanted(shape)
            group = self._by_shape[queue, shape.id] = _WaitingPods(queue, shape, amounts)
        if self._by_uid.get(pod.uid) is not group:
            self.remove([pod.uid])
            self._by_uid[pod.uid] = group
            self._count(group, 1)

    def remove(self, uids: Iterable[str]) -> None:
        """These pods do not wait any more. Pods that never waited are ignored."""
        last: _WaitingPods | None = None
        times = 0
        for uid in uids:
            group = self._by_uid.pop(uid, None)
            if group is None:
                continue
            if last is not None and group is not last:
                self._count(last, -times)
                times = 0
            last = group
            times += 1
        if last is not None:
            self._count(last, -times)

    def _count(self, group: _WaitingPods, times: int) -> None:
        group.pods += times
        if not group.moved:
            group.moved = True
            self._moved.append(group)

    def uids(self) -> list[str]:
        """The pods that wait."""
        return list(self._by_uid)

    def enter(self) -> None:
        """Update the totals."""
        for group in self._moved:
            group.moved = False
            times = group.pods - group.entered
            if times:
                self._totals.wait(group.queue, group.amounts, times)
            group.entered = group.pods
            if not group.pods:
                del self._by_shape[group.queue, group.shape.id]
        self._moved.clear()

    def follow_demand(self) -> None:
        """Count the waiting pods again where a change of nodes changed their amounts."""
        if self._version == self._accounting.demand.version:
            return
        self.enter()
        self._version = self._accounting.demand.version
        for group in list(self._by_shape.values()):
            amounts = self._accounting.demand.wanted(group.shape)
            if amounts != group.amounts:
                self._totals.wait(group.queue, group.amounts, -group.pods)
                self._totals.wait(group.queue, amounts, group.pods)
                group.amounts = amounts

    def of(self, queue: str) -> Mapping[str, int]:
        """The amounts of the pods that wait in the queue and below it."""
        self.enter()
        return self._totals.pending.get(queue, {})

    def wanted(self, pods: Iterable[Pod]) -> dict[str, int]:
        """The amounts that waiting pods will count at least, by the nodes at the last change of the time."""
        found: dict[str, int] = {}
        pods = list(pods)
        shapes = (
            list(map(self._shape_of, pods)) if any(pod.device_claims for pod in pods) else self._cluster.shapes_of(pods)
        )
        for _, group in groupby(shapes, attrgetter("id")):
            some = list(group)
            add(found, self._accounting.demand.wanted(some[0]), len(some))
        return found

    def _shape_of(self, pod: Pod) -> Shape:
        """The shape by which a waiting pod is counted."""
        if not pod.device_claims:
            return self._cluster.shape_with(pod, ())
        counted, specs = self._accounting.counted_for, self._cluster.claims.specs(pod)
        return self._cluster.shape_with(pod, tuple([s for key, s in specs if counted.get(key, pod.uid) == pod.uid]))
