# SPDX-License-Identifier: Apache-2.0
"""Nominated room: preemption holds the room that it frees for the preemptor by amounts and devices, not by nodes.

Rules: the victims of a job are searched `ahead`, in the cluster as it will be once all decided evictions are done and
the preemptors have started. So room for several jobs can be made on one node at the same time, and no two of them count
on the same GPU. A workload that starts meanwhile must leave each of them its room (`left`): kube-scheduler, too, counts
nominated pods beside their victims, also on a node that is full until the victims are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from dovetail.core.model import Pod
from dovetail.core.placing.pods import fill
from dovetail.core.workloads.index import startable

if TYPE_CHECKING:
    from dovetail.core.reservations.reservation import Reservation
    from dovetail.core.state import State


@contextmanager
def ahead(state: State, others: Iterable[Reservation]) -> Iterator[None]:
    """A trial in which the victims of these reservations are gone and their preemptors are placed. What queues hold and
    are promised stays what it is now."""
    with state.pledges.frozen(), state.cluster.trial():
        for pod, slot in _evict_leaving(state, others):
            state.cluster.place(pod, slot, shape=state.cluster.shape_of(pod))
        yield


def awaited(state: State, own: Reservation, others: Sequence[Reservation]) -> list[Reservation] | None:
    """The other reservations whose victims, too, must be gone before `own` has the room that was found `ahead`; empty
    where its own victims suffice, whenever they go: they may do so before their grace is over. None where `own` would
    delay another reservation."""
    evicting = [one for one in others if one.evicts]
    at_once = replace(own, expected=replace(own.expected, start_ms=state.now_ms))
    if left(state, own.slots.tolist(), [*evicting, at_once]):
        return []
    held = set(own.slots.tolist())
    sharing = [one for one in evicting if not held.isdisjoint(_slots(state, one))]
    start_ms = max([own.start_ms, *[one.start_ms for one in sharing]])
    later = replace(own, expected=replace(own.expected, start_ms=start_ms))
    return sharing if left(state, held, [*evicting, later]) else None


def left(state: State, slots: Collection[int], evicting: Sequence[Reservation]) -> bool:
    """Whether each preemptor has its room by its start, with all that is placed in the running trial. It is checked for
    those with room on these slots, and for those that share nodes with them, directly or not."""
    near: dict[str, Reservation] = {}
    reached, there = set(slots), [(one, _slots(state, one)) for one in evicting]
    while found := {
        one.workload: one for one, held in there if one.workload not in near and not reached.isdisjoint(held)
    }:
        near |= found
        reached.update(*(_slots(state, one) for one in found.values()))
    if not near:
        return True
    with state.cluster.trial():
        # At the same time, the preemptor whose room was made first is first here, too.
        for one in sorted([one for one in evicting if one.workload in near], key=lambda one: one.start_ms):
            if not all(_fill(state, pod, slot) for pod, slot in _evict_leaving(state, [one])):
                return False
    return True


def _slots(state: State, one: Reservation) -> list[int]:
    """The slots of the room and of the victims that are still there."""
    placements = state.cluster.placements
    return [*one.slots.tolist(), *[placements[uid].slot for uid in one.leaving if uid in placements]]


def _evict_leaving(state: State, others: Iterable[Reservation]) -> list[tuple[Pod, int]]:
    """Evict the victims of these reservations in the running trial. Returns the preemptor pods and their slots."""
    pods, placements = state.workloads.pods, state.cluster.placements
    evicting = [one for one in others if one.evicts]
    for uid in {uid: None for one in evicting for uid in sorted(one.leaving)}:
        if uid in placements:
            state.cluster.evict(uid)
    coming = [(pods[uid], slot) for one in evicting for uid, slot in one.nominated if uid in pods]
    return [(pod, slot) for pod, slot in coming if pod.uid not in placements and startable(pod)]


def _fill(state: State, pod: Pod, slot: int) -> bool:
    """Place a pod on the slot in the running trial; False where it does not fit."""
    there = np.array([slot], dtype=np.int64)
    return fill(state.cluster, state.score_cache, state.cluster.shape_of(pod), [pod], there) == 1
