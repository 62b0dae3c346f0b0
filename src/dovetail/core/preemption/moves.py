# SPDX-License-Identifier: Apache-2.0
"""Moves under way: room that is kept for pods that their owners create again, and the rate of moves.

Rules: a moved pod is evicted, and its owner creates it again. Until the new pod is placed, the room that was proven for
it is kept as for a nominated pod of the highest priority: a record of the old pod, nominated to its new node. Any pod
of the same job may take the room. It is released if the old pod stays, or if no pod has come by `until_ms`. At most
`Policy.moves_per_hour` pods are moved in an hour, and a job again only after `Policy.move_again_ms`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.model import Pod
from dovetail.core.workloads.index import WorkloadIndex

_HOUR_MS = 3_600_000
_FIRST = 2**31 - 1
"""The priority of the records: no pod has a higher one."""
_PREFIX = "moved/"


class MoveRoom(Struct, frozen=True):
    """Room for a pod of `job`. `pod` is the record that keeps it, `old` the uid of the pod that moves."""

    job: str
    pod: Pod
    old: str
    until_ms: int


class MovesUnderWay:
    """`rooms` is by the uid of the record that keeps each, `moved_ms` by job the time of its last move, `times_ms` the
    time of each pod's move in the last hour."""

    def __init__(self, cluster: Cluster, workload_index: WorkloadIndex) -> None:
        self.rooms: dict[str, MoveRoom] = {}
        self.moved_ms: dict[str, int] = {}
        self.times_ms: list[int] = []
        self._cluster = cluster
        self._workload_index = workload_index

    def left(self, most: int, now_ms: int) -> int:
        """The number of pods that may still be moved now, of `most` in an hour."""
        self.times_ms = [at_ms for at_ms in self.times_ms if now_ms - at_ms < _HOUR_MS]
        return max(0, most - len(self.times_ms))

    def moved_recently(self, pod: Pod, now_ms: int, for_ms: int) -> bool:
        """Whether the job of the pod was moved less than `for_ms` ago."""
        at_ms = self.moved_ms.get(self._workload_index.job_of(pod))
        return at_ms is not None and now_ms - at_ms < for_ms

    def begin(self, targets: Iterable[tuple[str, str]], now_ms: int, until_ms: int, again_ms: int) -> None:
        """Keep room for these pods (uid), which are evicted, on their new nodes."""
        self.moved_ms = {job: at_ms for job, at_ms in self.moved_ms.items() if now_ms - at_ms < again_ms}
        for uid, node in targets:
            pod = self._workload_index.pods[uid]
            job = self._workload_index.job_of(pod)
            self.times_ms.append(now_ms)
            self.moved_ms[job] = now_ms
            record = replace(
                pod, uid=_PREFIX + uid, node="", bound_ms=0, nominated_node=node, priority=_FIRST, deleting=False,
                devices=None, instances=(), by_claim=(),
            )  # fmt: skip
            self.put(MoveRoom(job, record, uid, until_ms))

    def put(self, room: MoveRoom) -> None:
        self.rooms[room.pod.uid] = room
        self._cluster.nominated[room.pod.uid] = room.pod

    def _drop(self, uids: Collection[str]) -> None:
        for uid in uids:
            del self.rooms[uid]
            if self._cluster.nominated.pop(uid, None) is not None:
                self._cluster.changes.announce(ClusterChange.NOMINATION)

    def give_up(self, olds: Collection[str]) -> None:
        """Release the room of those of these pods that still run: they stay where they are."""
        pods = self._workload_index.pods
        staying = {uid for uid in olds if uid in pods and not pods[uid].deleting}
        self._drop([uid for uid, room in self.rooms.items() if room.old in staying])

    def advance(self, now_ms: int) -> None:
        """Release the room that no pod has taken in time."""
        self._drop([uid for uid, room in self.rooms.items() if room.until_ms <= now_ms])

    def next_ms(self) -> int | None:
        """When the next room is released."""
        return min([room.until_ms for room in self.rooms.values()], default=None)

    @contextmanager
    def lent(self, pods: Collection[Pod]) -> Iterator[None]:
        """Release the room of this job while these pods of one workload are tried."""
        first = next(iter(pods), None) if self.rooms else None
        job = self._workload_index.job_of(first) if first is not None else ""
        own = [uid for uid, room in self.rooms.items() if room.job == job]
        for uid in own:
            del self._cluster.nominated[uid]
        before = {pod.uid for pod in pods if pod.uid in self._cluster.placements} if own else set()
        try:
            yield
        finally:
            if own:
                came = sum(1 for pod in pods if pod.uid not in before and pod.uid in self._cluster.placements)
                # Each pod that was placed uses up one record, the first that was made first.
                self._drop(own[:came])
                self._cluster.nominated |= {uid: self.rooms[uid].pod for uid in own[came:]}
