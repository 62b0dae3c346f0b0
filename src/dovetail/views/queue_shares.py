# SPDX-License-Identifier: Apache-2.0
"""The tree of queues: allocation, fair share and usage of each.

Rules: GPU-hours are those that queues are charged: a pod's dominant share of the cluster, in GPUs (in CPUs if the
cluster has no GPUs). Days are in UTC: the usage of 1 day is that of today, of 7 days that of today and the six days
before. Credit is the decayed fair share by weight alone, less the decayed usage: negative after more usage than that.
"""

from __future__ import annotations

from dovetail.core.headroom.status import HeadroomStatus, headroom_statuses
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import DAY_MS, GPU_HOUR
from dovetail.core.state import State
from dovetail.views.jobs import name_of, waiting_jobs
from dovetail.views.queue_types import QueueHeadroom, QueueShare, UserShare
from dovetail.views.queues import heads, inside, queue_named

WINDOWS = (1, 7, 30)


def share(state: State, now_ms: int, queue: str = "") -> tuple[QueueShare, ...]:
    """The queue and those below it, or all queues; a parent comes before its children. Raises JobNotFound."""
    if queue:
        queue_named(state, queue)
    queue_snapshots = [one for one in state.queue_snapshots(now_ms) if inside(state, one.name, queue)]
    top = len(state.shares.tree.path(queue)) - 1 if queue else 0
    first, waiting = heads(state), [job.queue for job in waiting_jobs(state)]
    counts = {one.name: sum(inside(state, queue, one.name) for queue in waiting) for one in queue_snapshots}
    kept = headroom_statuses(state) if state.headrooms.rooms else ()
    return tuple(
        _share(
            state, one, top, first.get(one.name, ""), counts[one.name], [h for h in kept if h.room.queue == one.name]
        )
        for one in queue_snapshots
    )


def _share(
    state: State, one: QueueSnapshot, top: int, first: str, waiting: int, headroom: list[HeadroomStatus]
) -> QueueShare:
    record, today = state.shares.tree.queues[one.name], one.as_of_ms // DAY_MS
    in_1d, in_7d, in_30d = (
        hours(sum(used for day, used in one.days if today - window < day <= today)) for window in WINDOWS
    )
    total = sum(used for _, used in one.users)
    users = sorted(one.users, key=lambda pair: (-pair[1], pair[0]))
    problem = str(one.problem) if one.problem is not None else one.warning
    return QueueShare(
        one.name, len(state.shares.tree.path(one.name)) - 1 - top, one.leaf, one.guarantee, one.limit, one.due,
        one.allocated, one.borrowed, one.pending, waiting, one.rate_milli, in_1d, in_7d, in_30d,
        hours(one.used), one.share_ppm, record.weight, one.weight_ppm, hours(one.credit),
        name_of(state, first) if first else "",
        tuple(UserShare(user, hours(used), used * 1_000_000 // total if total else 0) for user, used in users),
        problem, *(one.next_guarantee or (0, ())), headroom=tuple(map(_headroom, headroom)),
    )  # fmt: skip


def _headroom(one: HeadroomStatus) -> QueueHeadroom:
    room = one.room
    return QueueHeadroom(
        room.key, room.stated, room.due, len(room.places), room.within_ms, one.back_ms, one.lent_milli, room.lack
    )


def hours(milli_ms: int) -> float:
    """GPU-hours from milli-GPU times ms."""
    return round(milli_ms / GPU_HOUR, 3)
