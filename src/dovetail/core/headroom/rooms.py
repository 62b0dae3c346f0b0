# SPDX-License-Identifier: Apache-2.0
"""Where headroom lies, and how others are kept from it.

Rules
- Headroom is room in which so many instances could be placed now, with those gone that return their room within the
  promise. Its places are worked out on the scheduler's own data, so topology, devices and kubelets are proven. They
  move where another workload can start only so.
- It is part of the guarantee of its queue: what the queue holds and what is kept for it are never more than that. So a
  tenant keeps nothing for itself that it could not take back anyway.
- It is worked out again from what has changed (`inputs`); all of it where a place is lost or gained.
- Nobody is evicted so that headroom is whole again. It comes back as room is freed, before those that wait.
- A workload may take room of it if it returns that within the promise, or if it is of the same queue and of a higher
  priority. A job that may not is refused where the headroom can lie nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.headroom.headroom import Headroom
from dovetail.core.headroom.inputs import Inputs
from dovetail.core.headroom.instances import instance
from dovetail.core.headroom.layout import HeadroomLayout, Statements, fill_slot, priority_of, reached_from
from dovetail.core.headroom.table import headroom_key
from dovetail.core.model import Pod
from dovetail.core.placing import filters
from dovetail.core.placing.gangs import Group
from dovetail.core.placing.pods import Scope
from dovetail.core.preemption import nominated_room
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State

AGAIN_MS = 1000
"""How often headroom that is lacking is searched for at most where others would have to return their room."""
MOST_INSTANCES, MOST_PODS = 256, 1024
"""The instances that are kept for one queue at most, and their pods: all are placed again when some of it changes."""


def settle(state: State) -> None:
    """Work out again where headroom lies, after what has happened since."""
    table = state.headrooms
    if not table:
        return
    table.note_scale_ups(state.now_ms)
    before, thorough = table.rooms, state.now_ms >= table.again_ms and (table.changed or bool(table.in_vain))
    if (_whole(before) or not thorough) and as_before(state):
        if _whole(before):
            table.changed, table.again_ms = False, 0
            table.in_vain.clear()
        return
    statements = statements_of(state)
    with ahead(state):
        layout = HeadroomLayout(state, table.in_vain)
        rooms = layout.of(statements, before, thorough)
    if _whole(rooms):
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
        table.inputs.note(before, statements, not _hindered(state, statements))
        return
    table.rooms = rooms
    table.inputs.forget()
    state.equivalence.clear()
    if not all(key in rooms and _as_strict(rooms[key], room) for key, room in before.items()):
        state.cluster.changes.announce(ClusterChange.RESERVATION)


@contextmanager
def ahead(state: State) -> Iterator[None]:
    """A trial in which what is evicted is gone, and those are placed for which it goes."""
    with state.headrooms.undone(state.cluster.nodes), nominated_room.ahead(state, state.reservations.evicting()):
        yield


def _whole(rooms: Mapping[str, Headroom]) -> bool:
    return all(len(room.places) >= room.due for room in rooms.values())


def as_before(state: State) -> bool:
    """Whether headroom lies where it lay for sure, by what has changed since that was searched."""
    table, inputs = state.headrooms, state.headrooms.inputs
    if inputs.same(table.rooms):
        return True
    changed = inputs.slots(table.rooms)
    if changed is None or (not _whole(table.rooms) and not inputs.same_scope()):
        return False
    statements = statements_of(state)
    if statements != inputs.statements or _hindered(state, statements):
        return False
    reached = reached_from(table.rooms, changed)
    with ahead(state):
        layout = HeadroomLayout(state)
        if layout.lost(statements, table.rooms, reached):
            return False
        lacking = [one for one in statements if len(table.rooms[one[0].key].places) < one[0].due]
        if reached and any(layout.may_fit(*one, reached) for one in lacking):
            return False
    inputs.note(table.rooms, statements, by_node=True)
    return True


def _hindered(state: State, statements: Statements) -> bool:
    """Whether the place of an instance depends on more than its nodes."""
    cluster = state.cluster
    for room, model in statements:
        group = instance(state.workloads, model, room.key, 0) if room.due else ""
        for pod in group.all_pods() if isinstance(group, Group) else ():
            shape = cluster.shape_of(pod)
            if shape.stand_ins is not None or filters.hindered(cluster, shape, [pod]):
                return True
    return False


def _as_strict(room: Headroom, before: Headroom) -> bool:
    """Whether the headroom keeps others from all that it kept them from before."""
    same = replace(room, stated=before.stated, due=before.due, places=before.places) == before
    return same and not Counter(before.places) - Counter(room.places)


def statements_of(state: State) -> list[tuple[Headroom, Pod]]:
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
        room = Headroom(key, queue, priority_of(state, [model]), work.headroom, work.headroom_within_ms)
        group = _lack(state, queue) or instance(state.workloads, model, key, 0)
        if isinstance(group, str):
            found.append((replace(room, lack=group), model))
            continue
        pods = group.all_pods()
        size, wanted, path = len(pods), shares.wanted(pods), shares.path(queue)
        most = min(work.headroom, MOST_INSTANCES - numbers[queue], (MOST_PODS - sizes[queue]) // size)
        due = _due(state, path, kept, wanted, most)
        numbers[queue], sizes[queue] = numbers[queue] + due, sizes[queue] + due * size
        for name in path:
            _add(kept.setdefault(name, {}), wanted, due)
        lack = "" if size <= MOST_PODS else f"an instance has {size} pods; the limit of a queue is {MOST_PODS}"
        found.append((replace(room, due=due, lack=lack), model))
    return found


def _due(
    state: State, path: Sequence[str], kept: Mapping[str, Mapping[str, int]], wanted: Mapping[str, int], most: int
) -> int:
    """How many instances that want so much each, `most` of them, the guarantees of the queues on the path cover beside
    what is kept."""
    quota, queues = state.shares.quota, state.shares.tree.queues
    guaranteed = [name for name in path if queues[name].guarantee]

    def covered(count: int) -> bool:
        for name in guaranteed:
            more = dict(kept.get(name, {}))
            _add(more, wanted, count)
            if quota.share_class(name, more):
                return False
        return True

    return bisect_left(range(1, most + 1), True, key=lambda count: not covered(count))


def _lack(state: State, queue: str) -> str:
    """Why this queue can keep no headroom, "" where it can."""
    tree = state.shares.tree
    record = tree.queues.get(queue)
    if record is None or not record.guarantee:
        # What is guaranteed to a queue above it is that of its siblings too, which may be guaranteed all of it.
        return "the queue has no guarantee of its own, which headroom is part of"
    by = tree.stopped_by(queue)
    return "" if by is None else f"queue {by.name!r} is stopped, or has used its budget: no instance would start"


def _add(amounts: dict[str, int], more: Mapping[str, int], times: int = 1) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + times * amount


def respected(state: State, pods: Sequence[Pod], queue: str) -> tuple[str, ...]:
    """The workloads whose headroom the workload of these pods may not take."""
    rooms = state.headrooms.rooms
    if not rooms or not pods:
        return ()
    kinds = pods if state.lending.budgeted(pods[0].namespace) else state.workloads.distinct(pods)
    # To all queues but those of the pods they return their room within one time.
    own = {state.shares.pod_queues.of(pod) for pod in kinds}
    backs_ms = {name: state.lending.return_ms(kinds, name) for name in own}
    other_ms = state.lending.return_ms(kinds, "")
    key, priority = headroom_key(pods[0]), priority_of(state, kinds)
    found = []
    for room in rooms.values():
        back_ms = backs_ms[room.queue] if room.queue in own else other_ms
        if not room.places or (back_ms is not None and back_ms <= room.within_ms):
            continue
        if room.queue != queue or (room.key != key and priority <= room.priority):
            found.append(room.key)
    return tuple(found)


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
    known = dict(state.headrooms.models())
    # What is lacking now is not searched for.
    stated = [(replace(room, due=len(room.places)), known[key]) for key, room in rooms.items() if key in known]
    reached = reached_from(rooms, slots)
    with ahead(state):
        gone = HeadroomLayout(state).lost(stated, rooms, reached)
    lost = [key for key in keys if key in gone]
    if not lost:
        return rooms
    if nowhere(state, lost[0], stated, reached):
        return lost[0]
    with ahead(state):
        layout = HeadroomLayout(state)
        found = layout.of(stated, rooms, thorough=True)
    moved = rooms | {key: replace(rooms[key], places=room.places) for key, room in found.items()}
    if not layout.stopped and not any(set(room.places) - set(rooms[key].places) for key, room in moved.items()):
        by_node = not _hindered(state, stated)
        for key in gone:
            one = state.headrooms.nowhere[key] = Inputs(state.headrooms.sources)
            one.note(rooms, stated, by_node, reached)
    return next((key for key in lost if len(moved[key].places) < len(rooms[key].places)), moved)


def nowhere(state: State, key: str, stated: Statements, reached: Collection[int]) -> bool:
    """Whether one more instance of this workload surely fits nowhere, beside all headroom but what is lost on these
    slots and with what is placed there: by what has changed since that was searched in vain."""
    inputs, rooms = state.headrooms.nowhere.get(key), state.headrooms.rooms
    changed = inputs.slots(rooms) if inputs is not None else None
    if inputs is None or changed is None or not inputs.same_scope():
        return False
    if stated != inputs.statements or _hindered(state, stated):
        return False
    scope = reached_from(rooms, changed | inputs.apart | set(reached))
    (one,) = [one for one in stated if one[0].key == key]
    with ahead(state):
        layout = HeadroomLayout(state)
        layout.lost(stated, rooms, scope)
        if layout.may_fit(*one, scope, lent=True):
            return False
    inputs.note(rooms, stated, by_node=True, apart=reached)
    return True


@contextmanager
def occupied(state: State, keys: Sequence[str]) -> Iterator[Scope]:
    """A trial in which this headroom is taken by its instances. Yields the slots where others run in it: of these
    nothing is known."""
    with state.headrooms.undone(state.cluster.nodes), state.cluster.trial():
        models, lent = dict(state.headrooms.models()) if keys else {}, set[int]()
        for key in keys:
            if key not in models:
                continue
            for number, place in enumerate(state.headrooms.rooms[key].places):
                group = instance(state.workloads, models[key], key, number)
                pods = group.all_pods() if isinstance(group, Group) else ()
                lent.update(slot for pod, slot in zip(pods, place, strict=False) if not fill_slot(state, pod, slot))
        yield np.array(sorted(lent), dtype=np.int64)
