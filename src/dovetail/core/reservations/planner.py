# SPDX-License-Identifier: Apache-2.0
"""Where and when a workload that does not fit can start, by backfill.

Rules
- Nodes and start come from one trial: running pods are taken off in the order in which they end, by the limits of
  their run times or by what was learned, until the workload fits. Pods whose end is unknown come last: where their
  room is needed there is no start and no reservation, since it could idle for ever. The trial is made again when the
  start has passed, or when something on the nodes has changed.
- Other workloads start beside a reservation; or if they end before its start (not where pods are evicted for it); or if
  the workload still fits by its start with them in place, on its nodes or on others, to which the reservation moves:
  its start is kept, not its nodes (EASY backfill, Lifka 1995; Mu'alem and Feitelson 2001).
- Reservations for which pods are evicted hold amounts and devices, not nodes (`preemption.nominated_room`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.placement import Placement
from dovetail.core.headroom.table import HEADROOM_PREFIX
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached, least, shapes_of
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.reasons import Expected, Sure
from dovetail.core.reservations.expected_ends import ExpectedEnds
from dovetail.core.reservations.reservation import Reservation, Slots
from dovetail.core.reservations.table import Reservations


class ReservationPlan(Struct, frozen=True):
    slots: Slots
    expected: Expected
    waits_for: frozenset[str]


class ReservationPlanner:
    def __init__(
        self,
        reservations: Reservations,
        cluster: Cluster,
        score_cache: ScoreCache,
        ends: ExpectedEnds,
        search_limit: int,
    ) -> None:
        """search_limit: how many domains one placement of a gang may try."""
        self._reservations, self._cluster, self._score_cache = reservations, cluster, score_cache
        self._ends, self._search_limit = ends, search_limit
        self._ended: dict[str, tuple[int, list[tuple[int, Placement]]]] = {}
        """By workload, the pods that ran when the step began and end by its start; with that start."""

    def begin_step(self) -> None:
        """Forget which pods ran when the last step began."""
        self._ended.clear()

    def plan(self, group: Group, others: Iterable[Reservation], away: Slots | None = None) -> ReservationPlan | None:
        """Where and from when on the group fits beside the reservations of others; None where it would not fit either
        if all running pods were gone, or where the search was stopped. Nothing is changed. The slots `away` are left
        out, and what instances to come have in the running trial stays."""
        cluster, scope, needed = self._cluster, self._reservations.beside(others, later=True), least(group)
        if away is not None and away.size:
            scope = np.setdiff1d(scope, away)
        ends = [one for _, one in self._ends.on(scope) if not one.pod.uid.startswith(HEADROOM_PREFIX)]
        with cluster.trial():
            marks, few, count = [cluster.mark()], -1, 0
            while (slots := self._fits(needed, scope)) is None:
                if count == len(ends):
                    return None
                # Once many are gone, a few more make little difference: the steps grow with what was taken off.
                few, count = count, min(len(ends), count + max(1, count // 16))
                self._take_off(ends, marks, count)
            while count - few > 1:
                # Not all of the last step may be needed, and the pod that ends last decides when it starts.
                middle = (few + count) // 2
                self._take_off(ends, marks, middle)
                if (found := self._fits(needed, scope)) is None:
                    few = middle
                else:
                    slots, count = found, middle
        return self._planned(slots, self._needed(needed, slots, ends[:count]))

    def _needed(self, group: Group, slots: Slots, gone: list[Placement]) -> list[Placement]:
        """Of these pods those on the slots of the group, without those that hold no device where it fits beside them
        all: pods of DaemonSets, which never end."""
        inside = set(slots.tolist())
        waits = [placement for placement in gone if placement.slot in inside]
        beside = [one for one in waits if not (one.gpu_bits or one.share_bits or one.slices or one.grants)]
        if not beside or len(beside) == len(waits):
            return waits
        others = [one for one in waits if one.gpu_bits or one.share_bits or one.slices or one.grants]
        with self._cluster.trial():
            for placement in others:
                self._cluster.evict(placement.pod.uid)
            return others if self._fits(group, slots) is not None else waits

    def _take_off(self, ends: list[Placement], marks: list[int], count: int) -> None:
        """Evict the first `count` of these in the running trial, and no others. `marks` are the points before each
        eviction and after the last."""
        if count < len(marks) - 1:
            self._cluster.rewind(marks[count])
            del marks[count + 1 :]
        for placement in ends[len(marks) - 1 : count]:
            self._cluster.evict(placement.pod.uid)
            marks.append(self._cluster.mark())

    def _planned(self, slots: Slots, gone: list[Placement]) -> ReservationPlan:
        waits = [(placement, self._ends.expected(placement)) for placement in gone]
        uids = frozenset(placement.pod.uid for placement, _ in waits)
        if not waits:
            return ReservationPlan(
                slots, Expected(Sure.KNOWN, self._cluster.now_ms, "it fits beside what is held now"), uids
            )
        last, expected = waits[-1]
        unknown = sum(1 for _, one in waits if one.sure is Sure.UNKNOWN)
        if unknown:
            what = "one of which it is" if unknown == 1 else f"{unknown} of which it is"
            basis = f"waits for {len(waits)} pods, {what} not known when they end: {last.pod.key} ({expected.basis})"
            return ReservationPlan(slots, Expected(Sure.UNKNOWN, 0, basis), uids)
        sure = Sure.LEARNED if any(one.sure is Sure.LEARNED for _, one in waits) else Sure.KNOWN
        basis = f"when the last of {len(waits)} pods ends, {last.pod.key}: {expected.basis}"
        return ReservationPlan(slots, Expected(sure, expected.start_ms, basis), uids)

    def kept(self, others: Iterable[Reservation], groups: Callable[[str], list[Group]]) -> list[Reservation] | None:
        """Whether each reservation that waits for pods to end still starts by its time, with all that is placed in the
        running trial: on its nodes, or on others. Returns those that have to move, as they are then; None where one
        would be delayed. `groups`: the groups of a workload."""
        moved: dict[str, Reservation] = {}
        for one in others:
            if one.evicts:
                continue
            needed = next(map(least, groups(one.workload)), None)
            if needed is None or self._fits_there(needed, one):
                continue
            staying = [moved.get(other.workload, other) for other in self._reservations.others(one.workload)]
            plan = self._elsewhere(needed, one, self._reservations.beside(staying, later=True))
            if plan is None or plan.expected.start_ms > one.expected.start_ms:
                return None
            moved[one.workload] = replace(
                one, slots=plan.slots, expected=plan.expected, waits_for=plan.waits_for, planned_ms=self._cluster.now_ms
            )
        return list(moved.values())

    def _fits_there(self, needed: Group, one: Reservation) -> bool:
        """Whether the group fits on the nodes of its reservation by its start."""
        gone, start_ms = one.waits_for, one.expected.start_ms
        with self._cluster.trial():
            for end_ms, placement in self._ends.on(one.slots):
                if end_ms <= start_ms or placement.pod.uid in gone:
                    self._cluster.evict(placement.pod.uid)
            return self._fits(needed, one.slots) is not None

    def _elsewhere(self, needed: Group, one: Reservation, scope: Slots) -> ReservationPlan | None:
        """Where else the group fits by its start, with twice as many gone each time."""
        cluster, start_ms = self._cluster, one.expected.start_ms
        known = self._ended.get(one.workload)
        if known is None or known[0] != start_ms:
            ends = self._ends.on(np.arange(cluster.nodes.used, dtype=np.int64))
            known = self._ended[one.workload] = start_ms, [end for end in ends if end[0] <= start_ms]
        inside = np.zeros(cluster.nodes.size, dtype=np.bool_)
        inside[scope] = True
        leaving = [p for _, p in known[1] if inside[p.slot] and cluster.placements.get(p.pod.uid) is p]
        with cluster.trial():
            marks, count = [cluster.mark()], min(len(leaving), needed.total_missing())
            self._take_off(leaving, marks, count)
            while (slots := self._fits(needed, scope)) is None and count < len(leaving):
                count = min(len(leaving), 2 * count)
                self._take_off(leaving, marks, count)
        return self._planned(slots, self._needed(needed, slots, leaving[:count])) if slots is not None else None

    def _might_fit(self, group: Group, scope: Slots) -> bool:
        """A bound by count, which is cheap."""
        rows = self._score_cache
        room = sum(
            min(int(rows.of(shape).copies()[scope].sum()), count) for shape, count in shapes_of(self._cluster, group)
        )
        return room >= group.total_missing()

    def _fits(self, group: Group, scope: Slots) -> Slots | None:
        """The slots that the group would have now; None where it does not fit or the search was stopped."""
        if not self._might_fit(group, scope):
            return None
        with self._cluster.trial():
            try:
                fits = GangSearch(self._cluster, self._score_cache, self._search_limit).place(group, scope)
            except SearchLimitReached:
                fits = False
            if not fits:
                return None
            placements = self._cluster.placements
            slots = {placements[pod.uid].slot for pod in group.all_pods() if pod.uid in placements}
        return np.array(sorted(slots), dtype=np.int64)
