# SPDX-License-Identifier: Apache-2.0
"""What a state remembers between steps and could work out again, written down as values.

A state that was restored with its marks goes on as the one that it is from: it tries the same workloads in the same
step, has the same bound of work left for them, and gives new nodes the same slots. Without marks it tries all waiting
workloads at once, as views want it.

Rules: a result is stored under its workload, not under its key: the key has numbers of shapes, and a restored state
numbers shapes again. Results for workloads that no longer wait are not stored: the next workload that wants the same is
searched for once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.mark_types import FairShareDivision, OrderMarks, QueuePlace
from dovetail.core.pipeline import known_refusals
from dovetail.core.pipeline.equivalence import Known, Signature
from dovetail.core.pipeline.signature import sought_as, wanted_by
from dovetail.core.placing.gangs import Group, fewest, least
from dovetail.core.reasons import Refusal
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE


class FoundMark(Struct, frozen=True, omit_defaults=True):
    """What was found for a group of a workload (`number`), the fewest of its pods if `least`, and still holds. See
    `EquivalenceCache`. `sought` is by its signature, `sought_alone` from when it had none. `noted`: its signature is
    known; `refused`, `final` and `asks` are those of `Known`. `same` are further workloads with that signature, for
    which just that was found."""

    workload: str
    number: int
    least: bool = False
    no_room: Refusal | None = None
    beside: Refusal | None = None
    reserved: Refusal | None = None
    sought: str | None = None
    sought_alone: str | None = None
    noted: bool = False
    refused: Refusal | None = None
    final: bool | None = None
    asks: bool | None = None
    same: tuple[str, ...] = ()


class Marks(Struct, frozen=True):
    """`slots` are the names of nodes by slot, `vacant` the slots that new nodes get. `placed` are pods on nodes in the
    order in which they came there, `on_slot` those of each slot. `spares` and `opened` are those of `Spares.known`.
    `changes` were announced, and wake workloads at the next step. `barred`: see `ReservationPrecedence`. The times are
    those of `State`."""

    slots: tuple[str, ...]
    vacant: tuple[int, ...]
    placed: tuple[str, ...]
    on_slot: tuple[tuple[int, tuple[str, ...]], ...]
    spares: tuple[int, ...]
    opened: tuple[tuple[int, int], ...]
    places: tuple[QueuePlace, ...]
    changes: tuple[ClusterChange, ...]
    found: tuple[FoundMark, ...]
    headrooms: tuple[tuple[str, str], ...]
    again_ms: int
    barred: tuple[int, ...] | None
    order: OrderMarks
    division: FairShareDivision
    renewed_ms: int
    fair_share_ms: int
    ends: tuple[tuple[str, str, int], ...] = ()


def take(state: State) -> Marks:
    """The marks of a state, which stays as it is."""
    cluster, nodes, barred = state.cluster, state.cluster.nodes, state.precedences.barred
    return Marks(
        tuple(nodes.names), nodes.vacant, tuple(cluster.placements),
        tuple([(slot, tuple(uids)) for slot, uids in cluster.on_slot.items()]),
        *cluster.spares.known(), state.queue.places(), cluster.changes.announced, tuple(_found(state)),
        tuple([(workload, why) for key, why in state.equivalence.sought.items() if (workload := _with_headroom(key))]),
        state.equivalence.again_ms, None if barred is None else tuple(np.flatnonzero(barred).tolist()),
        state.queue_order.marks(), state.shares.fair_share.division(), *state.renewals_ms,
        state.shares.attained.ends(state.now_ms),
    )  # fmt: skip


def restore(state: State, marks: Marks) -> None:
    """Enter them in a state in which all else is restored."""
    _reorder(state.cluster, marks)
    state.queue.restore(marks.places)
    state.precedences.restore(marks.barred)
    cache = state.equivalence
    cache.clear()
    for one in marks.found:
        _enter(state, one)
    cache.sought |= {("headroom", workload): why for workload, why in marks.headrooms}
    cache.again_ms = marks.again_ms
    state.shares.fair_share.restore(marks.division)
    state.queue_order.restore(marks.order)
    state.shares.attained.restore_ends(marks.ends)
    state.renewals_ms = marks.renewed_ms, marks.fair_share_ms
    state.cluster.changes.take()
    for change in marks.changes:
        state.cluster.changes.announce(change)
    spares, opened = state.cluster.spares.known()
    if not set(spares).issuperset(marks.spares) or not set(marks.opened).issuperset(opened):
        # Those of the state are chosen again in its next step, which frees some.
        state.cluster.changes.announce(ClusterChange.NODE)


def _reorder(cluster: Cluster, marks: Marks) -> None:
    # Others hold these tables.
    for uid in marks.placed:
        cluster.placements[uid] = cluster.placements.pop(uid)
    for slot, uids in marks.on_slot:
        del cluster.on_slot[slot]
        cluster.on_slot[slot] = dict.fromkeys(uids)


def _with_headroom(key: object) -> str:
    """The workload whose headroom was searched for victims; "" for the key of another search."""
    return str(key[1]) if isinstance(key, tuple) and not isinstance(key, Signature) and key[0] == "headroom" else ""


def _groups(state: State, workload: str) -> Iterator[tuple[int, bool, Group]]:
    """The groups of a workload that can be tried, by number, and the fewest pods of each that is elastic."""
    if not (workload.startswith(LONE) or workload in state.workloads.gangs) or not state.workloads.members(workload):
        return
    for number, group in enumerate(state.workloads.groups(workload)):
        if group.groups or len(group.pods) >= group.missing:
            yield number, False, group
            if len(fewest(group)) < len(group.all_pods()):
                yield number, True, least(group)


def _keys(state: State, workload: str, group: Group) -> tuple[object, Signature | None, object]:
    """What the group wants, its signature, and the key of its search."""
    queue = state.shares.pod_queues.of(state.workloads.members(workload)[0])
    wanted = wanted_by(state, queue, group, workload) if group.all_pods() else None
    signature = None
    if wanted is not None:
        signature = sought_as(state, workload, queue, group, wanted, state.workloads.kinds_among(workload))
    first = next(iter(group.all_pods()), None)
    return wanted, signature, (workload, first.uid) if first is not None else None


def _found(state: State) -> Iterator[FoundMark]:
    cache = state.equivalence
    if not (cache.no_room or cache.sought or cache.beside or cache.noted):
        return
    # Thousands of workloads may want the same.
    first, same = dict[Hashable, FoundMark](), defaultdict[Hashable, list[str]](list)
    for workload in [one.workload for one in state.queue.places()]:
        noted = cache.of(workload)
        for number, fewer, group in _groups(state, workload):
            wanted, signature, own = _keys(state, workload, group)
            known = noted if noted is not None and noted.signature == signature else None
            of_signature = (True, known.refused, known.final, known.asks) if known is not None else ()
            found = FoundMark(
                workload, number, fewer, cache.no_room.get(wanted), cache.beside.get(wanted),
                cache.reserved.get(wanted), cache.sought.get(signature), cache.sought.get(own), *of_signature,
            )  # fmt: skip
            if found != FoundMark(workload, number, fewer):
                alone = workload if found.sought_alone is not None else ""
                key: Hashable = number, fewer, wanted, signature, found.noted, alone
                if key not in first:
                    first[key] = found
                elif found.noted:
                    same[key].append(workload)
    for key, found in first.items():
        yield replace(found, same=tuple(same[key]))


def _enter(state: State, one: FoundMark) -> None:
    cache = state.equivalence
    groups = _groups(state, one.workload)
    group = next((group for number, fewer, group in groups if (number, fewer) == (one.number, one.least)), None)
    if group is None:
        return
    wanted, signature, own = _keys(state, one.workload, group)
    if wanted is not None:
        tables = (cache.no_room, one.no_room), (cache.beside, one.beside), (cache.reserved, one.reserved)
        for known, refusal in tables:
            if refusal is not None:
                known[wanted] = refusal
    for key, why in ((signature, one.sought), (own, one.sought_alone)):
        if why is not None:
            cache.sought[key] = why
    if one.noted and signature is not None:
        known_refusals.know(state, one.workload, signature, group)
        entered: Known | None = cache.of(one.workload)
        assert entered is not None
        entered.final, entered.asks = one.final, one.asks
        if one.refused is not None:
            cache.refuse(entered, one.refused)
        for workload in one.same:
            cache.assign(workload, entered)
