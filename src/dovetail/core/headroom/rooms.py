# SPDX-License-Identifier: Apache-2.0
"""Where headroom lies, and how others are kept from it.

Rules
- Headroom is room in which so many instances could be placed now, with those gone that return their room within the
  promise. Its places are worked out on the scheduler's own data, so topology, devices and kubelets are proven. They
  move where another workload can start only so.
- It is part of the guarantee of its queue: what the queue holds and what is kept for it are never more than that. So a
  tenant keeps nothing for itself that it could not take back anyway.
- Nobody is evicted so that headroom is whole again. It comes back as room is freed, before those that wait.
- A workload may take room of it if it returns that within the promise, or if it is of the same queue and of a higher
  priority. A job that may not is refused where the headroom can lie nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.cluster.placement import Placement
from dovetail.core.headroom.instances import instance
from dovetail.core.headroom.table import HEADROOM_PREFIX, Headroom, InstanceSlots, headroom_key
from dovetail.core.model import Pod
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached
from dovetail.core.placing.pods import Scope, fill
from dovetail.core.preemption import nominated_room
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State

AGAIN_MS = 1000
"""How often headroom that is lacking is searched for at most where others would have to return their room."""
MOST_IN_VAIN = 4
"""The workloads for which that is done in vain in one step; others follow in later ones."""
MOST_INSTANCES, MOST_PODS = 256, 1024
"""The instances that are kept for one queue at most, and their pods: each is placed in each step."""


def settle(state: State) -> None:
    """Work out again where headroom lies, after what has happened since."""
    table = state.headrooms
    if not table:
        return
    table.note_scale_ups(state.now_ms)
    before, thorough = table.rooms, state.now_ms >= table.again_ms and (table.changed or bool(table.in_vain))
    with nominated_room.ahead(state, state.reservations.evicting()):
        layout = HeadroomLayout(state, table.in_vain)
        rooms = layout.of(_statements(state), before, thorough)
    if all(len(room.places) >= room.due for room in rooms.values()):
        table.changed, table.again_ms = False, 0
        table.in_vain.clear()
    elif thorough:
        if not table.in_vain:
            table.changed = False
        table.in_vain = table.in_vain | layout.in_vain if layout.stopped else set()
        table.again_ms = state.now_ms + AGAIN_MS
    elif layout.stopped:
        # Lost places, searched for out of turn.
        table.changed, table.again_ms = True, state.now_ms + AGAIN_MS
    if rooms == before:
        return
    table.rooms = rooms
    state.equivalence.clear()
    if not all(key in rooms and _as_strict(rooms[key], room) for key, room in before.items()):
        state.cluster.changes.announce(ClusterChange.RESERVATION)


def _as_strict(room: Headroom, before: Headroom) -> bool:
    """Whether the headroom keeps others from all that it kept them from before."""
    same = replace(room, stated=before.stated, due=before.due, places=before.places) == before
    return same and not Counter(before.places) - Counter(room.places)


def _statements(state: State) -> list[tuple[Headroom, Pod]]:
    """What is stated, with how much of it the guarantees cover, and the pod that counts."""
    shares, kept, found = state.shares, dict[str, dict[str, int]](), list[tuple[Headroom, Pod]]()
    for one in state.reservations.evicting():
        # What they were promised is as good as held.
        coming = [state.workloads.pods[uid] for uid, _ in one.nominated if uid in state.workloads.pods]
        waiting = [pod for pod in coming if pod.uid not in state.cluster.placements]
        for name in shares.path(one.queue):
            _add(kept.setdefault(name, {}), shares.wanted(waiting))
    numbers, sizes = Counter[str](), Counter[str]()
    for key, model in state.headrooms.models():
        queue, work = shares.pod_queues.of(model), model.work
        room = Headroom(key, queue, _priority(state, [model]), work.headroom, work.headroom_within_ms)
        group = _lack(state, queue) or instance(state.workloads, model, key, 0)
        if isinstance(group, str):
            found.append((replace(room, lack=group), model))
            continue
        pods, due = group.all_pods(), 0
        size, wanted, path = len(pods), shares.wanted(pods), shares.path(queue)
        guaranteed = [name for name in path if shares.tree.queues[name].guarantee]
        while due < work.headroom and numbers[queue] < MOST_INSTANCES and sizes[queue] + size <= MOST_PODS:
            more = {name: _sum(kept.get(name, {}), wanted) for name in guaranteed}
            if any(shares.quota.share_class(name, more[name]) for name in guaranteed):
                break
            for name in path:
                _add(kept.setdefault(name, {}), wanted)
            due, numbers[queue], sizes[queue] = due + 1, numbers[queue] + 1, sizes[queue] + size
        lack = "" if size <= MOST_PODS else f"an instance has {size} pods; the limit of a queue is {MOST_PODS}"
        found.append((replace(room, due=due, lack=lack), model))
    return found


def _lack(state: State, queue: str) -> str:
    """Why this queue can keep no headroom, "" where it can."""
    tree = state.shares.tree
    record = tree.queues.get(queue)
    if record is None or not record.guarantee:
        # What is guaranteed to a queue above it is that of its siblings too, which may be guaranteed all of it.
        return "the queue has no guarantee of its own, which headroom is part of"
    by = tree.stopped_by(queue)
    return "" if by is None else f"queue {by.name!r} is stopped, or has used its budget: no instance would start"


def _add(amounts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def _sum(amounts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {name: amounts.get(name, 0) + amount for name, amount in more.items()}


def _priority(state: State, pods: Sequence[Pod]) -> int:
    """The priority of the workload of these pods: of its gang where that has one, else its highest pod's."""
    gang = state.workloads.gangs.get(state.workloads.workload_of(pods[0]))
    if gang is not None and gang.priority is not None:
        return gang.priority
    return max(pod.priority for pod in pods)


