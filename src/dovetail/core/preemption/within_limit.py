# SPDX-License-Identifier: Apache-2.0
"""The search for victims below a limit that is full: the limit of the job's queue, or of a queue above it.

Rules: the possible victims are the same as where room is lacking: units of a lower precedence in the job's own queue,
and units of other queues that `Reclaim` allows. Only pods below the queue of the limit help. Where the nodes lack room
too, that is searched first (`preemption.search`), among pods below the limit if that finds any. Then the units with the
least lost work are added until no limit is in the way; then each unit that both can do without is reprieved, the
heaviest first. What becomes free below a limit is kept for the job until it starts (`Reservations.promised_beside`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from dovetail.core.placing.gangs import Group, SearchLimitReached
from dovetail.core.placing.pods import Placed, Scope
from dovetail.core.preemption import search
from dovetail.core.preemption.dry_run import DryRun, OutOfProbes
from dovetail.core.preemption.search import GaveUp, NoPreemption, PreemptionPlan
from dovetail.core.preemption.smallest_part import smallest_part
from dovetail.core.preemption.units import Unit, uncovered
from dovetail.core.preemption.victims import Together, Victims, amounts_of, lower_precedence, reclaims
from dovetail.core.state import State


def find(
    state: State, workload: str, group: Group, scope: Scope | None = None, ending: Collection[str] = ()
) -> PreemptionPlan | GaveUp | NoPreemption:
    """Search victims so that the job fits on the nodes and within the limits above it. Pods (uid) that are `ending` are
    being evicted for others already."""
    if not all(pod.work.preempts for pod in group.all_pods()):
        return NoPreemption("its pods preempt no others (preemptionPolicy Never)")
    return _Finding(state, workload, group, scope, ending).find()


class _Finding:
    def __init__(self, state: State, workload: str, group: Group, scope: Scope | None, ending: Collection[str]) -> None:
        self._state = state
        self._workload = workload
        self._group = group = smallest_part(state.cluster, group)
        self._scope = scope
        self._ending = ending
        self._shares = shares = state.shares
        pods = list(group.all_pods())
        self._queue = shares.pod_queues.of(pods[0])
        self._wanted = shares.wanted(pods)
        self._pledged = state.pledges.beside(workload)
        self._excess = shares.quota.excess(self._queue, self._wanted, self._pledged)
        self._queues = search.victim_queues(state, workload, self._queue, self._wanted)
        self._victims = Victims(state, self._queue, workload, ending, self._queues)
        self._proof = DryRun(
            state.cluster, state.score_cache, group, scope, state.policy.search_limit, state.policy.probes
        )

    def find(self) -> PreemptionPlan | GaveUp | NoPreemption:
        found = self._find()
        return found if isinstance(found, PreemptionPlan) else replace(found, ripe_ms=self._victims.ripe_ms)

    def _find(self) -> PreemptionPlan | GaveUp | NoPreemption:
        if not self._excess:
            return NoPreemption(
                "the evictions for other workloads free enough below the limit"
                if self._pledged
                else "its node decides how much it counts towards the limit: by its GPU model or GPU memory"
            )
        try:
            room = self._room()
            if isinstance(room, GaveUp | NoPreemption):
                return room
            units = self._within_limits(room)
            if units is None:
                own = f"the pods {lower_precedence(self._state, self._queue)} in its queue"
                return NoPreemption(f"{own}, and those of queues beyond their fair share, do not hold enough")
            return self._found(units)
        except SearchLimitReached:
            why = f"the search for a placement was stopped after {self._state.policy.search_limit} domains"
        except OutOfProbes:
            why = "the limit of dry runs is reached"
        return GaveUp(self._proof.probes, why)

    def _room(self) -> list[Unit] | GaveUp | NoPreemption:
        """The victims that free room on the nodes, limits aside."""
        if self._proof.placed_without(()) is not None:
            return []
        below = {name for name in self._queues if all(self._helps(name, above) for above, _ in self._excess)}
        found = self._room_made_by(below)
        return found if isinstance(found, list) else self._room_made_by(None)

    def _room_made_by(self, only: Collection[str] | None) -> list[Unit] | GaveUp | NoPreemption:
        found = search.find(self._state, self._workload, self._group, self._scope, self._ending, only)
        if not isinstance(found, PreemptionPlan):
            return found
        there = {unit.uids: unit for unit in self._victims.units}
        return [there[unit.uids] for unit in found.victims]

    def _helps(self, queue: str, above: str) -> bool:
        return above in self._shares.path(queue)

    def _within_limits(self, room: Sequence[Unit]) -> list[Unit] | None:
        """These victims, and as many more as are needed so that no limit is in the way; None if there are too few."""
        state, precedence = self._state, self._state.precedence(self._workload)
        together = Together(state, self._victims.spare)
        claim = self._shares.quota.claim_back(self._queue, self._wanted, state.pledges.total())
        taken: list[Unit] = []
        for unit in [*room, *self._victims.units]:
            if not self._beyond(taken):
                return uncovered(taken)
            if len(taken) >= len(room):
                left = together.left(unit)
                useful = any(self._frees(unit.queue, left, name, resource) for name, resource in self._beyond(taken))
                if not useful or not together.admits(unit):
                    continue
                if unit.queue == self._queue:
                    may = unit.precedence < precedence
                else:
                    may = reclaims(claim, unit, amounts_of(self._shares, left))
                if not may:
                    continue
            elif unit.queue != self._queue:
                reclaims(claim, unit, amounts_of(self._shares, together.left(unit)))
            together.take(unit)
            taken.append(unit)
        return None if self._beyond(taken) else uncovered(taken)

    def _frees(self, queue: str, uids: Iterable[str], name: str, resource: str) -> bool:
        return self._helps(queue, name) and any(dict(self._shares.amounts(uid)).get(resource, 0) for uid in uids)

    def _beyond(self, gone: Iterable[Unit]) -> list[tuple[str, str]]:
        """The queues and classes whose limit the job would exceed with these units gone."""
        freed: dict[str, Counter[str]] = {}
        queues = {uid: unit.queue for unit in gone for uid in unit.uids}
        for uid, queue in queues.items():
            for name in self._shares.path(queue):
                freed.setdefault(name, Counter()).update(dict(self._shares.amounts(uid)))
        none: Counter[str] = Counter()
        return [
            (name, resource)
            for name, amounts in self._excess
            for resource, amount in amounts.items()
            if amount > freed.get(name, none)[resource]
        ]

    def _found(self, units: list[Unit]) -> PreemptionPlan | NoPreemption:
        """Reprieve the units that both the limits and the nodes can do without."""
        nominations: Placed | None = self._proof.placed_without(units)
        if nominations is None:
            return NoPreemption("it does not fit even with the victims gone that free the limit and the nodes")
        kept = units
        try:
            for unit in sorted(units, key=lambda unit: (-unit.weight, -unit.number)):
                fewer = [one for one in kept if one is not unit]
                if not self._beyond(fewer) and (placed := self._proof.placed_without(fewer)) is not None:
                    kept, nominations = fewer, placed
        except (SearchLimitReached, OutOfProbes):
            # A unit that could not be tried any more counts as needed.
            pass
        own = all(unit.queue == self._queue for unit in kept)
        return PreemptionPlan(tuple(kept), nominations, "preempt" if own else "reclaim", self._proof.probes)
