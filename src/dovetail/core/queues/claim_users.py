# SPDX-License-Identifier: Apache-2.0
"""For which pod a claim counts: one of those that use it, the first that is placed, else the first that waits."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.core.cluster import Cluster
from dovetail.core.model import Pod
from dovetail.core.workloads.index import WorkloadIndex, startable


class ClaimUsers:
    """`counted_for` has, by claim, the uid of the pod for which it counts."""

    def __init__(self, cluster: Cluster, workload_index: WorkloadIndex, counted_for: dict[str, str]) -> None:
        self._cluster = cluster
        self._workload_index = workload_index
        self._counted_for = counted_for

    def moved(self, pod: Pod) -> Iterator[str]:
        """The other pods that count more or less now that this one has changed. Each is to be counted again before the
        next is asked for."""
        counted = self._counted_for
        for key in pod.device_claims:
            before, now = counted.get(key), self._counts_for(key)
            if now == before:
                continue
            if now:
                counted[key] = now
            else:
                counted.pop(key, None)
            for uid in (before, now):
                if uid and uid != pod.uid and uid in self._workload_index.pods:
                    yield uid

    def _counts_for(self, key: str) -> str:
        """The uid of that pod; "" where there is none."""
        users, pods = self._cluster.claims.users(key), self._workload_index.pods
        for uid in users:
            if uid in self._cluster.placements:
                return uid
        return next((uid for uid in users if uid in pods and startable(pods[uid])), "")