def may_use(state: State, room: Headroom, pods: Sequence[Pod], queue: str) -> bool:
    """Whether a workload with these pods may take room of this headroom."""
    if queue == room.queue and (headroom_key(pods[0]) == room.key or _priority(state, pods) > room.priority):
        return True
    return returns(state, room, pods)


def returns(state: State, room: Headroom, pods: Sequence[Pod]) -> bool:
    """Whether these pods return their room within the promise."""
    back_ms = state.lending.return_ms(pods, room.queue)
    return back_ms is not None and back_ms <= room.within_ms


def respected(state: State, pods: Sequence[Pod], queue: str) -> tuple[str, ...]:
    """The workloads whose headroom the workload of these pods may not take."""
    if not state.headrooms.rooms or not pods:
        return ()
    kinds = pods if state.lending.budgeted(pods[0].namespace) else state.workloads.distinct(pods)
    rooms = state.headrooms.rooms.values()
    return tuple([room.key for room in rooms if room.places and not may_use(state, room, kinds, queue)])


def refusal(state: State, key: str, pods: Sequence[Pod]) -> Refusal:
    """Why a workload with these pods cannot take the room of this headroom."""
    room = state.headrooms.rooms[key]
    back_ms = state.lending.return_ms(pods, room.queue)
    why = "must not be evicted" if back_ms is None else f"returns room within {_seconds(back_ms)}"
    words = f"of queue {room.queue!r}, promised within {_seconds(room.within_ms)}; the job {why}"
    return Refusal(Reason.HEADROOM, When.NOT_YET, words)


def _seconds(ms: int) -> str:
    return f"{ms // 1000} s" if ms % 1000 == 0 else f"{ms / 1000:.1f} s"


def left(state: State, slots: frozenset[int], keys: Sequence[str]) -> dict[str, Headroom] | str:
    """Whether this headroom still has all its places, with what is placed on the slots in the running trial: where it
    was, or elsewhere. Returns all headroom as it lies then; the first key of which some is lost."""
    rooms = state.headrooms.rooms
    if slots.isdisjoint(state.headrooms.slots(keys)):
        return rooms
    with nominated_room.ahead(state, state.reservations.evicting()):
        known = dict(state.headrooms.models())
        # What is lacking now is not searched for.
        stated = [(replace(room, due=len(room.places)), known[key]) for key, room in rooms.items() if key in known]
        found = HeadroomLayout(state).of(stated, rooms, thorough=True)
    moved = rooms | {key: replace(rooms[key], places=room.places) for key, room in found.items()}
    lost = (key for key in keys if len(moved[key].places) < len(rooms[key].places))
    return next(lost, moved)


@contextmanager
def occupied(state: State, keys: Sequence[str]) -> Iterator[Scope]:
    """A trial in which this headroom is taken by its instances. Yields the slots where others run in it: of these
    nothing is known."""
    with state.cluster.trial():
        models, lent = dict(state.headrooms.models()) if keys else {}, set[int]()
        for key in keys:
            if key not in models:
                continue
            for number, place in enumerate(state.headrooms.rooms[key].places):
                group = instance(state.workloads, models[key], key, number)
                pods = group.all_pods() if isinstance(group, Group) else ()
                lent.update(slot for pod, slot in zip(pods, place, strict=False) if not _fill(state, pod, slot))
        yield np.array(sorted(lent), dtype=np.int64)


def _fill(state: State, pod: Pod, slot: int) -> bool:
    there = np.array([slot], dtype=np.int64)
    return fill(state.cluster, state.score_cache, state.cluster.shape_of(pod), [pod], there) == 1


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

    def of(
        self, stated: Sequence[tuple[Headroom, Pod]], before: Mapping[str, Headroom], thorough: bool
    ) -> dict[str, Headroom]:
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

    def _stands(self, room: Headroom, model: Pod, place: InstanceSlots) -> bool:
        """Whether an instance fits on these slots, with those gone that return their room. It is placed then."""
        cluster = self._cluster
        group = self._instance(room, model)
        pods = group.all_pods() if isinstance(group, Group) else ()
        if len(pods) != len(place) or not pods:
            return False
        mark, returning = cluster.mark(), self.returning.setdefault(room.key, [])
        before = len(returning)
        for pod, slot in zip(pods, place, strict=True):
            if not self._usable(slot) or not (_fill(self._state, pod, slot) or self._made(room, pod, slot)):
                cluster.rewind(mark)
                del returning[before:]
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
            if _fill(self._state, pod, slot):
                return True
        return False

    def _search(self, room: Headroom, model: Pod, thorough: bool) -> InstanceSlots | None:
        """A place for one more instance, which is placed there; None where there is none."""
        cluster, state = self._cluster, self._state
        waiting = [one for one in state.reservations if one.guaranteed and not one.evicts]
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
    if queue == room.queue and (headroom_key(pods[0]) == room.key or _priority(state, pods) > room.priority):
        return False
    return returns(state, room, pods)
