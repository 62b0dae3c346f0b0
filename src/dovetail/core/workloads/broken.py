# SPDX-License-Identifier: Apache-2.0
"""Broken gangs: a member failed for good, and the others are released.

Rules: a gang that had started is broken when a pod of it failed, fewer are left than it needs (those that succeeded
count as there), and nothing replaces the others: no pod of it waits and none is being deleted. Its owner may still be
waiting before it does so, as a Job's controller does after each failure, for 10 minutes at most; so those that are left
are released when the gang was broken for `Policy.broken_deadline_ms` without a break, and, where some stay (a
disruption budget), once more each time that has passed again. A gang whose object declares that its pods succeed or
fail each by itself (`Gang.survives`) is never broken, nor is one whose pods were deleted: that was intended. Source:
k8s.io/kubernetes pkg/controller/job/job_controller.go (MaxJobPodFailureBackOff).
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.cluster import Cluster
from dovetail.core.decisions import Release
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.workloads.index import LONE, WorkloadIndex
from dovetail.core.workloads.lifecycle import GangEvent, GangState


class BrokenGangs:
    """`failed` and `succeeded` are numbers of pods that ended, by gang."""

    def __init__(self, workloads: WorkloadIndex, cluster: Cluster, deadline_ms: int) -> None:
        """deadline_ms: 0 where no gang counts as broken."""
        self.failed: dict[str, int] = {}
        self.succeeded: dict[str, int] = {}
        self._workloads = workloads
        self._cluster = cluster
        self._deadline_ms = deadline_ms

    def ended(self, gang: str, succeeded: bool, failed: bool) -> None:
        """A pod of the gang has ended, in one way, or in neither where it was deleted."""
        if gang and (succeeded or failed):
            counts = self.succeeded if succeeded else self.failed
            counts[gang] = counts.get(gang, 0) + 1

    def look(self, workload: str, now_ms: int) -> None:
        """Something about the workload has changed."""
        if not (self.failed or self.succeeded) or workload.startswith(LONE):
            return
        event = GangEvent.BROKE if self._is_broken(workload) else GangEvent.RECOVERED
        self._workloads.lives.handle(workload, event, now_ms + self._deadline_ms)

    def release(self, now_ms: int, step: int) -> list[Release]:
        """What is left of the gangs that were broken for long enough."""
        found, lives = [], self._workloads.lives
        for workload in lives.overdue(GangState.BROKEN, now_ms):
            lives.handle(workload, GangEvent.RELEASED, now_ms + self._deadline_ms)
            uids = tuple([pod.uid for pod in self._workloads.bound(workload) if not pod.deleting])
            if uids:
                found.append(Release(workload, uids, self._refusal(workload, len(uids)), step, "broken"))
        return found

    def _refusal(self, workload: str, left: int) -> Refusal:
        failed = sum(self.failed.get(gang_id, 0) for gang_id in self._workloads.tree(workload))
        detail = f"{failed} failed and are not replaced; {left} are left, which is less than the gang needs"
        return Refusal(Reason.GANG_BROKEN, When.NEVER, detail)

    def _is_broken(self, workload: str) -> bool:
        workloads, tree = self._workloads, self._workloads.tree(workload)
        if workloads.first(workload) is None:
            self._forget(tree)
            return False
        if not self._deadline_ms or not any(gang_id in self.failed for gang_id in tree):
            return False
        gangs = [workloads.gangs.get(gang_id) for gang_id in tree]
        if any(gang is None or gang.problem is not None or gang.survives for gang in gangs):
            return False
        placements = self._cluster.placements
        if any(pod.deleting or pod.uid not in placements for pod in workloads.members(workload)):
            return False
        if not workloads.has_started(workload):
            return False
        if workloads.enough(workload, self.succeeded):
            # All that failed were replaced.
            for gang_id in tree:
                self.failed.pop(gang_id, None)
            return False
        return True

    def _forget(self, tree: Iterable[str]) -> None:
        for gang_id in tree:
            self.failed.pop(gang_id, None)
            self.succeeded.pop(gang_id, None)
