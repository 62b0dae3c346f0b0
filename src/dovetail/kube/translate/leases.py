# SPDX-License-Identifier: Apache-2.0
"""Leases of software agents and their control planes: from the objects to the core's records. `lease_requests` has
the requests.

Rules
- The id of a plane and of a lease is "namespace/name".
- The spec of a plane was written by an admin. What cannot be honoured is a Problem of the record with its field; the
  schema refuses most of it before.
- A GPULease is read if the scheduler can have written it, else it is no lease: None, with the Problem.
- Times are the broker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import groupby

from dovetail.core import events as ev
from dovetail.core.bargaining.types import (
    PREFIX,
    EndCause,
    GpuLease,
    Holding,
    LeaseAction,
    Plane,
    Revocation,
    ServiceClass,
)
from dovetail.core.model import MAX_GPUS, Instance, Problem
from dovetail.core.queues.types import Usage
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.queues import QueueUsage
from dovetail.kube.translate import queue_amounts, queues
from dovetail.kube.translate.annotation_values import LONGEST_TERM_MS, NAME
from dovetail.kube.translate.lease_durations import time_within
from dovetail.kube.translate.lease_requests import DAY_MS, MOST_DEVICES, alternative, lease_id
from dovetail.kube.translate.problems import first_of, one_of, shown

_CAUSES = {one.value: one for one in EndCause}
_ENDED = "Ended"


def plane(obj: wire.AgentControlPlane, older: str = "") -> Plane:
    """The record of a control plane. It never fails: `problem` has the invalid values. `older` is the name of the
    control plane of the namespace that counts in its place."""
    spec, problems = obj.spec, list[Problem]()
    if older:
        rule = f"must be the only one of its namespace: {older} is older and counts"
        problems.append(Problem("metadata.name", obj.metadata.name, rule))
    if NAME.fullmatch(spec.queue) is None:
        problems.append(Problem("spec.queue", shown(spec.queue), "must be the name of a queue"))
    guarantee = queue_amounts.amounts(spec.guarantee, "spec.guarantee", problems)
    limit = queue_amounts.amounts(spec.limit, "spec.limit", problems)
    queue_amounts.check_guarantee(dict(guarantee), dict(limit), problems)
    return Plane(
        id=lease_id(obj.metadata),
        queue=spec.queue,
        weight=queues.number(spec.weight, 1, queues.MAX_WEIGHT, "spec.weight", problems),
        guarantee=guarantee,
        limit=limit,
        most_leases=queues.number(spec.max_leases, 0, 10_000, "spec.maxLeases", problems),
        most_requests=queues.number(spec.max_requests, 0, 10_000, "spec.maxRequests", problems),
        heartbeat_ms=time_within(spec.heartbeat, 1000, 3_600_000, "spec.heartbeat", problems, zero=True),
        grace_ms=time_within(spec.grace, 0, DAY_MS, "spec.grace", problems),
        idle_ms=time_within(spec.idle, 1000, LONGEST_TERM_MS, "spec.idle", problems, zero=True),
        created_ms=epoch_ms(obj.metadata.creation_timestamp),
        uid=obj.metadata.uid,
        usage=usage(obj)[0],
        problem=first_of(problems),
    )


def usage(obj: wire.AgentControlPlane) -> tuple[Usage | None, tuple[LayoutFinding, ...]]:
    """The usage history in the status, and a finding if it is invalid and not used."""
    written = obj.status.usage if obj.status is not None else None
    known = (
        QueueUsage(as_of=written.as_of, used=written.used, rate=written.rate, days=written.days) if written else None
    )
    return queues.usage_of(known, "AgentControlPlane", lease_id(obj.metadata))


def lease(obj: wire.GPULease) -> tuple[GpuLease | None, Problem | None]:
    """The record of a lease that has not ended; None where it has, or where the scheduler cannot have written it, with
    the Problem."""
    spec, status, problems = obj.spec, obj.status or wire.GPULeaseStatus(), list[Problem]()
    if status.state == _ENDED:
        return None, None
    meta = obj.metadata
    granted = alternative(spec.alternative, "spec.alternative", problems)
    holdings = _holdings(spec.devices, lease_id(meta), problems)
    if sum(len(one.instances or one.devices) for one in holdings) != granted.count:
        rule = f"must be {granted.count}, as spec.alternative.count has it"
        problems.append(Problem("spec.devices", str(len(spec.devices)), rule))
    elif any(len(one.instances or one.devices) != granted.per_node for one in holdings):
        problems.append(Problem("spec.devices", "", f"must be {granted.per_node} in each part"))
    if spec.fence < 1:
        problems.append(Problem("spec.fence", str(spec.fence), "must be at least 1"))
    start_ms = _moment(spec.start, "spec.start", problems)
    found = GpuLease(
        id=lease_id(meta),
        plane=f"{meta.namespace}/{spec.plane}",
        name=meta.name,
        alternative=granted,
        holdings=holdings,
        start_ms=start_ms,
        end_ms=start_ms + granted.duration_ms if status.end is None else epoch_ms(status.end),
        fence=spec.fence,
        grace_ms=time_within(spec.grace, 0, LONGEST_TERM_MS, "spec.grace", problems),
        checkpoint_interval_ms=time_within(
            spec.checkpoint_interval, 0, LONGEST_TERM_MS, "spec.checkpointInterval", problems
        ),
        startup_ms=time_within(spec.startup, 0, LONGEST_TERM_MS, "spec.startup", problems),
        renewals=status.renewals,
        revocation=_revocation(status.revocation, problems),
    )
    problem = first_of(problems)
    return (found if problem is None else None), problem


def past(obj: wire.GPULease) -> ev.LeaseRan | None:
    """What a lease that has ended charged; None of one that has not, or that the scheduler cannot have written."""
    spec, status, problems = obj.spec, obj.status, list[Problem]()
    if status is None or status.state != _ENDED or status.rate < 0:
        return None
    granted = alternative(spec.alternative, "spec.alternative", problems)
    start_ms = _moment(spec.start, "spec.start", problems)
    ended_ms = _moment(status.ended, "status.ended", problems)
    if problems or ended_ms < start_ms:
        return None
    scavenged = granted.service is ServiceClass.SCAVENGER
    plane = f"{obj.metadata.namespace}/{spec.plane}"
    return ev.LeaseRan(lease_id(obj.metadata), plane, status.rate, start_ms, ended_ms, scavenged)


def _moment(moment: datetime | None, path: str, problems: list[Problem]) -> int:
    if moment is None or moment.tzinfo is None:
        problems.append(Problem(path, str(moment or ""), "must be a time as in RFC 3339, with its zone"))
        return 0
    return epoch_ms(moment)


def _holdings(devices: tuple[wire.LeasedDevice, ...], id_: str, problems: list[Problem]) -> tuple[Holding, ...]:
    """Devices of one part that follow each other are one Holding."""
    if len(devices) > MOST_DEVICES:
        problems.append(Problem("spec.devices", str(len(devices)), f"are too many; the limit is {MOST_DEVICES}"))
    found: dict[str, Holding] = {}
    for (part, node), group in groupby(devices[:MOST_DEVICES], key=lambda one: (one.part, one.node)):
        gpus, instances = list[int](), list[Instance]()
        for one in group:
            if not 0 <= one.gpu < MAX_GPUS:
                problems.append(Problem("spec.devices[].gpu", str(one.gpu), f"must be from 0 to {MAX_GPUS - 1}"))
            if one.slice is None:
                gpus.append(one.gpu)
            else:
                instances.append(Instance(one.gpu, one.profile, one.slice))
        uid = f"{PREFIX}{id_}/{part}"
        if uid in found or (gpus and instances) or len({*gpus, *instances}) < len(gpus) + len(instances):
            problems.append(Problem("spec.devices", shown(part), "must be once each, those of a part together"))
        found[uid] = Holding(uid, node, tuple(gpus), tuple(instances))
    return tuple(found.values())


def _revocation(revocation: wire.LeaseRevocation | None, problems: list[Problem]) -> Revocation | None:
    if revocation is None:
        return None
    cause = one_of(_CAUSES, revocation.cause, "status.revocation.cause", problems)
    deadline_ms = _moment(revocation.deadline, "status.revocation.deadline", problems)
    return Revocation(cause, deadline_ms, revocation.message) if cause is not None else None


def action(obj: wire.GPULease) -> LeaseAction | None:
    """What the agent wants of the lease; None where nothing, or nothing that was not dealt with."""
    asked, status = obj.spec.action, obj.status or wire.GPULeaseStatus()
    if asked is None or asked.number <= status.action or status.state == _ENDED:
        return None
    if asked.action == "return":
        return LeaseAction(lease_id(obj.metadata), asked.number, asked.fence, "return")
    # Without an end that is valid it is refused by the core, which has the words for it.
    until_ms = epoch_ms(asked.until) if asked.until is not None and asked.action == "renew" else 0
    return LeaseAction(lease_id(obj.metadata), asked.number, asked.fence, "renew", until_ms)


def counting(objects: Mapping[str, wire.AgentControlPlane]) -> wire.AgentControlPlane | None:
    """The control plane of a namespace that counts: the oldest, of equals the first by uid."""
    return min(
        objects.values(),
        key=lambda one: (epoch_ms(one.metadata.creation_timestamp), one.metadata.uid),
        default=None,
    )
