# SPDX-License-Identifier: Apache-2.0
"""The dry run: whether a job fits once victims are gone, and which victims can be reprieved. All of it is undone.

Rules: each trial evicts units and searches a placement, so it proves topology, devices, kubelets and claims too. The
number of trials is bounded; a victim that could not be tried any more counts as needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.core.cluster import Cluster
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached, least
from dovetail.core.placing.pods import Placed, Scope
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.preemption.units import Unit, uncovered


class OutOfProbes(Exception):
    """The bound on trials is reached."""


def evict(cluster: Cluster, units: Iterable[Unit]) -> None:
    """Evict all pods of the units, as far as they are placed."""
    for unit in units:
        for uid in unit.uids:
            if uid in cluster.placements:
                cluster.evict(uid)


class DryRun:
    """Trials for the fewest pods that complete a job, inside `scope`: at most `probes` trials, each with at most
    `limit` domains."""

    def __init__(
        self, cluster: Cluster, rows: ScoreCache, group: Group, scope: Scope | None, limit: int, probes: int
    ) -> None:
        self._cluster = cluster
        self._rows = rows
        self._group = group
        self._scope = scope
        self._limit = limit
        self._most = probes
        self.probes = 0

    def placed(self, *, counted: bool = True) -> Placed | None:
        """The placement of the job in the running trial as it is now; None where it does not fit. Raises OutOfProbes
        and SearchLimitReached."""
        mark = self._cluster.mark()
        try:
            return self._place(counted)
        finally:
            self._cluster.rewind(mark)

    def placed_without(self, units: Iterable[Unit], *, counted: bool = True) -> Placed | None:
        """The placement of the job with these units gone."""
        with self._cluster.trial():
            evict(self._cluster, units)
            return self._place(counted)

    def needed(self, units: list[Unit]) -> list[Unit] | None:
        """The units that the job cannot do without; None where it does not fit even with all gone."""
        placed = self.placed_without(units)
        if placed is None:
            return None
        used = {slot for _, slot in placed}
        near = [unit for unit in units if used.intersection(unit.slots)]
        try:
            if len(near) < len(units) and self.placed_without(near) is None:
                near = units
            return self._spare(near)
        except (OutOfProbes, SearchLimitReached):
            return uncovered(units)

    def count(self) -> None:
        """Count a trial. Raises OutOfProbes."""
        if self.probes >= self._most:
            raise OutOfProbes
        self.probes += 1

    def _place(self, counted: bool = True) -> Placed | None:
        if counted:
            self.count()
        group, placements = least(self._group), self._cluster.placements
        if not GangSearch(self._cluster, self._rows, self._limit).place(group, self._scope):
            return None
        there = (placements.get(pod.uid) for pod in group.all_pods())
        return tuple((placement.pod.uid, placement.slot) for placement in there if placement is not None)

    def _spare(self, units: list[Unit]) -> list[Unit]:
        """Reprieve units: those that hold others before those that they hold, the heaviest first."""
        kept = units
        depths = self._depths(units)
        for depth in sorted(set(depths.values()), reverse=True):
            held = {number for unit in kept for number in unit.covers}
            tried = [unit for unit in kept if depths[unit.number] == depth and unit.number not in held]
            if 2 * len(tried) > self._most - self.probes:
                tried = self._loose(kept, tried)
            if tried:
                numbers = {unit.number for unit in tried}
                fixed = [unit for unit in kept if unit.number not in numbers]
                tried.sort(key=lambda unit: (-unit.weight, -unit.number))
                with self._cluster.trial():
                    evict(self._cluster, fixed)
                    needed = {unit.number for unit in self._necessary(tried, known=not fixed)}
                kept = [unit for unit in kept if unit.number not in numbers or unit.number in needed]
        return uncovered(kept)

    def _depths(self, units: Iterable[Unit]) -> dict[int, int]:
        """The number of levels of these units that each of them holds."""
        depths: dict[int, int] = {}
        for unit in sorted(units, key=lambda unit: len(unit.covers)):
            depths[unit.number] = 1 + max((depths[number] for number in unit.covers if number in depths), default=-1)
        return depths

    def _loose(self, units: list[Unit], tried: list[Unit]) -> list[Unit]:
        """The units that would fit again beside the job, where the job was placed with all of them gone."""
        nodes = self._cluster.nodes
        shapes = {uid: self._cluster.placements[uid].shape for unit in tried for uid in unit.uids}
        with self._cluster.trial():
            evict(self._cluster, units)
            self._place()
            return [
                unit
                for unit in tried
                if all(
                    (nodes.free[: shapes[uid].width, [slot]] - shapes[uid].need >= shapes[uid].floor).all()
                    for uid, slot in zip(unit.uids, unit.slots, strict=True)
                )
            ]

    def _necessary(self, units: Sequence[Unit], known: bool) -> list[Unit]:
        """The units without whose eviction the job does not fit in the running trial, with all other units gone.
        `known`: it does not fit with none of these gone."""
        try:
            if not known and self.placed() is not None:
                return []
        except (OutOfProbes, SearchLimitReached):
            return list(units)
        if len(units) == 1:
            return list(units)
        half = len(units) // 2
        mark = self._cluster.mark()
        evict(self._cluster, units[half:])
        dear = self._necessary(units[:half], known=False)
        self._cluster.rewind(mark)
        evict(self._cluster, dear)
        cheap = self._necessary(units[half:], known=not dear)
        self._cluster.rewind(mark)
        return [*dear, *cheap]
