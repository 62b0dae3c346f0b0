# SPDX-License-Identifier: Apache-2.0
"""What the doctor takes from the objects of schedulers: queues, mutating webhooks, and the leases of leaders."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dovetail.advice.doctor.records import Lease, QueueRecord, Webhook
from dovetail.core.queues.tree import Tree
from dovetail.kube.api.lease import SCHEDULER_NAME
from dovetail.kube.objects.base import ObjectMeta, Wire, epoch_ms
from dovetail.kube.objects.queues import Queue
from dovetail.kube.translate.queues import queue

_LAPSED = 3
"""A lease that was not renewed for so many times its duration has no holder."""


class _Webhook(Wire, frozen=True):
    name: str = ""


class WebhookConfiguration(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Webhook, ...] = ()


class _LeaseSpec(Wire, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: datetime | None = None


class DoctorLease(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _LeaseSpec = _LeaseSpec()


def queues_of(objects: Iterable[Queue]) -> tuple[QueueRecord, ...]:
    tree = Tree()
    for one in objects:
        tree.put(queue(one))
    names = tree.in_order()
    return tuple(QueueRecord(name, str(tree.problem(name) or ""), tree.scaled_down(name)) for name in names)


def webhooks_of(objects: Iterable[WebhookConfiguration]) -> tuple[Webhook, ...]:
    return tuple(Webhook(one.metadata.name, hook.name) for one in objects for hook in one.webhooks)


def leases_of(objects: Iterable[DoctorLease], now_ms: int) -> tuple[Lease, ...]:
    """The leases that have a holder. A holder that does not renew its lease leads no more; clocks may differ a
    little."""
    found = []
    for one in objects:
        name = one.metadata.annotations.get(SCHEDULER_NAME, "")
        renewed_s = max(0, now_ms - epoch_ms(one.spec.renew_time)) // 1000
        if name and one.spec.holder_identity and renewed_s <= _LAPSED * one.spec.lease_duration_seconds:
            where = f"{one.metadata.namespace}/{one.metadata.name}"
            found.append(Lease(where, name, one.spec.holder_identity, renewed_s))
    return tuple(sorted(found, key=lambda one: one.name))
