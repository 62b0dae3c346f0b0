# SPDX-License-Identifier: Apache-2.0
"""Writes `controller.kubernetes.io/pod-deletion-cost` on GPU pods of ReplicaSets, so that a scale-down deletes those
first that free whole nodes and whole NVLink domains. The order is the core's (`core.placing.scale_down`).

Rules
- A ReplicaSet of which one pod has a cost that was not written here is its user's: all of ours are removed from it. A
  cost is ours if `dovetail.dev/deletion-cost` begins with it.
- Nothing is written while the costs that are there give the order. A new order keeps as many of them as it can.
- A ReplicaSet is written again after ten minutes at the earliest, and the wait doubles up to an hour each time that it
  is written again so soon. At most MOST_AN_HOUR pods an hour are written, those of the namespaces with the fewest
  writes first, and of one namespace never more than are left to all others then: one that makes many ReplicaSets keeps
  no other waiting. Of a set, costs that have to go are removed first.
- A write fails if the pod has changed since it was read. It is decided again after a minute, and that does not count as
  another time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from dovetail.core.placing.scale_down import Domains, FreeingPod, Slots, first_to_end
from dovetail.core.state import State
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.client import STRATEGIC_PATCH, Attempts, Client
from dovetail.kube.api.errors import Conflict, KubeError, NotFound
from dovetail.kube.informers import Informers
from dovetail.kube.objects.base import time_text
from dovetail.kube.translate.annotations import DELETION_COST, POD_DELETION_COST
from dovetail.scheduler import metrics
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.wire import deletion_cost

LOOK_EVERY_S = 30.0
MOST_AN_HOUR = 600
_RETRY_MS, _AGAIN_MS, _HOUR_MS = 60_000, 600_000, 3_600_000
_STEP = 1_000_000
_LOWEST = -(2**31) + 1
"""kube-controller-manager reads 32 bits."""
_FIRST = -1_000_000_000
"""Costs begin here: there is room for pods that come before, and for those that come after."""


class CostChange(Struct, frozen=True):
    """A pod that gets another cost; None: it has none any more. `version` is the resourceVersion that was read."""

    namespace: str
    name: str
    uid: str
    version: str
    cost: int | None
    why: str = ""


class _Pace(Struct, frozen=True):
    """When a ReplicaSet was last written, and how long it is left alone after that; less where that failed."""

    written_ms: int
    again_ms: int
    failed: bool = False

    def due(self, now_ms: int) -> bool:
        """Whether it may be written again."""
        return now_ms - self.written_ms >= (_RETRY_MS if self.failed else self.again_ms)


class DeletionCosts:
    """`look` writes what is due; `run` looks again and again."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        mirror: Informers,
        *,
        state: Callable[[], State],
        may_write: Callable[[], bool],
    ) -> None:
        self._client, self._clock, self._mirror = client, clock, mirror
        self._state, self._may_write = state, may_write
        self._paces: dict[str, _Pace] = {}
        self._writes: deque[tuple[int, str]] = deque()
        """When there was a write of the last hour, and in which namespace."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._may_write():
                await self.look()

    async def look(self) -> None:
        """Write the changes that are due."""
        now_ms = self._clock.now_ms()
        domains = Domains(self._state().cluster)
        sets = domains.replica_sets()
        self._paces = {owner: pace for owner, pace in self._paces.items() if owner in sets}
        due: dict[str, list[CostChange]] = {}
        for owner, own in sets.items():
            pace = self._paces.get(owner)
            if (pace is None or pace.due(now_ms)) and (found := self._changes(domains, own)):
                due[owner] = found
            # The counts may be a moment old by then: a step does not wait for all of them.
            await asyncio.sleep(0)
        while self._writes and now_ms - self._writes[0][0] >= _HOUR_MS:
            self._writes.popleft()
        by_namespace = Counter(namespace for _, namespace in self._writes)
        while due:
            owner = min(due, key=lambda one: (by_namespace[_namespace(one)], one))
            # The next namespaces have at least as many writes, so they may have no more either.
            left = (MOST_AN_HOUR - len(self._writes) - by_namespace[_namespace(owner)] + 1) // 2
            if left <= 0:
                break
            changes = due.pop(owner)[:left]
            all_written = True
            for change in changes:
                if not self._may_write():
                    return
                self._writes.append((now_ms, change.namespace))
                all_written &= await self._write(change)
            by_namespace[_namespace(owner)] += len(changes)
            self._paces[owner] = _next_pace(self._paces.get(owner), now_ms, failed=not all_written)

    def _changes(self, domains: Domains, own: Slots) -> list[CostChange]:
        """What has to be written on the pods of one ReplicaSet, removals first."""
        known = {}
        for placement in (one for there in own.values() for one in there):
            pod = self._mirror.pods.known.get((placement.pod.namespace, placement.pod.name))
            if pod is None or pod.metadata.uid != placement.uid:
                # It is gone, or has not arrived: the books will agree with the API server in a moment.
                return []
            known[placement.uid] = pod.metadata
        marks = {uid: _Marks.of(meta.annotations) for uid, meta in known.items()}
        written = {uid: mark.ours for uid, mark in marks.items() if mark.ours is not None}
        if any(mark.theirs for mark in marks.values()):
            order: tuple[FreeingPod, ...] = ()
        else:
            order = first_to_end(domains, own, written)
        wanted = costs_of([one.uid for one in order], written)
        why = {one.uid: self._reason(one) for one in order}
        stale = [uid for uid in known if uid in written and uid not in wanted]
        return [
            CostChange(known[uid].namespace, known[uid].name, uid, known[uid].resource_version, wanted.get(uid),
                       why.get(uid, ""))
            for uid in [*stale, *(uid for uid, cost in wanted.items() if written.get(uid) != cost)]
        ]  # fmt: skip

    def _reason(self, one: FreeingPod) -> str:
        what = f"node {one.domain}" if not one.level else f"{one.level} {one.domain}"
        others = f", once {one.others} more of its ReplicaSet have ended" if one.others else ""
        return f"its end leaves {what} with {one.gpus} GPUs to others{others}; at {time_text(self._clock.now_ms())}"

    async def _write(self, change: CostChange) -> bool:
        """Whether it need not be decided again soon."""
        path = kinds.PODS.path(change.namespace, change.name, "status")
        body = deletion_cost(change.uid, change.version, change.cost, change.why)
        try:
            await self._client.request(
                "PATCH", path, body, content_type=STRATEGIC_PATCH, attempts=Attempts(idempotent=True)
            )
        except (NotFound, Conflict):
            metrics.count(metrics.DELETION_COSTS, "changed")
            return False
        except KubeError as error:
            metrics.log.warning("the deletion cost of %s/%s is not written: %s", change.namespace, change.name, error)
            metrics.count(metrics.DELETION_COSTS, "refused")
        else:
            metrics.count(metrics.DELETION_COSTS, "written" if change.cost is not None else "removed")
        return True


class _Marks(Struct, frozen=True):
    """The cost on a pod: ours, None for none, or one of somebody else."""

    ours: int | None
    theirs: bool

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> _Marks:
        cost, note = annotations.get(POD_DELETION_COST, ""), annotations.get(DELETION_COST, "")
        if not cost:
            return cls(None, False)
        if note.partition(":")[0] != cost or not cost.removeprefix("-").isdecimal() or len(cost) > 11:
            return cls(None, True)
        return cls(int(cost), False)


def costs_of(order: Sequence[str], written: Mapping[str, int]) -> dict[str, int]:
    """Costs below 0 that ascend in this order, with as many as can be of those that are written."""
    kept = _ascending([written.get(uid) for uid in order])
    found: dict[str, int] = {}
    i = 0
    while i < len(order):
        if i in kept:
            found[order[i]] = written[order[i]]
            i += 1
            continue
        end = next((j for j in range(i, len(order)) if j in kept), len(order))
        low = found[order[i - 1]] if i else None
        high = written[order[end]] if end < len(order) else None
        costs = _between(low, high, end - i)
        if costs is None:
            return {uid: _FIRST + n * _STEP for n, uid in enumerate(order)}
        found.update(zip(order[i:end], costs, strict=True))
        i = end
    return found


def _between(low: int | None, high: int | None, count: int) -> list[int] | None:
    """So many costs above `low` and below `high`; None where there is no room."""
    if low is None:
        low = _FIRST if high is None else max(_LOWEST, high - _STEP * (count + 1))
    high = min(-1, low + _STEP * (count + 1)) if high is None else high
    each = (high - low) // (count + 1)
    return [low + each * n for n in range(1, count + 1)] if each > 0 else None


def _ascending(costs: Sequence[int | None]) -> set[int]:
    """The places of the longest run of costs that ascend and are below 0."""
    ends: list[int] = []
    at: list[int] = []
    before: dict[int, int] = {}
    for i, cost in enumerate(costs):
        if cost is None or not _LOWEST <= cost < 0:
            continue
        n = bisect_left(ends, cost)
        before[i] = at[n - 1] if n else -1
        ends[n : n + 1] = [cost]
        at[n : n + 1] = [i]
    kept = set[int]()
    last = at[-1] if at else -1
    while last >= 0:
        kept.add(last)
        last = before[last]
    return kept


def _next_pace(pace: _Pace | None, now_ms: int, *, failed: bool) -> _Pace:
    if pace is None or now_ms - pace.written_ms >= 2 * pace.again_ms:
        again_ms = _AGAIN_MS
    else:
        again_ms = pace.again_ms if pace.failed else min(2 * pace.again_ms, _HOUR_MS)
    return _Pace(now_ms, again_ms, failed)


def _namespace(owner: str) -> str:
    return owner.partition("/")[0]
