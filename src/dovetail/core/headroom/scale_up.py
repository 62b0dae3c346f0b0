# SPDX-License-Identifier: Apache-2.0
"""Which jobs are evicted when headroom is needed: the fewest that make room for one more instance.

Rules: the victims are units of jobs that return their room within the promise, on the nodes where the headroom lies,
however long they have run, but for a least run time that an admin has set, which the promise counts. A dry run places
the instance with them gone, and each that it can do without is reprieved, the heaviest first. What else may be evicted
for the instance is searched as for any job, if these do not suffice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from dovetail.core.headroom import rooms
from dovetail.core.headroom.headroom import Headroom
from dovetail.core.headroom.layout import lends
from dovetail.core.placing.gangs import Group, SearchLimitReached
from dovetail.core.preemption.dry_run import DryRun, OutOfProbes
from dovetail.core.preemption.search import PreemptionPlan
from dovetail.core.preemption.units import Unit
from dovetail.core.preemption.victims import Together, Victims
from dovetail.core.state import State


def find(
    state: State, workload: str, group: Group, ending: Collection[str], others: Sequence[str]
) -> PreemptionPlan | int:
    """The victims within the headroom of the workload; where there is none, or not enough of it, the time (ms) from
    which on more of them may go, 0 if that changes nothing. Pods (uid) that are `ending` are evicted for others
    already, and the headroom of the workloads `others` stays. The caller holds a trial in which what was decided before
    is done."""
    pods = list(group.all_pods())
    room = state.headrooms.of(pods[0]) if pods else None
    if room is None:
        return 0
    with rooms.occupied(state, others) as lent:
        scope = np.array(sorted(room.slots.difference(lent.tolist())), dtype=np.int64)
        policy = state.policy
        proof = DryRun(state.cluster, state.score_cache, group, scope, policy.search_limit, policy.probes)
        units, ripe_ms = _units(state, workload, room, ending)
        try:
            needed = proof.needed(units) if units else None
            nominations = proof.placed_without(needed, counted=False) if needed is not None else None
        except (OutOfProbes, SearchLimitReached):
            return ripe_ms
    if needed is None or nominations is None:
        return ripe_ms
    own = all(unit.queue == room.queue for unit in needed)
    return PreemptionPlan(tuple(needed), nominations, "preempt" if own else "reclaim", proof.probes)


def _units(state: State, workload: str, room: Headroom, ending: Collection[str]) -> tuple[list[Unit], int]:
    """The units that run where the headroom lies and return their room, as far as they may go together, and when there
    may be more (0 for none)."""
    placements, on_slot = state.cluster.placements, state.cluster.on_slot
    there = [placements[uid] for slot in sorted(room.slots) for uid in sorted(on_slot.get(slot, ()))]
    victims = Victims(state, room.queue, workload, ending, among=there, at_once=True)
    together, found = Together(state, victims.spare), []
    for unit in victims.units:
        if lends(state, room, unit.workload) and together.admits(unit):
            together.take(unit)
            found.append(unit)
    return found, victims.ripe_ms
