# SPDX-License-Identifier: Apache-2.0
"""The pods that wait: in which queue, and what they are counted as.

Rules: pods that wait are counted together, by queue and shape. Most pods that come are placed at once, before anybody
asks: the totals are told of those that wait only before they are asked, before queues change, and when time has passed.
Of its claims a pod counts with those that will count for it.
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


class _Alike:
    """So many pods that wait in a queue and are counted alike. The totals know of `entered`; `moved` where that may be
    another number."""

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
        self._by_uid: dict[str, _Alike] = {}
        self._by_shape: dict[tuple[str, int], _Alike] = {}
        self._moved: list[_Alike] = []
        """Those of which the totals may not know all."""
        self._version = 0
        """Of the demand, when it was last asked what each shape is counted with."""

    def put(self, pod: Pod, queue: str) -> None:
        """The pod waits in the queue."""
        shape = self._shape_of(pod)
        alike = self._by_shape.get((queue, shape.id))
        if alike is None:
            amounts = self._accounting.demand.wanted(shape)
            alike = self._by_shape[queue, shape.id] = _Alike(queue, shape, amounts)
        if self._by_uid.get(pod.uid) is not alike:
            self.remove([pod.uid])
            self._by_uid[pod.uid] = alike
            self._count(alike, 1)

    def remove(self, uids: Iterable[str]) -> None:
        """These pods do not wait, those included that never did."""
        last: _Alike | None = None
        times = 0
        for uid in uids:
            alike = self._by_uid.pop(uid, None)
            if alike is None:
                continue
            if last is not None and alike is not last:
                self._count(last, -times)
                times = 0
            last = alike
            times += 1
        if last is not None:
            self._count(last, -times)

    def _count(self, alike: _Alike, times: int) -> None:
        alike.pods += times
        if not alike.moved:
            alike.moved = True
            self._moved.append(alike)

    def uids(self) -> list[str]:
        """The pods that wait."""
        return list(self._by_uid)

    def enter(self) -> None:
        """Tell the totals who waits."""
        for alike in self._moved:
            alike.moved = False
            times = alike.pods - alike.entered
            if times:
                self._totals.wait(alike.queue, alike.amounts, times)
            alike.entered = alike.pods
            if not alike.pods:
                del self._by_shape[alike.queue, alike.shape.id]
        self._moved.clear()

    def follow_demand(self) -> None:
        """Where there are other nodes, what is waited for may be counted with other amounts."""
        if self._version == self._accounting.demand.version:
            return
        self.enter()
        self._version = self._accounting.demand.version
        for alike in list(self._by_shape.values()):
            amounts = self._accounting.demand.wanted(alike.shape)
            if amounts != alike.amounts:
                self._totals.wait(alike.queue, alike.amounts, -alike.pods)
                self._totals.wait(alike.queue, amounts, alike.pods)
                alike.amounts = amounts

    def of(self, queue: str) -> Mapping[str, int]:
        """What is waited for in the queue and below it."""
        self.enter()
        return self._totals.pending.get(queue, {})

    def wanted(self, pods: Iterable[Pod]) -> dict[str, int]:
        """What pods that wait will be counted with at least, by the nodes as they were when time was last told."""
        found: dict[str, int] = {}
        pods = list(pods)
        shapes = (
            list(map(self._shape_of, pods)) if any(pod.device_claims for pod in pods) else self._cluster.shapes_of(pods)
        )
        for _, alike in groupby(shapes, attrgetter("id")):
            some = list(alike)
            add(found, self._accounting.demand.wanted(some[0]), len(some))
        return found

    def _shape_of(self, pod: Pod) -> Shape:
        """What a pod that waits is counted as."""
        if not pod.device_claims:
            return self._cluster.shape_with(pod, ())
        counted, specs = self._accounting.counted_for, self._cluster.claims.specs(pod)
        return self._cluster.shape_with(pod, tuple([s for key, s in specs if counted.get(key, pod.uid) == pod.uid]))
