# SPDX-License-Identifier: Apache-2.0
"""LeaseRequests of software agents: from the object to the core's record.

Rules
- The id of a request is "namespace/name", and its lease has it, too: so a pod of the namespace names that by its name
  alone.
- Everything in a spec was written by an agent. What cannot be honoured is a Problem of the record with its field; the
  schema refuses most of it before.
- Shares of a GPU are rounded up, as for pods.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil

from dovetail.core.bargaining.types import (
    MOST_ALTERNATIVES,
    NAME_TAKEN,
    Answer,
    LeaseAlternative,
    LeaseRequest,
    ServiceClass,
)
from dovetail.core.model import GPU, MAX_GPUS, WHOLE_GPU_MILLI, Problem
from dovetail.core.quantities import QuantityError, parse
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import Quantity, epoch_ms
from dovetail.kube.translate import queues
from dovetail.kube.translate.annotation_values import LONGEST_TERM_MS, NAME, level
from dovetail.kube.translate.lease_durations import time_up_to, time_within
from dovetail.kube.translate.problems import first_of, nearest, one_of, shown

MOST_DEVICES = 1024
MOST_MODELS = 16
MOST_LEVELS = 4
DAY_MS = 24 * 3_600_000
_MIB = 2**20
_MOST_BYTES = 2**50
_MOST_CPU_MILLI = 10**9
_FRACTION = re.compile(r"1(\.0{1,3})?|0?\.[0-9]{1,3}")
_MIG = re.compile(r"nvidia\.com/mig-[1-9]g\.[1-9][0-9]{0,2}gb(\.[a-z0-9]{1,8})?")
_CLASSES = {one.value: one for one in ServiceClass}
_SETTLED = "Granted"


def lease_id(meta: wire.LeaseMeta) -> str:
    """The id of a request or a lease in the core."""
    return f"{meta.namespace}/{meta.name}"


def request(obj: wire.LeaseRequest, lease: wire.GPULease | None = None) -> LeaseRequest | None:
    """The record of a request; None where it is settled: it led to its lease. `lease` is that of its name."""
    led_to_it = lease is not None and bool(obj.metadata.uid) and lease.spec.request_uid == obj.metadata.uid
    if led_to_it or (obj.status is not None and obj.status.state == _SETTLED):
        return None
    spec, problems = obj.spec, list[Problem]()
    meta = obj.metadata
    if lease is not None:
        problems.append(Problem("metadata.name", meta.name, NAME_TAKEN))
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
        grace_ms=time_up_to(spec.grace, DAY_MS, "spec.grace", problems),
        checkpoint_interval_ms=time_up_to(
            spec.checkpoint_interval, LONGEST_TERM_MS, "spec.checkpointInterval", problems
        ),
        startup_ms=time_up_to(spec.startup, DAY_MS, "spec.startup", problems),
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
    duration_ms = time_within(one.duration, 1000, LONGEST_TERM_MS, f"{path}.duration", problems) or 1000
    least_ms = 0
    if one.least_duration is not None:
        least_ms = time_within(one.least_duration, 1000, duration_ms, f"{path}.leastDuration", problems)
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
