# SPDX-License-Identifier: Apache-2.0
"""The status of a queue: from the core's snapshot to the document.

Rules: a status is written as a whole; a field that is absent in it is removed. All numbers of the history are written
exactly, so a value that is read (`queues`) equals the one that was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from dovetail.kube.api.texts import MESSAGE_BYTES, clipped
from dovetail.kube.objects import queues as wire
from dovetail.kube.objects.base import epoch_ms, milli_time_text
from dovetail.kube.translate.money import money_document, money_spent
from dovetail.kube.translate.queue_amounts import amounts_document, gpu_hours
from dovetail.kube.translate.queues import status_of

if TYPE_CHECKING:
    from dovetail.core.queues.status import QueueSnapshot
    from dovetail.core.reasons import Expected

READY = "Ready"
_EPOCH = date(1970, 1, 1)


def queue_status(
    snapshot: QueueSnapshot,
    now_ms: int,
    head: tuple[str, str, Expected | None] | None,
    before: wire.Queue | None = None,
    spent: wire.MoneySpent | None = None,
) -> dict[str, Any]:
    """The whole status of a queue, which replaces the old one. `head` is the first waiting job: its name, the code of
    its refusal, and its expected start. `before` is the object as last read, for the transition time of Ready, and for
    what was spent of money where there is no news of it (`spent`)."""
    document: dict[str, Any] = {
        "allocated": amounts_document(snapshot.allocated),
        "guaranteed": amounts_document(snapshot.guarantee),
        "borrowed": amounts_document(snapshot.borrowed),
        "due": amounts_document(snapshot.due),
        "pending": amounts_document(snapshot.pending),
        "pendingJobs": snapshot.pending_jobs,
        "usage": usage_document(snapshot),
        "conditions": [_ready(snapshot, now_ms, before)],
    }
    if (spending := snapshot.spending) is not None:
        document["budget"] = {
            "used": gpu_hours(spending.used),
            "periodStart": milli_time_text(spending.start_ms),
            "periodEnd": milli_time_text(spending.until_ms),
        }
    if snapshot.next_guarantee is not None:
        changes_ms, guarantee = snapshot.next_guarantee
        document["calendar"] = {"changesAt": milli_time_text(changes_ms), "guarantee": amounts_document(guarantee)}
    spent = spent or (money_spent(before) if before is not None else None)
    if snapshot.money is not None and spent is not None:
        document["money"] = money_document(spent)
    if head is not None:
        name, reason, expected = head
        document["head"] = {"name": name, "reason": reason}
        if expected is not None:
            document["head"]["sure"] = expected.sure.value
            if expected.start_ms:
                document["head"]["expectedStart"] = milli_time_text(expected.start_ms)
    return document


def usage_document(snapshot: QueueSnapshot) -> dict[str, Any]:
    """What a queue used, as its status has it."""
    return {
        "asOf": milli_time_text(snapshot.as_of_ms),
        "used": str(snapshot.used),
        "rate": str(snapshot.rate_milli),
        "share": f"{Decimal(snapshot.share_ppm) / 1_000_000:.6f}",
        "credit": gpu_hours(snapshot.credit),
        "days": [{"day": (_EPOCH + timedelta(days=day)).isoformat(), "used": str(used)} for day, used in snapshot.days],
        "users": [{"name": name, "used": str(used)} for name, used in snapshot.users],
        "jobs": [{"name": name, "used": str(used)} for name, used in snapshot.jobs],
    }


def _ready(snapshot: QueueSnapshot, now_ms: int, before: wire.Queue | None) -> dict[str, str]:
    """The condition Ready: whether the queue can be used."""
    problem = snapshot.problem
    reason, message = ("Usable", snapshot.warning) if problem is None else ("Invalid", str(problem))
    known = status_of(before).conditions if before is not None else ()
    return ready_condition(problem is None, reason, message, now_ms, known)


def ready_condition(
    ready: bool, reason: str, message: str, now_ms: int, before: Iterable[wire.QueueCondition]
) -> dict[str, str]:
    """The condition Ready, with the time since when it has its status; `before` are the conditions that were read."""
    status, since = "True" if ready else "False", milli_time_text(now_ms)
    for one in before:
        if (one.type, one.status) == (READY, status) and one.last_transition_time is not None:
            since = milli_time_text(epoch_ms(one.last_transition_time))
    explained = {"reason": reason, "message": clipped(message, MESSAGE_BYTES)}
    return {"type": READY, "status": status, "lastTransitionTime": since} | explained
