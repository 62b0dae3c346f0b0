# SPDX-License-Identifier: Apache-2.0
"""Leases of software agents: from the objects to the core's records.

Rules
- The id of a plane, a request and a lease is "namespace/name"; a lease has the id of its request, so a pod of the
  namespace names it by its name alone.
- Everything in a spec but that of a GPULease was written by an agent or an admin. What cannot be honoured is a Problem
  of the record with its field; the schema refuses most of it before.
- A GPULease is read if the scheduler can have written it, else it is no lease: None, with the Problem.
- Times are the broker's; shares of a GPU are rounded up, as for pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from itertools import groupby
from math import ceil

from dovetail.core import events as ev
from dovetail.core.bargaining.types import (
    MOST_ALTERNATIVES,
    PREFIX,
    Answer,
    EndCause,
    GpuLease,
    Holding,
    LeaseAction,
    LeaseAlternative,
    LeaseRequest,
    Plane,
    Revocation,
    ServiceClass,
)
from dovetail.core.model import GPU, MAX_GPUS, WHOLE_GPU_MILLI, Instance, Problem
from dovetail.core.quantities import QuantityError, parse
from dovetail.core.queues.types import Usage
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import Quantity, epoch_ms
from dovetail.kube.objects.queues import QueueUsage
from dovetail.kube.translate import queues
from dovetail.kube.translate.annotations import LONGEST_TERM_MS, NAME, level
from dovetail.kube.translate.problems import first_of, nearest, one_of, shown

MOST_DEVICES = 1024
MOST_MODELS = 16
MOST_LEVELS = 4
_DAY_MS = 24 * 3_600_000
_MIB = 2**20
_MOST_BYTES = 2**50
_MOST_CPU_MILLI = 10**9
_TIME = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8}(?:\.[0-9]{1,3})?)s)?")
_FRACTION = re.compile(r"1(\.0{1,3})?|0?\.[0-9]{1,3}")
_MIG = re.compile(r"nvidia\.com/mig-[1-9]g\.[1-9][0-9]{0,2}gb(\.[a-z0-9]{1,8})?")
_CLASSES = {one.value: one for one in ServiceClass}
_CAUSES = {one.value: one for one in EndCause}
_ENDED = "Ended"
_SETTLED = "Granted"


def lease_id(meta: wire.LeaseMeta) -> str:
    """The id of a request or a lease in the core."""
    return f"{meta.namespace}/{meta.name}"


def time_ms(text: str) -> int:
    """The duration of a text such as 1h30m or 0.25s, in ms. Raises ValueError."""
    match = _TIME.fullmatch(text) if text else None
    if match is None:
        raise ValueError(text)
    hours, minutes, seconds = match.groups(default="0")
    return (int(hours) * 3600 + int(minutes) * 60) * 1000 + int(Fraction(seconds) * 1000)


def plane(obj: wire.AgentControlPlane, older: str = "") -> Plane:
    """The record of a control plane. It never fails: `problem` has the invalid values. `older` is the name of the
    control plane of the namespace that counts in its place."""
    spec, problems = obj.spec, list[Problem]()
    if older:
        rule = f"must be the only one of its namespace: {older} is older and counts"
        problems.append(Problem("metadata.name", obj.metadata.name, rule))
    if NAME.fullmatch(spec.queue) is None:
        problems.append(Problem("spec.queue", shown(spec.queue), "must be the name of a queue"))
    guarantee = queues.amounts(spec.guarantee, "spec.guarantee", problems)
    limit = queues.amounts(spec.limit, "spec.limit", problems)
    queues.check_guarantee(dict(guarantee), dict(limit), problems)
    return Plane(
        id=lease_id(obj.metadata),
        queue=spec.queue,
        weight=queues.number(spec.weight, 1, queues.MAX_WEIGHT, "spec.weight", problems),
        guarantee=guarantee,
        limit=limit,
        most_leases=queues.number(spec.max_leases, 0, 10_000, "spec.maxLeases", problems),
        most_requests=queues.number(spec.max_requests, 0, 10_000, "spec.maxRequests", problems),
        heartbeat_ms=_time(spec.heartbeat, 1000, 3_600_000, "spec.heartbeat", problems, zero=True),
        grace_ms=_time(spec.grace, 0, _DAY_MS, "spec.grace", problems),
        idle_ms=_time(spec.idle, 1000, LONGEST_TERM_MS, "spec.idle", problems, zero=True),
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


def request(obj: wire.LeaseRequest, lease: wire.GPULease | None = None) -> LeaseRequest | None:
    """The record of a request; None where it is settled: it led to its lease. `lease` is that of its name."""
    led_to_it = lease is not None and bool(obj.metadata.uid) and lease.spec.request_uid == obj.metadata.uid
    if led_to_it or (obj.status is not None and obj.status.state == _SETTLED):
        return None
    spec, problems = obj.spec, list[Problem]()
    meta = obj.metadata
    if lease is not None:
        rule = "must be another name, or wait: a lease of this name, of an older request, is live"
        problems.append(Problem("metadata.name", meta.name, rule))
    if not 1 <= len(spec.alternatives) <= MOST_ALTERNATIVES:
        rule = f"must be 1 to {MOST_ALTERNATIVES} alternatives"
        problems.append(Problem("spec.alternatives", str(len(spec.alternatives)), rule))
    alternatives = tuple([
        alternative(one, f"spec.alternatives[{index}]", problems)
        for index, one in enumerate(spec.alternatives[:MOST_ALTERNATIVES])
    ])  # fmt: skip
    return LeaseRequest(
        id=lease_id(meta),
        plane=f"{meta.namespace}/{spec.plane}",
        name=meta.name,
        alternatives=alternatives,
        firm=spec.firm,
        created_ms=epoch_ms(meta.creation_timestamp),
        grace_ms=_maybe(spec.grace, _DAY_MS, "spec.grace", problems),
        checkpoint_interval_ms=_maybe(spec.checkpoint_interval, LONGEST_TERM_MS, "spec.checkpointInterval", problems),
        startup_ms=_maybe(spec.startup, _DAY_MS, "spec.startup", problems),
        answer=_answer(spec.answer, problems),
        problem=first_of(problems),
    )


def _answer(answer: wire.LeaseAnswer | None, problems: list[Problem]) -> Answer | None:
    """The answer; one that is malformed is a Problem, and no answer."""
    if answer is None:
        return None
    path, before = "spec.answer", len(problems)
    action = one_of(
        {"accept": "accept", "decline": "decline", "counter": "counter"}, answer.action, f"{path}.action", problems
    )
    if (answer.counter is not None) != (answer.action == "counter"):
        rule = "must be there with the action counter, and only then"
        problems.append(Problem(f"{path}.counter", shown(answer.action), rule))
    counter = None
    if answer.counter is not None:
        counter = alternative(answer.counter, f"{path}.counter", problems)
    if action is None or len(problems) > before:
        return None
    return Answer(answer.offer, action, counter)  # type: ignore[arg-type]


def alternative(one: wire.LeaseAlternative, path: str, problems: list[Problem]) -> LeaseAlternative:
    """The record of an alternative; what is invalid is in `problems`, and replaced by what is near."""
    count = queues.number(one.count, 1, MOST_DEVICES, f"{path}.count", problems)
    least = 0 if one.least is None else queues.number(one.least, 1, count, f"{path}.least", problems)
    per_node = queues.number(one.per_node, 1, MAX_GPUS, f"{path}.perNode", problems)
    if count % per_node or least % per_node:
        problems.append(Problem(f"{path}.perNode", str(per_node), "must divide count and least"))
        per_node = 1
    if one.resource != GPU and _MIG.fullmatch(one.resource) is None:
        rule = f"must be {GPU} or a MIG instance such as nvidia.com/mig-1g.5gb"
        problems.append(Problem(f"{path}.resource", shown(one.resource), rule))
    milli, mib = _share(one, path, problems)
    if (milli or mib) and (per_node != 1 or one.resource != GPU):
        rule = f"must be 1, and the resource {GPU}, where gpuFraction or gpuMemory is set"
        problems.append(Problem(f"{path}.perNode", str(per_node), rule))
    if one.nvlink and per_node == 1:
        problems.append(Problem(f"{path}.nvlink", "true", "needs a perNode above 1"))
    service = one_of(_CLASSES, one.service, f"{path}.class", problems) or ServiceClass.BURST
    duration_ms = _time(one.duration, 1000, LONGEST_TERM_MS, f"{path}.duration", problems) or 1000
    least_ms = 0
    if one.least_duration is not None:
        least_ms = _time(one.least_duration, 1000, duration_ms, f"{path}.leastDuration", problems)
        if service is not ServiceClass.SCAVENGER:
            rule = "is only of the class Scavenger"
            problems.append(Problem(f"{path}.leastDuration", shown(one.least_duration), rule))
    earliest_ms, latest_ms = epoch_ms(one.earliest), epoch_ms(one.latest)
    if one.latest is not None and latest_ms < earliest_ms:
        problems.append(Problem(f"{path}.latest", str(one.latest), "must not be before earliest"))
    return LeaseAlternative(
        count=count,
        least=least,
        per_node=per_node,
        resource=one.resource,
        gpu_milli=milli,
        gpu_memory_mib=mib,
        models=_models(one.models, f"{path}.models", problems),
        nvlink=bool(one.nvlink),
        within=_within(one.within, f"{path}.within", problems),
        cpu_milli=_amount(one.cpu, 1000, _MOST_CPU_MILLI, f"{path}.cpu", problems),
        memory_bytes=_amount(one.memory, 1, _MOST_BYTES, f"{path}.memory", problems),
        duration_ms=duration_ms,
        least_duration_ms=least_ms,
        earliest_ms=earliest_ms,
        latest_ms=latest_ms,
        service=service,
    )


def _share(one: wire.LeaseAlternative, path: str, problems: list[Problem]) -> tuple[int, int]:
    """Thousandths, or MiB, of each GPU; 0 for all of it."""
    milli = mib = 0
    if one.gpu_fraction:
        valid = _FRACTION.fullmatch(one.gpu_fraction) is not None
        milli = ceil(Fraction(one.gpu_fraction) * WHOLE_GPU_MILLI) if valid else 0
        if not milli:
            rule = "must be a decimal number above 0 and up to 1, with three decimals at most"
            problems.append(Problem(f"{path}.gpuFraction", shown(one.gpu_fraction), rule))
    if one.gpu_memory is not None:
        memory = _amount(one.gpu_memory, 1, _MOST_BYTES, f"{path}.gpuMemory", problems)
        mib = -(-memory // _MIB)
        if 0 < memory < _MIB or (not memory and not problems):
            rule = "must be a quantity of memory of at least 1Mi"
            problems.append(Problem(f"{path}.gpuMemory", shown(str(one.gpu_memory)), rule))
    if milli and mib:
        problems.append(Problem(f"{path}.gpuFraction", shown(one.gpu_fraction), "must not be beside gpuMemory"))
    return milli, mib


def _models(names: tuple[str, ...], path: str, problems: list[Problem]) -> tuple[str, ...]:
    if len(names) > MOST_MODELS:
        problems.append(Problem(path, str(len(names)), f"are too many; the limit is {MOST_MODELS}"))
    for index, name in enumerate(names[:MOST_MODELS]):
        if NAME.fullmatch(name) is None:
            rule = "must be a value that the node label nvidia.com/gpu.product can have"
            problems.append(Problem(f"{path}[{index}]", shown(name), rule))
    return tuple(dict.fromkeys(names[:MOST_MODELS]))


def _within(names: tuple[str, ...], path: str, problems: list[Problem]) -> tuple[str, ...]:
    if len(names) > MOST_LEVELS:
        problems.append(Problem(path, str(len(names)), f"are too many; the limit is {MOST_LEVELS}"))
    found: dict[str, None] = {}
    for index, name in enumerate(names[:MOST_LEVELS]):
        if key := level(name[:512]):
            found[key] = None
        else:
            problems.append(Problem(f"{path}[{index}]", shown(name), "must be a level or a node label key"))
    return tuple(found)


def _amount(quantity: Quantity | None, units: int, most: int, path: str, problems: list[Problem]) -> int:
    if quantity is None:
        return 0
    try:
        amount = ceil(parse(str(quantity)) * units)
    except QuantityError:
        amount = -1
    if 0 <= amount <= most:
        return amount
    near = nearest(str(quantity), ("8", "64Gi"))
    problems.append(Problem(path, shown(str(quantity)), f"must be a quantity of at least 0; nearest: {near}"))
    return 0


def _time(text: str, least: int, most: int, path: str, problems: list[Problem], *, zero: bool = False) -> int:
    """The duration in ms, within its bounds."""
    try:
        found = time_ms(text)
    except ValueError:
        found = -1
    if least <= found <= most or (zero and found == 0):
        return found
    near = text_of_ms(min(max(found, least), most))
    rule = f"must be a duration in h, m and s, from {text_of_ms(least)} to {text_of_ms(most)}; nearest valid: {near}"
    problems.append(Problem(path, shown(text), rule + (", or 0s" if zero else "")))
    return min(max(found, least), most)


def _maybe(text: str | None, most: int, path: str, problems: list[Problem]) -> int:
    return 0 if text is None else _time(text, 0, most, path, problems)


def text_of_ms(duration_ms: int) -> str:
    """A duration as it is written: 1h30m, 0.25s."""
    seconds, ms = divmod(duration_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    decimals = f".{ms:03d}".rstrip("0") if ms else ""
    found = f"{hours}h" * (hours > 0) + f"{minutes}m" * (minutes > 0)
    return found + (f"{seconds}{decimals}s" if seconds or ms or not found else "")


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
        grace_ms=_time(spec.grace, 0, LONGEST_TERM_MS, "spec.grace", problems),
        checkpoint_interval_ms=_time(spec.checkpoint_interval, 0, LONGEST_TERM_MS, "spec.checkpointInterval", problems),
        startup_ms=_time(spec.startup, 0, LONGEST_TERM_MS, "spec.startup", problems),
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
