# SPDX-License-Identifier: Apache-2.0
"""Filter and score: nodes for one group of a workload, within the limits of its queue and beside the reservations.

Rules: an elastic group that may not have all its pods together is placed with the fewest first; the rest comes pod by
pod. A placement that would delay a reservation is undone; then the nodes that others are evicted from are left out, as
often as the policy has `probes`. What was refused is remembered by what was wanted (see `equivalence`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster.placement import Placement
from dovetail.core.decisions import Decision
from dovetail.core.headroom import rooms
from dovetail.core.model import Pod
from dovetail.core.pipeline import pre_enqueue, spreading
from dovetail.core.pipeline.binding import binds_of
from dovetail.core.pipeline.signature import fixed, wanted_by
from dovetail.core.placing import ranks, refusals, repartition
from dovetail.core.placing.gangs import Group, SearchLimitReached, fewest, least, shapes_of
from dovetail.core.placing.pods import Scope
from dovetail.core.preemption import nominated_room
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.reservations.reservation import Reservation
from dovetail.core.state import State
from dovetail.core.workloads.index import complete, startable

NO_ROOM = {Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT, Reason.GANG_TOO_LARGE}
LIMITS = {Reason.QUEUE_LIMIT, Reason.BEYOND_GUARANTEE}
_TOO_MUCH = {*LIMITS, Reason.RESERVED, Reason.HEADROOM}
_OF_ALL = {*NO_ROOM, Reason.HEADROOM}
"""Reasons that are those of all workloads that want the same."""


Outcome = tuple[list[Decision], Refusal | None]
"""What a phase decided for a group, and why not all of it starts; None where it does."""


class PlacementPhase:
    """For one workload. `owner` is the workload whose reservation is not in its way: itself, or one that it would start
    instead of. `took_least`: an elastic group was placed with the fewest pods; the others that its queue allows follow
    one by one."""

    def __init__(self, state: State, workload: str, queue: str, members: Sequence[Pod], owner: str = "") -> None:
        self._state = state
        self._workload = workload
        self._owner = owner or workload
        self._queue = queue
        self._members = members
        self._limited = state.shares.quota.limited(queue)
        self._cache = state.equivalence
        self.took_least = False
        self._crowded: set[int] = set()
        """The nodes where the last placement would have taken room that others are evicted for."""

    def _incomplete(self, group: Group) -> Refusal:
        need = group.total_missing() + len(group.all_held())
        exist = sum(1 for pod in self._members if startable(pod) or pod.node)
        detail = f"needs {need} pods, {exist} can start{self._lacking()}"
        return Refusal(Reason.GANG_INCOMPLETE, When.NOT_YET, detail)

    def _lacking(self) -> str:
        """Of a workload with sub-gangs the first that has too few pods, or too few gangs below it."""
        gangs, tree = self._state.workloads.gangs, self._state.workloads.tree(self._workload)
        there = Counter([pod.gang for pod in self._members if startable(pod) or pod.node])
        below = Counter([gangs[gang_id].parent for gang_id in tree[1:] if gang_id in gangs])
        for gang in [gangs[gang_id] for gang_id in tree[1:] if gang_id in gangs]:
            if gang.min_groups > below[gang.id]:
                return f"; {gang.name} needs {gang.min_groups} of its gangs, {below[gang.id]} exist"
            if not below[gang.id] and gang.min_count > there[gang.id]:
                return f"; {gang.name} needs {gang.min_count}, {there[gang.id]} can start"
        return ""

    def place(self, group: Group, wanted: Hashable | None) -> Outcome:
        """`wanted` is what the group wants, None where that may not be remembered."""
        if not complete(group):
            return [], self._incomplete(group)
        whole = group
        if self._limited:
            refusal = self._beyond(fewest(group))
            if refusal is not None:
                return [], refusal
            if _elastic(group) and self._beyond(group.all_pods()) is not None:
                group = least(group)
                wanted = wanted_by(self._state, self._queue, group, self._workload)
        if wanted is not None and (known := self._cache.no_room.get(wanted)) is not None:
            return [], known
        binds, refusal = self._beside_reserved(group, wanted)
        if not binds and refusal is not None and refusal.reason in _TOO_MUCH and _elastic(group):
            # Only where it would go shows what it has of a model, or of memory, or of what is held for others: too much
            # all together.
            group = least(group)
            wanted = wanted_by(self._state, self._queue, group, self._workload)
            binds, refusal = self._beside_reserved(group, wanted)
        self.took_least |= group is not whole and bool(binds)
        if not binds and wanted is not None and refusal is not None and refusal.reason in _OF_ALL:
            self._cache.no_room[wanted] = refusal
        return binds, refusal

    def _beyond(self, pods: Sequence[Pod]) -> Refusal | None:
        """What of the queue's limits and guarantees these pods would break, wherever they went."""
        if not self._limited:
            return None
        return pre_enqueue.beyond(
            self._state, self._workload, self._queue, self._state.shares.wanted(pods), fixed(self._state, pods)
        )

    def _beside_reserved(self, group: Group, wanted: Hashable | None) -> Outcome:
        """Place the group so that what is held for others is not delayed."""
        state, held = self._state, self._state.reservations.by_workload
        others = state.reservations.others(self._owner) if held else []
        if self._owner in held:
            # What is held for the owner itself is in the way of others alone.
            wanted = None
        if not others:
            return self._within_limits(group, None)
        evicting, waiting = [one for one in others if one.evicts], [one for one in others if not one.evicts]
        behind = [one for one in waiting if not one.guaranteed] if self._has_headroom(group) else []
        if not behind:
            return self._beside(group, wanted, evicting, waiting)
        waiting = [one for one in waiting if one.guaranteed]
        # Not remembered: workloads that want the same may have no headroom, and then these are in their way.
        binds, refusal = self._beside(group, None, evicting, waiting)
        placements = state.cluster.placements
        slots = {placements[pod.uid].slot for pod in group.all_pods() if pod.uid in placements}
        for one in behind if binds else ():
            if not slots.isdisjoint(one.slots.tolist()):
                # It is planned again.
                state.reservations.release(one.workload)
        return binds, refusal

    def _has_headroom(self, group: Group) -> bool:
        """Whether room is kept for the group, or jobs were evicted from it: that lies also where others wait for pods
        to end, if they have no guarantee. Beyond the guarantee of its queue nothing is kept."""
        state, pods = self._state, group.all_pods()
        if not pods or not pods[0].work.headroom:
            return False
        if not state.shares.quota.within_guarantee(self._queue, state.shares.wanted(pods)):
            return False
        room, own = state.headrooms.of(pods[0]), state.reservations.by_workload.get(self._workload)
        return (room is not None and room.queue == self._queue) or (own is not None and own.evicts)

    def _beside(
        self, group: Group, wanted: Hashable | None, evicting: Sequence[Reservation], waiting: Sequence[Reservation]
    ) -> Outcome:  # fmt: skip
        state = self._state
        beside = self._cache.beside.get(wanted) if wanted is not None else None
        if beside is None:
            scope = state.reservations.beside(waiting) if waiting else None
            binds, beside = self._leaving_room(group, scope, evicting)
            if binds or beside is None:
                return binds, beside
            if wanted is not None:
                self._cache.beside[wanted] = beside
        shapes = [shape for shape, _ in shapes_of(state.cluster, group)]
        if not state.precedences.conflicts(shapes, waiting):
            return [], beside
        if state.expected_ends.all_before(group.all_pods(), state.reservations.soonest_ms(self._owner)):
            return self._leaving_room(group, None, evicting)
        known = self._cache.reserved.get(wanted) if wanted is not None else None
        if known is not None:
            return [], known
        binds, refusal = self._leaving_room(group, None, evicting, waiting)
        if wanted is not None and refusal is not None and refusal.reason is Reason.RESERVED:
            self._cache.reserved[wanted] = refusal
        return binds, refusal

    def _leaving_room(
        self, group: Group, scope: Scope | None, evicting: Sequence[Reservation], waiting: Sequence[Reservation] = ()
    ) -> Outcome:
        """Place the group inside the scope so that no reservation is delayed, neither of those for which pods are
        evicted nor of those that wait for pods to end. Where it would take what victims leave, it is placed again
        without these nodes, as often as the policy has `probes`."""
        state = self._state
        binds, refusal = self._within_limits(group, scope, evicting, waiting)
        for _ in range(state.policy.probes):
            if not self._crowded:
                break
            crowded = np.fromiter(self._crowded, np.int64, len(self._crowded))
            scope = np.setdiff1d(np.arange(state.cluster.nodes.used) if scope is None else scope, crowded)
            self._crowded = set()
            binds, elsewhere = self._within_limits(group, scope, evicting, waiting)
            refusal = elsewhere if binds else refusal
        self._crowded = set()
        return binds, refusal

    def _within_limits(
        self,
        group: Group,
        scope: Scope | None,
        evicting: Sequence[Reservation] = (),
        waiting: Sequence[Reservation] = (),
    ) -> Outcome:
        """Place the group inside the scope, away from GPU models of which its queue may have no more."""
        if self._limited:
            scope = pre_enqueue.within_models(self._state, self._queue, self._state.shares.wanted(fewest(group)), scope)
        kept = rooms.respected(self._state, group.all_pods(), self._queue)
        if kept:
            away = np.array(sorted(self._state.headrooms.slots(kept)), dtype=np.int64)
            beside = np.setdiff1d(np.arange(self._state.cluster.nodes.used) if scope is None else scope, away)
            binds, refusal = self._search(group, beside, evicting, waiting)
            if binds:
                return binds, refusal
        return self._search(group, scope, evicting, waiting, kept)

    def _search(
        self, group: Group, scope: Scope | None, evicting: Sequence[Reservation], waiting: Sequence[Reservation],
        headroom: Sequence[str] = (),
    ) -> Outcome:  # fmt: skip
        """Binds, and why there are none or not for all. The `headroom` of these workloads stays."""
        state, pods = self._state, group.all_pods()
        placed: list[Placement] = []
        with state.cluster.trial() as trial:
            try:
                fits = spreading.place(state, self._workload, group, scope, state.policy.search_limit)
            except SearchLimitReached:
                words = f"after {state.policy.search_limit} domains"
                return [], Refusal(Reason.SEARCH_LIMIT, When.NOT_YET, words)
            if fits and (placed := trial.placed()):
                if len(placed) > 1:
                    ranks.settle(state.cluster, group)
                over = self._over(placed)
                if over is not None:
                    return [], over
                slots = {one.slot for one in placed} if evicting or headroom else set[int]()
                if evicting and not nominated_room.left(state, slots, evicting):
                    self._crowded = {slot for one in evicting for slot in one.slots.tolist()} & slots
                    return [], _reserved(state, evicting[0])
                moved = rooms.left(state, frozenset(slots), headroom) if headroom else None
                if isinstance(moved, str):
                    return [], rooms.refusal(state, moved, pods)
                kept = state.planner.kept(waiting, state.workloads.groups)
                if kept is None:
                    return [], _reserved(state, waiting[0])
                binds = binds_of(state, self._workload, self._members, placed)
                trial.keep()
                if moved is not None:
                    state.headrooms.rooms = moved
                for one in kept:
                    state.reservations.put(one)
        if not pods:
            return [], None
        if not placed:
            return [], self._no_room(group, scope)
        state.shares.placed(placed)
        state.queue_order.counted(state.workloads.distinct([placement.pod for placement in placed]))
        return binds, None if len(binds) == len(pods) else self._left_over(group)

    def _over(self, placed: Sequence[Placement]) -> Refusal | None:
        """What limit is broken now that it is known what the pods get."""
        state = self._state
        if not self._limited:
            return None
        more: dict[str, int] = {}
        for amounts in state.shares.accounting.held_by(placed):
            for name, amount in amounts:
                more[name] = more.get(name, 0) + amount
        return pre_enqueue.beyond(state, self._workload, self._queue, more, fixed(state, [p.pod for p in placed]))

    def _no_room(self, group: Group, scope: Scope | None) -> Refusal:
        state = self._state
        if (lately := self._reported_lately()) is not None:
            return lately
        refusal = refusals.for_gang(state.cluster, state.score_cache, group)
        if scope is not None and refusal.when is When.NEVER and refusal.reason not in NO_ROOM:
            return refusal
        proposal = repartition.proposal(state.cluster, state.cluster.shape_of(group.all_pods()[0]))
        return refusal if proposal is None else replace(refusal, repartition=proposal)

    def _left_over(self, group: Group) -> Refusal | None:
        """Why a pod is not placed although its gang starts without it."""
        cluster = self._state.cluster
        for part in group.walk():
            waiting = [pod for pod in part.pods if pod.uid not in cluster.placements]
            if waiting and not part.chosen:
                return refusals.for_gang(cluster, self._state.score_cache, part)
            if waiting and part.room is not None and len(part.pods) - len(waiting) >= part.room:
                return self._beyond(waiting) or Refusal(Reason.GANG_FULL, When.NOT_YET)
            if waiting:
                return refusals.for_pod(cluster, waiting[0], part.scope)
        raise AssertionError("every pod was placed")

    def _reported_lately(self) -> Refusal | None:
        """The last refusal, if it is recent: the numbers of a failed search are not worked out each time. A refusal for
        good is never kept, since it must be withdrawn at once."""
        lately = self._state.queue.reported_lately(self._workload, self._state.now_ms, self._state.policy.tell_again_ms)
        return lately if lately is not None and lately.reason in NO_ROOM and lately.when is When.NOT_YET else None


def _elastic(group: Group) -> bool:
    """Whether it may get more pods than it needs."""
    return len(fewest(group)) < len(group.all_pods())


def _reserved(state: State, first: Reservation) -> Refusal:
    """The refusal because of a reservation of another workload."""
    until = f", which starts {first.expected.basis} at the latest" if first.expected.start_ms else ""
    return Refusal(Reason.RESERVED, When.NOT_YET, f"for {state.workloads.name_of(first.workload)}{until}")
