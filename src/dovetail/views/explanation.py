# SPDX-License-Identifier: Apache-2.0
"""What a name stands for, explained: a pod or job, else a queue."""

from __future__ import annotations

from msgspec import Struct

from dovetail.views.jobs import JobNotFound
from dovetail.views.outlook import Outlook
from dovetail.views.why import Why, explain
from dovetail.views.why_queue import WhyQueue, explain_queue


class Explanation(Struct, frozen=True):
    """One of both is not None."""

    job: Why | None = None
    queue: WhyQueue | None = None


def explain_name(outlook: Outlook, key: str, queue: str, ours: str) -> Explanation:
    """Explain the pod or job "namespace/name", or else the queue ("": none is meant). `ours` is the name of the
    scheduler. Raises JobNotFound."""
    try:
        return Explanation(job=explain(outlook, key, ours=ours))
    except JobNotFound as error:
        if queue in outlook.state.shares.tree.queues:
            return Explanation(queue=explain_queue(outlook, queue))
        none = "; there is no queue of that name either" if queue else ""
        raise JobNotFound(f"{error}{none}") from error
