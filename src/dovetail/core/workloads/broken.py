# SPDX-License-Identifier: Apache-2.0
"""Gangs of which a member failed for good: those that are left do not hold their room for ever.

Rules: a gang that had started is broken when a pod of it failed, fewer are left than it needs (those that succeeded
count as there), and nobody replaces the others: no pod of it waits and none is being deleted. Its owner may still be
waiting before it does so, as a Job's controller does after each failure, for 10 minutes at most; so those that are left
are told to go when the gang was broken for `Policy.broken_deadline_ms` without a break, and, where some stay (a
disruption budget), once more each time that has passed again. A gang whose object says that its pods succeed or fail
each by itself (`Gang.survives`) is never broken, nor is one whose pods were deleted: who deletes them wants that.
Source: k8s.io/kubernetes pkg/controller/job/job_controller.go (MaxJobPodFailureBackOff).
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.cluster import Cluster
from dovetail.core.decisions import Release
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.workloads.index import LONE, WorkloadIndex


class Broken:
    """`failed` and `succeeded` are numbers of pods that ended, by gang; `since_ms` is by workload since when it is
    broken, or was released last."""

    def __init__(self, workload_index: WorkloadIndex, cluster: Cluster, deadline_ms: int) -> None:
        """deadline_ms: 0 where nobody is ever told to go."""
        self.failed: dict[str, int] = {}
        self.succeeded: dict[str, int] = {}
        self.since_ms: dict[str, int] = {}
        self._workload_index = workload_index
        self._cluster = cluster
        self._deadline_ms = deadline_ms

    def ended(self, gang: str, succeeded: bool, failed: bool) -> None:
        """A pod of the gang has ended, in one way, or in neither where it was deleted."""
        if gang and (succeeded or failed):
            books = self.succeeded if succeeded else self.failed
            books[gang] = books.get(gang, 0) + 1

    def look(self, workload: str, now_ms: int) -> None:
        """Something about the workload has changed."""
        if not (self.failed or self.succeeded) or workload.startswith(LONE):
            return
        if self._is_broken(workload):
            self.since_ms.setdefault(workload, now_ms)
        else:
            self.since_ms.pop(workload, None)

    def next_ms(self) -> int | None:
        """When the next of them is released."""
        return min(self.since_ms.values(), default=0) + self._deadline_ms if self.since_ms else None

    def release(self, now_ms: int, step: int) -> list[Release]:
        """Those that were broken for long enough."""
        due = [workload for workload, since_ms in self.since_ms.items() if now_ms - since_ms >= self._deadline_ms]
        found = []
        for workload in due:
            self.since_ms[workload] = now_ms
            uids = tuple([pod.uid for pod in self._workload_index.bound(workload) if not pod.deleting])
            if uids:
                found.append(Release(workload, uids, self._refusal(workload, len(uids)), step, "broken"))
        return found

    def _refusal(self, workload: str, left: int) -> Refusal:
        tree = self._workload_index.tree(workload)
        failed = sum(self.failed.get(gang_id, 0) for gang_id in tree)
        words = f"{failed} failed and are not replaced; {left} are left, which is less than the gang needs"
        return Refusal(Reason.GANG_BROKEN, When.NEVER, words)

    def _is_broken(self, workload: str) -> bool:
        workload_index, tree = self._workload_index, self._workload_index.tree(workload)
        if workload_index.first(workload) is None:
            self._forget(tree)
            return False
        if not self._deadline_ms or not any(gang_id in self.failed for gang_id in tree):
            return False
        gangs = [workload_index.gangs.get(gang_id) for gang_id in tree]
        if any(gang is None or gang.problem is not None or gang.survives for gang in gangs):
            return False
        placements = self._cluster.placements
        if any(pod.deleting or pod.uid not in placements for pod in workload_index.members(workload)):
            return False
        if not workload_index.has_started(workload):
            return False
        if workload_index.enough(workload, self.succeeded):
            # Whoever failed was replaced.
            for gang_id in tree:
                self.failed.pop(gang_id, None)
            return False
        return True

    def _forget(self, tree: Iterable[str]) -> None:
        for gang_id in tree:
            self.failed.pop(gang_id, None)
            self.succeeded.pop(gang_id, None)
