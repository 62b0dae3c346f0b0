# SPDX-License-Identifier: Apache-2.0
"""Pledges: what queues will hold more, or less, once the decided evictions are done and the preemptors have started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dovetail.core.cluster import Cluster
from dovetail.core.queues.shares import Shares
from dovetail.core.reservations.reservation import Reservation
from dovetail.core.reservations.table import Reservations
from dovetail.core.workloads.index import WorkloadIndex, startable

Amounts = dict[str, dict[str, int]]
"""By queue and class."""


class Pledges:
    def __init__(self, reservations: Reservations, cluster: Cluster, workloads: WorkloadIndex, shares: Shares) -> None:
        self._reservations, self._cluster, self._workloads = reservations, cluster, workloads
        self._shares = shares
        self._known: tuple[tuple[int, int], tuple[dict[str, Amounts], Amounts]] = ((-1, -1), ({}, {}))
        self._frozen = False

    def total(self) -> Mapping[str, Mapping[str, int]]:
        """Those of all workloads, by queue and class."""
        return self._pledges()[1]

    def beside(self, workload: str) -> Mapping[str, Mapping[str, int]]:
        """Those of other workloads than this one."""
        one = self._reservations.by_workload.get(workload)
        return self.total() if one is None or not one.evicts else _sum(self._pledges()[0], workload)

    def promised(self, workload: str) -> Mapping[str, Mapping[str, int]]:
        """What the limits of queues have to leave to other workloads than this one, by queue and class: what they will
        hold, less what their victims still hold."""
        if not self._reservations.evicting():
            return {}
        return _sum(self._pledges()[0], workload, least=0)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, pledges stay as they were before, whatever a trial evicts or places."""
        self._pledges()
        self._frozen = True
        try:
            yield
        finally:
            self._frozen = False

    def _pledges(self) -> tuple[dict[str, Amounts], Amounts]:
        """By workload, and in total."""
        version = self._reservations.version, self._cluster.changes.count
        if self._known[0] != version and not self._frozen:
            workloads = {one.workload: self._of(one) for one in self._reservations.evicting()}
            self._known = version, (workloads, _sum(workloads))
        return self._known[1]

    def _of(self, one: Reservation) -> Amounts:
        shares, pods, placements = self._shares, self._workloads.pods, self._cluster.placements
        victims = [uid for uid in one.evicting if uid in placements and not one.moving]
        own = [pod for uid, _ in one.nominated if (pod := pods.get(uid)) is not None]
        coming = [pod for pod in own if pod.uid not in placements and startable(pod)]
        parts: list[tuple[str, Mapping[str, int], int]] = [(one.queue, shares.wanted(coming), 1)]
        parts += [(shares.pod_queues.of(pods[uid]), dict(shares.amounts(uid)), -1) for uid in victims]
        pledged: Amounts = {}
        for queue, amounts, sign in parts:
            for name in shares.path(queue):
                totals = pledged.setdefault(name, {})
                for resource, amount in amounts.items():
                    totals[resource] = totals.get(resource, 0) + sign * amount
        return pledged


def _sum(workloads: Mapping[str, Amounts], without: str = "", least: int | None = None) -> Amounts:
    """The pledges of all workloads but one, each at `least` so much."""
    total: Amounts = {}
    for workload, pledged in workloads.items():
        for name, amounts in pledged.items() if workload != without else ():
            totals = total.setdefault(name, {})
            for resource, amount in amounts.items():
                totals[resource] = totals.get(resource, 0) + (amount if least is None else max(least, amount))
    return total
