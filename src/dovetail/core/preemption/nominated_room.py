# SPDX-License-Identifier: Apache-2.0
"""Nominated room: what preemption makes free is held for the preemptors by amounts and devices, not by nodes.

Rules: the victims of a job are searched for `ahead`, in the cluster as it will be once all decided evictions are done
and the preemptors have started. So several jobs can have their room made on one node at the same time, and no two count
on the same GPU. A workload that starts meanwhile leaves each of them its room (`left`): kube-scheduler counts nominated
pods beside their victims, also on a node that is full until the victims are gone.
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
    from dovetail.core.reservations.backfill import Reservation
    from dovetail.core.state import State


@contextmanager
def ahead(state: State, others: Iterable[Reservation]) -> Iterator[None]:
    """Inside, everybody has given way who was told to for one of these, and they have the room that is held for them.
    What queues hold and are promised stays what it is now."""
    with state.reservations.pledges_kept(), state.cluster.trial():
        for pod, slot in _give_way(state, others):
            state.cluster.place(pod, slot, shape=state.cluster.shape_of(pod))
        yield


def awaited(state: State, own: Reservation, others: Sequence[Reservation]) -> list[Reservation] | None:
    """Those of the others whose pods that give way have to be gone, too, before one has the room that was found for it
    `ahead`: nobody where it is enough that its own are. None where somebody would start later for its sake."""
    makers = [one for one in others if one.nominated]
    if left(state, own.slots.tolist(), [*makers, own]):
        return []
    held = set(own.slots.tolist())
    sharing = [one for one in makers if not held.isdisjoint(one.slots.tolist())]
    start_ms = max([own.start_ms, *[one.start_ms for one in sharing]])
    later = replace(own, expected=replace(own.expected, start_ms=start_ms))
    return sharing if left(state, held, [*makers, later]) else None


def left(state: State, slots: Collection[int], makers: Sequence[Reservation]) -> bool:
    """Whether those to whom pods give way have their room by the time of each, with all that is placed in the running
    trial, of which so much is on these slots: all together that have it there, or share a node with one that has."""
    near: dict[str, Reservation] = {}
    reached, there = set(slots), [(one, one.slots.tolist()) for one in makers]
    while found := {
        one.workload: one for one, held in there if one.workload not in near and not reached.isdisjoint(held)
    }:
        near |= found
        reached.update(*(one.slots.tolist() for one in found.values()))
    if not near:
        return True
    with state.cluster.trial():
        # Of those at the same time who was first to have room made is first here, too.
        for one in sorted([one for one in makers if one.workload in near], key=lambda one: one.start_ms):
            if not all(_fill(state, pod, slot) for pod, slot in _give_way(state, [one])):
                return False
    return True


def _give_way(state: State, others: Iterable[Reservation]) -> list[tuple[Pod, int]]:
    """Take all pods off, in the running trial, that give way to any of these. Returns who comes for it, and where."""
    pods, placements = state.workloads.pods, state.cluster.placements
    makers = [one for one in others if one.nominated]
    for uid in {uid: None for one in makers for uid in sorted(one.leaving)}:
        if uid in placements:
            state.cluster.evict(uid)
    coming = [(pods[uid], slot) for one in makers for uid, slot in one.nominated if uid in pods]
    return [(pod, slot) for pod, slot in coming if pod.uid not in placements and startable(pod)]


def _fill(state: State, pod: Pod, slot: int) -> bool:
    """Place a pod there in the running trial; False where it does not fit."""
    there = np.array([slot], dtype=np.int64)
    return fill(state.cluster, state.score_cache, state.cluster.shape_of(pod), [pod], there) == 1
