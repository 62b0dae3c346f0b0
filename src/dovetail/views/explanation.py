# SPDX-License-Identifier: Apache-2.0
"""All that has a name, explained: a job, a pod, a request for a lease, a lease; or a queue, if nothing else has it."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.kube.translate.lease_records import LeaseObjects
from dovetail.views.jobs import workloads_called
from dovetail.views.lease_types import LEASE, REQUEST
from dovetail.views.names import ANY, HINT, JOB, POD, JobNotFound, nearest
from dovetail.views.outlook import Outlook
from dovetail.views.why import explain
from dovetail.views.why_lease import WhyLeases, explain_leases
from dovetail.views.why_queue import explain_queue
from dovetail.views.why_types import OF_QUEUE, Explanation, WhyQuestion


def explain_name(
    outlook: Outlook, asked: WhyQuestion, ours: str, objects: LeaseObjects | None = None,
    schedulers: Mapping[str, str] | None = None,
) -> Explanation:  # fmt: skip
    """Explain it. `ours` is the name of the scheduler, `schedulers` has the schedulerName of pods of other ones, and
    `objects` are requests and leases, without which none has the name. Raises JobNotFound."""
    queues = outlook.state.shares.tree.queues
    if asked.key.rpartition("/")[2].startswith(OF_QUEUE) and asked.queue not in queues:
        raise JobNotFound(f"there is no queue {asked.queue}{nearest(asked.queue, queues)}")
    leased = WhyLeases(None, None)
    if objects is not None and asked.kind not in (POD, JOB):
        leased = explain_leases(outlook, objects, asked.key)
    found = Explanation(
        request=leased.request if asked.kind in (ANY, REQUEST) else None,
        lease=leased.lease if asked.kind in (ANY, LEASE) else None,
    )
    if asked.kind in (REQUEST, LEASE):
        if not found.answers:
            raise JobNotFound(f"there is no {asked.kind.rstrip('/')} {asked.key}")
        return found
    try:
        kinds = (asked.kind,) if asked.kind else _kinds_of(outlook, asked.key)
        explained = {kind: explain(outlook, asked.key, schedulers or {}, ours, kind) for kind in kinds}
    except JobNotFound as error:
        if asked.queue in queues:
            return Explanation(None, explain_queue(outlook, asked.queue), None, found.request, found.lease)
        if found.answers:
            return found
        missing, hint, names = str(error).partition(HINT)
        none = ", and no queue of that name" if asked.queue else ""
        raise JobNotFound(f"{missing}{none}{hint}{names}") from error
    job, *pod = (explained[kind] for kind in sorted(explained))
    return Explanation(job, None, pod[0] if pod else None, found.request, found.lease)


def _kinds_of(outlook: Outlook, key: str) -> tuple[str, ...]:
    """As what a name is explained: as a job and as a pod, where the pod belongs to no job of the name."""
    jobs, pods = (set(workloads_called(outlook.state, key, kind)) for kind in (JOB, POD))
    return (JOB, POD) if jobs and pods and jobs.isdisjoint(pods) else (ANY,)
