# SPDX-License-Identifier: Apache-2.0
"""Places for the instances of headroom, with those gone that return their room for them.

Rules: a place is the slots of one instance. It is a place as long as the instance fits there with those gone that
return their room within the promise. Another one is searched in free room first, then in what others would have to
return.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.placement import Placement
from dovetail.core.headroom.headroom import Headroom, InstanceSlots
from dovetail.core.headroom.inputs import holding
from dovetail.core.headroom.instances import instance
from dovetail.core.headroom.table import HEADROOM_PREFIX, headroom_key
from dovetail.core.model import Pod
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached
from dovetail.core.placing.pods import Scope, fill
from dovetail.core.state import State

Statements = Sequence[tuple[Headroom, Pod]]
"""The headroom that is stated, each with the pod that counts."""
MOST_IN_VAIN = 4
"""The workloads for which that is done in vain in one step; others follow in later ones."""


class HeadroomLayout:
    """Places for the instances of headroom, in the running trial. `returning` are those that have to go for them,
    `in_vain` the workloads for which room of others was searched in vain, and `stopped` is whether that was too many to
    go on. For the workloads `without` it is not done."""

    def __init__(self, state: State, without: Collection[str] = ()) -> None:
        self.in_vain: set[str] = set()
        self.stopped = False
        self._without = frozenset(without)
        self.returning: dict[str, list[Placement]] = {}
        self._state, self._cluster = state, state.cluster
        self._number = 0
        self._lent: dict[tuple[str, str], bool] = {}

    def of(self, stated: Statements, before: Mapping[str, Headroom], thorough: bool) -> dict[str, Headroom]:
        """The headroom with its places: those of `before` that still are, and others where there is room. `thorough`,
        or where a place is lost: also where there is once those are gone that return theirs."""
        found: dict[str, list[InstanceSlots]] = {}
        for room, model in stated:
            old = before[room.key].places if room.key in before else ()
            kept = found[room.key] = list[InstanceSlots]()
            for place in old:
                if len(kept) < room.due and self._stands(room, model, place):
                    kept.append(place)
            thorough = thorough or len(kept) < min(len(old), room.due)
        for room, model in stated:
            places = found[room.key]
            while len(places) < room.due and (another := self._search(room, model, thorough)) is not None:
                places.append(another)
        return {room.key: replace(room, places=tuple(found[room.key])) for room, _ in stated}

    def lost(self, stated: Statements, rooms: Mapping[str, Headroom], reached: Collection[int]) -> set[str]:
        """The workloads that have a place on these slots which is none any more. All others there are taken then."""
        found = set[str]()
        for room, model in stated:
            for place in rooms[room.key].places:
                if any(slot in reached for slot in place) and not self._stands(room, model, place):
                    found.add(room.key)
        return found

    def may_fit(self, room: Headroom, model: Pod, slots: Collection[int], lent: bool = False) -> bool:
        """Whether one more instance may fit now that these slots have changed, if it did not before; `lent`: with those
        gone there that return their room. That is known only where an instance is one pod. Takes the place."""
        cluster, group = self._cluster, self._instance(room, model)
        if not isinstance(group, Group) or len(group.all_pods()) > 1:
            return True
        usable = [slot for slot in sorted(slots) if slot < cluster.nodes.used and self._usable(slot)]
        for placement in self._lenders(room, usable) if lent else ():
            cluster.evict(placement.pod.uid)
        return self._fits(room, model, np.array(usable, dtype=np.int64)) is not None

    def _stands(self, room: Headroom, model: Pod, place: InstanceSlots) -> bool:
        """Whether an instance fits on these slots, with those gone that return their room. It is placed then."""
        cluster = self._cluster
        group = self._instance(room, model)
        if not isinstance(group, Group):
            return False
        pods = group.all_pods()
        if len(pods) != len(place) or not pods or not self._in_domains(group, place):
            return False
        mark, returning = cluster.mark(), self.returning.setdefault(room.key, [])
        before = len(returning)
        for pod, slot in zip(pods, place, strict=True):
            if not self._usable(slot) or not (fill_slot(self._state, pod, slot) or self._made(room, pod, slot)):
                cluster.rewind(mark)
                del returning[before:]
                return False
        return True

    def _in_domains(self, group: Group, place: InstanceSlots) -> bool:
        """Whether each gang of an instance on these slots is in one domain of each level that it requires: the labels
        of nodes change."""
        if not any(part.required for part in group.walk()):
            return True
        slot_of = {pod.uid: slot for pod, slot in zip(group.all_pods(), place, strict=True)}
        for part in group.walk():
            slots = [slot_of[pod.uid] for pod in part.all_pods()]
            for key in part.required:
                ids = self._cluster.fabric.domains(key)[slots]
                if ids[0] == ABSENT or (ids != ids[0]).any():
                    return False
        return True

    def _instance(self, room: Headroom, model: Pod) -> Group | str:
        self._number += 1
        return instance(self._state.workloads, model, room.key, self._number)

    def _usable(self, slot: int) -> bool:
        nodes = self._cluster.nodes
        return nodes.records[slot] is not None and slot not in nodes.in_maintenance

    def _made(self, room: Headroom, pod: Pod, slot: int) -> bool:
        """Whether the pod fits on the slot once some of those are gone that return their room: one after another, so
        that no more is counted on than is needed."""
        for placement in self._lenders(room, [slot]):
            self._cluster.evict(placement.pod.uid)
            self.returning[room.key].append(placement)
            if fill_slot(self._state, pod, slot):
                return True
        return False

    def _search(self, room: Headroom, model: Pod, thorough: bool) -> InstanceSlots | None:
        """A place for one more instance, which is placed there; None where there is none."""
        cluster, state = self._cluster, self._state
        waiting = holding(state.reservations)
        held = waiting or cluster.nodes.in_maintenance
        scope = state.reservations.beside(waiting, later=True) if held else None
        if (place := self._fits(room, model, scope)) is not None:
            return place
        if not thorough or room.key in self._without:
            return None
        if len(self.in_vain) >= MOST_IN_VAIN:
            self.stopped = True
            return None
        mark = cluster.mark()
        slots = range(cluster.nodes.used) if scope is None else scope.tolist()
        for placement in self._lenders(room, slots):
            cluster.evict(placement.pod.uid)
        place = self._fits(room, model, scope)
        cluster.rewind(mark)
        if place is not None and self._stands(room, model, place):
            return place
        self.in_vain.add(room.key)
        return None

    def _fits(self, room: Headroom, model: Pod, scope: Scope | None) -> InstanceSlots | None:
        cluster, state = self._cluster, self._state
        group = self._instance(room, model)
        if not isinstance(group, Group):
            return None
        mark = cluster.mark()
        try:
            fits = GangSearch(cluster, state.score_cache, state.policy.search_limit).place(group, scope)
        except SearchLimitReached:
            fits = False
        pods = group.all_pods()
        if not fits or any(pod.uid not in cluster.placements for pod in pods):
            cluster.rewind(mark)
            return None
        return tuple([cluster.placements[pod.uid].slot for pod in pods])

    def _lenders(self, room: Headroom, slots: Sequence[int]) -> list[Placement]:
        """The pods on these slots that return their room within the promise, in a fixed order."""
        cluster = self._cluster
        there = [cluster.placements[uid] for slot in slots for uid in sorted(cluster.on_slot.get(slot, ()))]
        return [placement for placement in there if self._lends(room, placement.pod)]

    def _lends(self, room: Headroom, pod: Pod) -> bool:
        if pod.uid.startswith(HEADROOM_PREFIX) or pod.deleting or not pod.managed:
            return False
        workload = self._state.workloads.workload_of(pod)
        known = self._lent.get((room.key, workload))
        if known is None:
            known = self._lent[room.key, workload] = lends(self._state, room, workload)
        return known


def lends(state: State, room: Headroom, workload: str) -> bool:
    """Whether a workload that runs in headroom returns its room within the promise, all of it."""
    pods = [pod for pod in state.workloads.members(workload) if pod.uid in state.cluster.placements]
    if not pods:
        return False
    queue = state.shares.pod_queues.of(pods[0])
    if queue == room.queue and (headroom_key(pods[0]) == room.key or priority_of(state, pods) > room.priority):
        return False
    return returns(state, room, pods)


def returns(state: State, room: Headroom, pods: Sequence[Pod]) -> bool:
    """Whether these pods return their room within the promise."""
    back_ms = state.lending.return_ms(pods, room.queue)
    return back_ms is not None and back_ms <= room.within_ms


def priority_of(state: State, pods: Sequence[Pod]) -> int:
    """The priority of the workload of these pods: of its gang where that has one, else its highest pod's."""
    gang = state.workloads.gangs.get(state.workloads.workload_of(pods[0]))
    if gang is not None and gang.priority is not None:
        return gang.priority
    return max(pod.priority for pod in pods)


def reached_from(rooms: Mapping[str, Headroom], slots: Collection[int]) -> set[int]:
    """These slots with those of all places that share slots with them, directly or not."""
    reached = set(slots)
    several = [place for room in rooms.values() for place in room.places if len(place) > 1]
    while more := [one for one in several if not reached.isdisjoint(one) and not reached.issuperset(one)]:
        reached.update(*more)
    return reached


def fill_slot(state: State, pod: Pod, slot: int) -> bool:
    there = np.array([slot], dtype=np.int64)
    return fill(state.cluster, state.score_cache, state.cluster.shape_of(pod), [pod], there) == 1
