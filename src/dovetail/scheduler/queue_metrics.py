# SPDX-License-Identifier: Apache-2.0
"""Gauges of queues, headroom and reservations, computed at each scrape.

Rules: amounts are in plain units, not in the core's integers: CPUs, bytes, GPUs, compute slices. The gauges of a
deleted queue disappear.
"""

from __future__ import annotations

from dovetail.core.headroom.status import headroom_statuses
from dovetail.core.queues.types import CPU, GPU, GPU_HOUR, GPU_MEMORY, MODEL_PREFIX
from dovetail.core.state import State
from dovetail.kube.translate.money import MICRO
from dovetail.scheduler import metrics

_MILLI = 1 / 1_000
_UNITS = {CPU: _MILLI, GPU: _MILLI, GPU_MEMORY: 2.0**20}
_GAUGES = (
    metrics.QUEUE_ALLOCATED,
    metrics.QUEUE_DUE,
    metrics.QUEUE_BORROWED,
    metrics.QUEUE_USAGE_SHARE,
    metrics.QUEUE_PENDING,
    metrics.QUEUE_BUDGET,
    metrics.QUEUE_BUDGET_USED,
    metrics.QUEUE_MONEY,
    metrics.QUEUE_MONEY_SPENT,
    metrics.HEADROOM,
    metrics.HEADROOM_LENT,
    metrics.HEADROOM_RETURN_SECONDS,
)


def measure(state: State) -> None:
    for gauge in _GAUGES:
        gauge.clear()
    for snapshot in state.queue_snapshots(state.now_ms):
        for gauge, amounts in (
            (metrics.QUEUE_ALLOCATED, snapshot.allocated),
            (metrics.QUEUE_DUE, snapshot.due),
            (metrics.QUEUE_BORROWED, snapshot.borrowed),
        ):
            for resource, amount in amounts:
                gauge.labels(snapshot.name, resource).set(amount * _unit(resource))
        metrics.QUEUE_USAGE_SHARE.labels(snapshot.name).set(snapshot.share_ppm / 1_000_000)
        metrics.QUEUE_PENDING.labels(snapshot.name).set(snapshot.pending_jobs)
        if snapshot.spending is not None:
            metrics.QUEUE_BUDGET.labels(snapshot.name).set(snapshot.spending.budget.amount / GPU_HOUR)
            metrics.QUEUE_BUDGET_USED.labels(snapshot.name).set(snapshot.spending.used / GPU_HOUR)
        if (money := snapshot.money) is not None and state.now_ms < money.until_ms:
            metrics.QUEUE_MONEY.labels(snapshot.name).set(money.amount / MICRO)
            metrics.QUEUE_MONEY_SPENT.labels(snapshot.name).set(money.spent / MICRO)
    for one in headroom_statuses(state) if state.headrooms.rooms else ():
        room = one.room
        for name, count in (("stated", room.stated), ("due", room.due), ("kept", len(room.places))):
            metrics.HEADROOM.labels(room.queue, room.key, name).set(count)
        metrics.HEADROOM_LENT.labels(room.queue, room.key).set(one.lent_milli * _MILLI)
        for name, longest_ms in (("promised", room.within_ms), ("now", one.back_ms)):
            metrics.HEADROOM_RETURN_SECONDS.labels(room.queue, room.key, name).set(longest_ms * _MILLI)
    made_ms = [reservation.made_ms for reservation in state.reservations]
    metrics.RESERVATIONS.set(len(made_ms))
    metrics.RESERVED_WAIT_SECONDS.set((state.now_ms - min(made_ms, default=state.now_ms)) / 1_000)


def _unit(resource: str) -> float:
    return _MILLI if resource.startswith(MODEL_PREFIX) else _UNITS.get(resource, 1.0)
