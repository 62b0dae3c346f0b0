# SPDX-License-Identifier: Apache-2.0
"""The pods of one gang, in the order in which they are placed, and of what kinds they are.

Rules: order and counts are kept up to date with each change, since a gang is read far more often than it changes:
whenever it is tried, and whenever one more of its pods becomes known.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from dovetail.core.model import Pod

_Place = tuple[int, int, str]
"""The highest priority first, then the oldest, then by uid."""


class Members:
    """`pods` by uid, in the order in which they became known; `order` the order in which they are placed; `bound` the
    number of bound pods, and `leaving` the number of those that are being deleted; `objects` how many were made for
    each object."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.order: list[_Place] = []
        self.bound = 0
        self.leaving = 0
        self.objects: dict[str, int] = {}
        self._kinds: dict[int, dict[str, None]] = {}
        self._created_ms: int | None = None

    def put(self, pod: Pod, kind: int, before: int | None) -> None:
        """Insert, or replace one that was of another kind `before`, or of the same."""
        old, place = self.pods.get(pod.uid), _place(pod)
        if old is None or _place(old) != place:
            if old is not None:
                self._leave_order(old)
            insort(self.order, place)
            if self._created_ms is not None:
                self._created_ms = min(self._created_ms, pod.created_ms)
        if old is not None:
            self._count(old, -1)
        self._count(pod, 1)
        self.pods[pod.uid] = pod
        if before != kind:
            if old is not None and before is not None:
                self._leave_kind(pod.uid, before)
            self._kinds.setdefault(kind, {})[pod.uid] = None

    def remove(self, pod: Pod, kind: int) -> None:
        """The pod, of this kind, is gone."""
        self._leave_order(self.pods.pop(pod.uid))
        self._count(pod, -1)
        self._leave_kind(pod.uid, kind)

    def _count(self, pod: Pod, sign: int) -> None:
        if left := self.objects.get(pod.made_for, 0) + sign:
            self.objects[pod.made_for] = left
        else:
            del self.objects[pod.made_for]
        if pod.node:
            self.bound += sign
            self.leaving += sign if pod.deleting else 0

    def _leave_order(self, pod: Pod) -> None:
        del self.order[bisect_left(self.order, _place(pod))]
        if self._created_ms == pod.created_ms:
            self._created_ms = None

    def _leave_kind(self, uid: str, kind: int) -> None:
        uids = self._kinds[kind]
        del uids[uid]
        if not uids:
            del self._kinds[kind]

    @property
    def priority(self) -> int:
        """The highest priority of a pod. There must be pods."""
        return -self.order[0][0]

    @property
    def created_ms(self) -> int:
        """When the oldest pod was created. There must be pods."""
        if self._created_ms is None:
            self._created_ms = min([created_ms for _, created_ms, _ in self.order])
        return self._created_ms

    @property
    def uniform(self) -> bool:
        """Whether all of them are of one kind."""
        return len(self._kinds) == 1

    def distinct(self) -> list[Pod]:
        """One pod of each kind."""
        return [self.pods[next(iter(uids))] for uids in self._kinds.values()]


def _place(pod: Pod) -> _Place:
    return -pod.priority, pod.created_ms, pod.uid
