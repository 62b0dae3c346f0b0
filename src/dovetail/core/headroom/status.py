# SPDX-License-Identifier: Apache-2.0
"""How headroom is at a moment: what of it others use, and how soon they would return it."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.headroom.headroom import Headroom
from dovetail.core.headroom.layout import HeadroomLayout
from dovetail.core.preemption import nominated_room
from dovetail.core.queues.amounts import GPU
from dovetail.core.state import State


class HeadroomStatus(Struct, frozen=True):
    """`lent_milli` are the GPUs, in thousandths, of the jobs that would have to go if all instances came now, and
    `back_ms` is when the last of them had gone, by what each promises; 0 where none runs there."""

    room: Headroom
    lent_milli: int
    back_ms: int


def headroom_statuses(state: State) -> list[HeadroomStatus]:
    """The headroom of all workloads that state some. Nothing is changed."""
    models, rooms = dict(state.headrooms.models()), state.headrooms.rooms
    with (
        state.headrooms.undone(state.cluster.nodes),
        nominated_room.ahead(state, state.reservations.evicting()),
    ):
        layout = HeadroomLayout(state)
        layout.of([(room, models[key]) for key, room in rooms.items() if key in models], rooms, thorough=False)
    found = []
    for room in rooms.values():
        there = [placement.pod for placement in layout.returning.get(room.key, ())]
        lent_milli = sum([dict(state.shares.amounts(pod.uid)).get(GPU, 0) for pod in there])
        workloads = dict.fromkeys([state.workloads.workload_of(pod) for pod in there])
        backs_ms = [state.lending.return_ms(state.workloads.members(one), room.queue) or 0 for one in workloads]
        found.append(HeadroomStatus(room, lent_milli, max(backs_ms, default=0)))
    return found
