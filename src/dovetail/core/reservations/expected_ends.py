# SPDX-License-Identifier: Apache-2.0
"""When running pods end: by the limits of their run times, or by what was learned of equal ones."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.bargaining.leases import Leases
from dovetail.core.cluster import Cluster
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.model import Pod
from dovetail.core.queues.run_times import RunTimes
from dovetail.core.queues.shares import Shares
from dovetail.core.reasons import Expected, Sure
from dovetail.core.reservations.reservation import Slots


class ExpectedEnds:
    def __init__(self, cluster: Cluster, shares: Shares, run_times: RunTimes, leases: Leases) -> None:
        self._cluster, self._shares, self._run_times, self._leases = cluster, shares, run_times, leases

    def on(self, slots: Slots) -> list[tuple[int, Placement]]:
        """The pods that run on these slots with their ends (ms), the first end first."""
        placements, on_slot = self._cluster.placements, self._cluster.on_slot
        inside = [placements[uid] for slot in slots.tolist() for uid in on_slot.get(slot, ())]
        ends = [(self.end_ms(placement), placement) for placement in inside]
        ends.sort(key=lambda one: (one[0], one[1].slot))
        return ends

    def end_ms(self, placement: Placement) -> int:
        """When a placed pod ends; for ever where that is not known."""
        pod, now_ms = placement.pod, self._cluster.now_ms
        if pod.lease and (lease_ms := self._leases.end_ms(pod.lease)):
            return max(now_ms, lease_ms)
        if pod.deleting:
            return now_ms
        ran_ms = max(0, now_ms - pod.bound_ms) if pod.node and pod.bound_ms else 0
        if pod.work.max_runtime_ms > ran_ms:
            return now_ms + pod.work.max_runtime_ms - ran_ms
        left = self._run_times.left_ms(pod.work, self._shares.pod_queues.of(pod), ran_ms)
        return FOR_EVER_MS if left.sure is Sure.UNKNOWN else now_ms + max(1, left.ran_ms)

    def expected(self, placement: Placement) -> Expected:
        """When a placed pod ends, and how that is known."""
        pod, now_ms = placement.pod, self._cluster.now_ms
        if pod.lease and (lease_ms := self._leases.end_ms(pod.lease)):
            return Expected(Sure.KNOWN, max(now_ms, lease_ms), "its lease ends")
        if pod.deleting:
            return Expected(Sure.KNOWN, now_ms, "is ending")
        ran_ms = max(0, now_ms - pod.bound_ms) if pod.node and pod.bound_ms else 0
        left = self._run_times.left_ms(pod.work, self._shares.pod_queues.of(pod), ran_ms)
        start_ms = 0 if left.sure is Sure.UNKNOWN else self.end_ms(placement)
        return Expected(left.sure, start_ms, left.basis)

    def run_ms(self, pod: Pod) -> int:
        """How long a pod runs from its start; for ever where that is not known."""
        if pod.work.max_runtime_ms:
            return pod.work.max_runtime_ms
        run = self._run_times.estimate(pod.work, self._shares.pod_queues.of(pod))
        return FOR_EVER_MS if run.sure is Sure.UNKNOWN else run.ran_ms

    def all_before(self, pods: Iterable[Pod], start_ms: int) -> bool:
        """Whether pods that start now have ended by `start_ms`."""
        if start_ms == FOR_EVER_MS:
            return False
        return all(self._cluster.now_ms + self.run_ms(pod) <= start_ms for pod in pods)
