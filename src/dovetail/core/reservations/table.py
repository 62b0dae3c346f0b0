# SPDX-License-Identifier: Apache-2.0
"""The reservations that there are, by workload, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.pipeline.equivalence import EquivalenceCache
from dovetail.core.reasons import Expected
from dovetail.core.reservations.reservation import (
    TRANSITIONS,
    Reservation,
    ReservationEvent,
    ReservationState,
    Slots,
)
from dovetail.core.workloads.index import WorkloadIndex


class Reservations:
    """`version` grows with each change to a reservation. `spared` are pods whose eviction failed, with the time until
    when they are no victims. `unknown` are workloads for which no start can be worked out: the time until when that is
    not tried again, and why."""

    def __init__(
        self, cluster: Cluster, workloads: WorkloadIndex, equivalence: EquivalenceCache, spare_ms: int
    ) -> None:
        """spare_ms: how long a pod whose eviction failed is no victim."""
        self._cluster, self._workloads, self._equivalence = cluster, workloads, equivalence
        self._spare_ms = spare_ms
        self.by_workload: dict[str, Reservation] = {}
        self.spared: dict[str, int] = {}
        self.unknown: dict[str, tuple[int, Expected | None]] = {}
        self.version = 0
        self._soonest = -1, FOR_EVER_MS
        self._held: tuple[int, frozenset[int]] = -1, frozenset()

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self.by_workload.values())

    def put(self, reservation: Reservation) -> None:
        """A reservation is made, or planned again."""
        waiting = reservation.state is ReservationState.WAITING
        event = ReservationEvent.PLANNED if waiting else ReservationEvent.EVICTED
        assert self._next(reservation.workload, event) is reservation.state
        self.restore(reservation)

    def restore(self, reservation: Reservation) -> None:
        """Enter a reservation in the state that it had."""
        self.by_workload[reservation.workload] = reservation
        self.version += 1
        self._equivalence.recheck()

    def release(self, workload: str, event: ReservationEvent = ReservationEvent.RELEASED) -> None:
        """End the reservation of a workload that may have one: other workloads may start on its nodes."""
        self.unknown.pop(workload, None)
        if workload in self.by_workload:
            assert self._next(workload, event) is ReservationState.ENDED
            del self.by_workload[workload]
            self.version += 1
            self._cluster.changes.announce(ClusterChange.RESERVATION)
            # For those that are tried later in this step, too.
            self._equivalence.room_released()

    def _fail(self, one: Reservation, why: str) -> None:
        failed = self.by_workload[one.workload] = replace(one, failure=why)
        assert TRANSITIONS[one.state][ReservationEvent.FAILED] is failed.state
        self._cluster.changes.announce(ClusterChange.RESERVATION)

    def _next(self, workload: str, event: ReservationEvent) -> ReservationState:
        one = self.by_workload.get(workload)
        return TRANSITIONS[one.state if one is not None else None][event]

    def eviction_failed(self, uid: str, message: str) -> None:
        """The eviction of a pod failed, and with it the reservations that wait for its end."""
        for one in self.evicting():
            if uid in one.leaving:
                self._fail(one, message)
                self.spare([uid])

    def withdrawn(self, released: Reservation) -> None:
        """The evictions for a released reservation are called off: victims that are not ending yet stay, and the
        reservations that wait for their end fail."""
        pods = self._workloads.pods
        staying = [uid for uid in released.evicting if uid in pods and not pods[uid].deleting]
        for one in self.evicting():
            if one.workload != released.workload and not one.waits_for.isdisjoint(staying):
                self._fail(one, f"{self._workloads.name_of(released.workload)} needs it no more")

    def held_slots(self) -> frozenset[int]:
        """All slots that the reservations have."""
        if self._held[0] != self.version:
            self._held = self.version, frozenset(slot for one in self for slot in one.slots.tolist())
        return self._held[1]

    def others(self, workload: str) -> list[Reservation]:
        """The reservations of other workloads than this one."""
        return [one for one in self.by_workload.values() if one.workload != workload]

    def evicting(self) -> list[Reservation]:
        """The reservations for which pods are evicted."""
        return [one for one in self.by_workload.values() if one.evicts]

    def spare(self, uids: Iterable[str]) -> None:
        """The eviction of these pods failed: they are no victims for a while."""
        self.spared |= dict.fromkeys(uids, self._cluster.now_ms + self._spare_ms)

    def excluded(self, others: Iterable[Reservation]) -> frozenset[str]:
        """Pods that cannot be victims: they are victims of these already, or their eviction failed a while ago."""
        now_ms, placements = self._cluster.now_ms, self._cluster.placements
        self.spared = {uid: until for uid, until in self.spared.items() if until > now_ms and uid in placements}
        return frozenset(self.spared).union(*(one.evicting for one in others))

    def beside(self, others: Iterable[Reservation], later: bool = False) -> Slots:
        """The slots that none of these holds, of those that ever had a node. `later`: for pods that
        start at a time to come, so those in maintenance are left out."""
        nodes = self._cluster.nodes
        free = np.ones(nodes.used, dtype=np.bool_)
        if later and nodes.in_maintenance:
            free[list(nodes.in_maintenance)] = False
        for one in others:
            free[one.slots] = False
        return np.flatnonzero(free)

    def next_ms(self) -> int | None:
        """When the next reservation is due: its start, or its deadline."""
        now_ms = self._cluster.now_ms
        times = [t for one in self for t in (one.deadline_ms, one.expected.start_ms) if t > now_ms]
        return min(times, default=None)

    def soonest_ms(self, workload: str) -> int:
        """The earliest start of the other reservations that wait for pods to end; for ever where none is known."""
        if workload in self.by_workload:
            return min([one.start_ms for one in self.others(workload) if not one.evicts], default=FOR_EVER_MS)
        if self._soonest[0] != self.version:
            starts_ms = [one.start_ms for one in self if not one.evicts]
            self._soonest = self.version, min(starts_ms, default=FOR_EVER_MS)
        return self._soonest[1]

    def stale(self, one: Reservation) -> bool:
        """Whether its nodes and its start have to be worked out again: its time has come, a pod that it waits for has
        gone, or one of its nodes cannot be used any more."""
        placements, nodes, now_ms = self._cluster.placements, self._cluster.nodes, self._cluster.now_ms
        if now_ms <= one.planned_ms:
            return False
        slots = one.slots.tolist()
        records = (nodes.records[slot] for slot in slots)
        if any(record is None or record.unschedulable or record.problem is not None for record in records):
            return True
        if not nodes.in_maintenance.keys().isdisjoint(slots):
            return True
        return now_ms >= one.start_ms or any(uid not in placements for uid in one.waits_for)
