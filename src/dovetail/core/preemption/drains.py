# SPDX-License-Identifier: Apache-2.0
"""Evictions for maintenance, and from drained queues, that are under way, and the rate of those for maintenance.
`draining` and `queue_draining` decide them.

Rules: at most `Policy.drains_per_hour` pods are evicted for maintenance in an hour; a gang of more pods is evicted
where none was in the last hour. An evicted pod that has not begun to end by its deadline stays, with the room that was
kept for it released, and is no victim for a while.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.cluster import Cluster
from dovetail.core.model import Maintenance
from dovetail.core.queues.shares import Shares
from dovetail.core.queues.types import Queue
from dovetail.core.workloads.index import WorkloadIndex

LOOK_MS = 1000
"""The least time between two looks at the nodes."""
_HOUR_MS = 3_600_000
_AGAIN_MS = 30_000
"""Nothing is reported when a checkpoint is due or an hour has passed: nodes and queues are examined again."""


class DrainsUnderWay:
    """`leaving` are pods (uid) that are being evicted, with the time by which they have to be ending. `times_ms` are
    the times of the evictions of the last hour, pod by pod."""

    def __init__(self, cluster: Cluster, workload_index: WorkloadIndex, shares: Shares) -> None:
        self.leaving: dict[str, int] = {}
        self.times_ms: list[int] = []
        self.looked_ms = 0
        """When the nodes in maintenance were last examined."""
        self.looked_in_queues_ms = 0
        """When the drained queues were last examined."""
        self.tried: set[str] = set()
        """Workloads for which no room was sought again since; one after the other has its turn."""
        self._cluster = cluster
        self._workload_index = workload_index
        self._shares = shares

    def slots(self) -> dict[int, Maintenance]:
        """The nodes from which pods are moved or evicted."""
        nodes, on_slot = self._cluster.nodes, self._cluster.on_slot
        return {
            slot: one for slot, one in nodes.in_maintenance.items() if one.drain != "WaitForJobs" and slot in on_slot
        }

    def queues(self) -> dict[str, Queue]:
        """The queues with running pods that are drained, each with the queue that has it drained."""
        stopped = self._shares.tree.stopped()
        if not stopped:
            return {}
        held = self._shares.totals.priorities
        return {name: by for name, by in stopped.items() if by.stop == "HoldAndDrain" and held.get(name)}

    def may(self, pods: int, most: int, now_ms: int) -> bool:
        """Whether so many pods may be evicted now, of `most` in an hour."""
        self.times_ms = [at_ms for at_ms in self.times_ms if now_ms - at_ms < _HOUR_MS]
        return len(self.times_ms) + pods <= most or (bool(most) and not self.times_ms)

    def begin(self, uids: Iterable[str], now_ms: int, deadline_ms: int) -> None:
        """These are evicted, and have to be ending by the deadline."""
        for uid in uids:
            self.leaving[uid] = deadline_ms
            self.times_ms.append(now_ms)

    def overdue(self, now_ms: int) -> list[str]:
        """Forget those that are gone or ending. Returns those that should be, and forgets them too."""
        pods = self._workload_index.pods
        left = {uid: due_ms for uid, due_ms in self.leaving.items() if uid in pods and not pods[uid].deleting}
        self.leaving = {uid: due_ms for uid, due_ms in left.items() if now_ms < due_ms}
        return [uid for uid in left if uid not in self.leaving]

    def next_ms(self) -> int | None:
        """When nodes or queues have to be examined, although nothing happens; earlier than now where that is
        overdue."""
        times = list(self.leaving.values())
        if self.queues():
            times.append(self.looked_in_queues_ms + _AGAIN_MS)
        if slots := self.slots():
            times.append(self.looked_ms + _AGAIN_MS)
            starts_ms = [
                one.start_ms for one in slots.values() if one.drain == "Evict" and one.start_ms > self.looked_ms
            ]
            times += [max(start_ms, self.looked_ms + LOOK_MS) for start_ms in starts_ms]
        return min(times, default=None)
