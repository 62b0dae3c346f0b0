# SPDX-License-Identifier: Apache-2.0
"""Queues: from the object to the core's record, and from the core's queue status to the object's status.

Rules
- A value of the spec that cannot be honoured is the record's Problem, with its field and the nearest valid value; the
  valid rest of the spec is used. The core checks the tree (parents, cycles), as it has all queues.
- Amounts are rounded up: `gpu` to thousandths of a GPU, `gpuMemory` to MiB. GPU slices are whole.
- Of the status only `usage` and `money` are read. Where the scheduler cannot have written one, none of it counts. Of
  `usage` there is a finding: a part of a history would be worse than none. The core checks whether `asOf` lies in the
  future.
- A status is written as a whole; a field that is absent in it is removed.
- All numbers of the history are written exactly, so a value that is read equals the one that was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from dovetail.core.model import LabelSelector, Problem
from dovetail.core.quantities import QuantityError, display, parse
from dovetail.core.queues.types import (
    CPU,
    DEFAULT_HALF_LIFE_MS,
    GPU,
    GPU_HOUR,
    GPU_MEMORY,
    GPU_SLICES,
    MEMORY,
    MODEL_PREFIX,
    Amounts,
    Budgeted,
    GpuBudget,
    MoneyBudget,
    Queue,
    Stop,
    Usage,
)
from dovetail.kube.api.texts import MESSAGE_BYTES, clipped
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects import queues as wire
from dovetail.kube.objects.base import Quantities, Quantity, Wire, epoch_ms
from dovetail.kube.translate.annotations import NAME
from dovetail.kube.translate.durations import DURATION_RULE, duration_ms
from dovetail.kube.translate.money import money_budget, money_document, money_spent
from dovetail.kube.translate.problems import first_of, nearest, one_of
from dovetail.kube.translate.queue_calendars import guarantee_calendar
from dovetail.kube.translate.selectors import LABEL_OPERATORS, label_selector

if TYPE_CHECKING:
    from dovetail.core.queues.status import QueueSnapshot
    from dovetail.core.reasons import Expected

MAX_WEIGHT = 1_000_000
MAX_PRIORITY = 1_000_000_000
READY = "Ready"
STOPS: dict[str, Stop] = {"None": "", "Hold": "Hold", "HoldAndDrain": "HoldAndDrain"}
"""The values of `spec.stop`."""
_EPOCH = date(1970, 1, 1)
_START = datetime(1970, 1, 1, tzinfo=UTC)
_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_WHOLE = re.compile(r"[0-9]{1,40}")
_MIB = 2**20
_ONCE = "must be there once each"


class _Class(Struct, frozen=True):
    """A resource class of the Queue object: its name in the core, the number of core units per unit, and valid
    quantities."""

    name: str
    units: Fraction
    examples: tuple[str, ...]
    whole: bool = False


_GPUS = _Class(GPU, Fraction(1000), ("8", "0.5", "64"))
_CLASSES = {
    "cpu": _Class(CPU, Fraction(1000), ("64", "500m", "1.5")),
    "memory": _Class(MEMORY, Fraction(1), ("64Gi", "512Mi", "1Ti")),
    "gpu": _GPUS,
    "gpuSlices": _Class(GPU_SLICES, Fraction(1), ("7", "14"), whole=True),
    "gpuMemory": _Class(GPU_MEMORY, Fraction(1, _MIB), ("80Gi", "640Gi", "1Ti")),
}
_GPU_HOURS = _Class("gpu-hours", Fraction(GPU_HOUR), ("1000", "250", "0.5"))
PERIODS: dict[str, Budgeted] = {"Day": "Day", "Week": "Week", "Month": "Month"}
"""The values of `spec.budget.period`."""
_WHEN_USED = {"Report": False, "Hold": True}
_MODELS = "models"
_SHOWN = {found.name: field for field, found in _CLASSES.items()}


def queue(obj: wire.Queue) -> Queue:
    """The record of a queue. It never fails: `problem` has the invalid values of the spec."""
    spec, problems = obj.spec, list[Problem]()
    guarantee = amounts(spec.guarantee, "spec.guarantee", problems)
    limit = amounts(spec.limit, "spec.limit", problems)
    check_guarantee(dict(guarantee), dict(limit), problems)

    def check(one: dict[str, int], path: str, found: list[Problem]) -> None:
        check_guarantee(one, dict(limit), found, path)

    calendar = guarantee_calendar(spec.calendar, guarantee, amounts, check, problems)
    names, selector = _namespaces(spec.namespaces, problems)
    budget, money = _budgets(obj, problems)
    return Queue(
        name=obj.metadata.name,
        parent=spec.parent,
        guarantee=guarantee,
        limit=limit,
        weight=number(spec.weight, 1, MAX_WEIGHT, "spec.weight", problems),
        priority=number(spec.priority, -MAX_PRIORITY, MAX_PRIORITY, "spec.priority", problems),
        half_life_ms=_duration(spec.half_life, "spec.halfLife", problems) or DEFAULT_HALF_LIFE_MS,
        reclaim_min_runtime_ms=None
        if spec.min_runtime.reclaim is None
        else _duration(spec.min_runtime.reclaim, "spec.minRuntime.reclaim", problems, zero=True),
        preempt_min_runtime_ms=_duration(spec.min_runtime.preempt, "spec.minRuntime.preempt", problems, zero=True),
        preemptible=spec.preemptible,
        namespaces=names,
        namespace_selector=selector,
        by_user=spec.by_user,
        least_served_first=spec.least_served_first,
        planes=spec.planes,
        idle_first=spec.idle_first,
        budget=budget,
        money=money,
        calendar=calendar,
        stop=one_of(STOPS, spec.stop, "spec.stop", problems) or "",
        created_ms=epoch_ms(obj.metadata.creation_timestamp),
        problem=first_of(problems),
        usage=read_usage(obj)[0],
        uid=obj.metadata.uid,
    )


def amounts(quantities: wire.Resources, path: str, problems: list[Problem]) -> Amounts:
    """Amounts by resource class; those that are invalid are in `problems` and left out."""
    found: dict[str, int] = {}
    for field, value in quantities.items():
        at = f"{path}.{field}"
        if field == _MODELS and isinstance(value, dict):
            found |= _models(value, at, problems)
        elif field in _CLASSES and not isinstance(value, dict):
            amount = _amount(_CLASSES[field], value, at, problems)
            if amount is not None:
                found[_CLASSES[field].name] = amount
        elif field in (_MODELS, *_CLASSES):
            rule = "must be quantities by GPU model" if field == _MODELS else "must be a quantity"
            problems.append(Problem(at, str(value), rule))
        else:
            known = [*_CLASSES, _MODELS]
            rule = f"is no class of resources; it must be one of {', '.join(known)}; nearest: {nearest(field, known)}"
            problems.append(Problem(at, str(value), rule))
    return tuple(sorted(found.items()))


def _models(quantities: Quantities, path: str, problems: list[Problem]) -> dict[str, int]:
    found = {}
    for model, value in quantities.items():
        at = f"{path}[{model}]"
        if NAME.fullmatch(model) is None:
            problems.append(Problem(at, model, "must be a value that the node label nvidia.com/gpu.product can have"))
            continue
        amount = _amount(_GPUS, value, at, problems)
        if amount is not None:
            found[MODEL_PREFIX + model] = amount
    return found


def _amount(of: _Class, value: Quantity, path: str, problems: list[Problem]) -> int | None:
    text, rule, instead = str(value), "must be a quantity of at least 0", ""
    try:
        exact = parse(text)
    except QuantityError:
        instead = nearest(text, of.examples)
    else:
        amount = exact * of.units
        if exact < 0:
            instead = "0"
        elif of.whole and amount.denominator != 1:
            rule, instead = "must be a whole number", str(ceil(amount))
        elif of.name == GPU_MEMORY and 0 < amount < 1:
            # An amount in bytes is a forgotten unit.
            rule, instead = "must be a quantity of memory of at least 1Mi, or 0", f"{ceil(exact)}Mi"
        else:
            return ceil(amount)
    problems.append(Problem(path, text, f"{rule}; nearest valid value: {instead}"))
    return None


def check_guarantee(
    guarantee: dict[str, int], limit: dict[str, int], problems: list[Problem], path: str = "spec.guarantee"
) -> None:
    """Check that no guarantee is above the queue's own limit."""
    of_models = sum(amount for name, amount in guarantee.items() if name.startswith(MODEL_PREFIX))
    for name, amount in guarantee.items():
        if amount > limit.get(name, amount):
            most = _shown(name, limit[name])
            rule = f"is above the queue's own limit, which is {most}; nearest valid value: {most}"
            problems.append(Problem(_path(path, name), _shown(name, amount), rule))
    if of_models > limit.get(GPU, of_models):
        rule = f"are together above the queue's own limit of GPUs, which is {_shown(GPU, limit[GPU])}"
        problems.append(Problem(f"{path}.models", _shown(GPU, of_models), rule))


def _path(path: str, name: str) -> str:
    model = name.removeprefix(MODEL_PREFIX)
    return f"{path}.{_MODELS}[{model}]" if model != name else f"{path}.{_SHOWN[name]}"


def number(value: int, least: int, most: int, path: str, problems: list[Problem]) -> int:
    """The value, or the nearest one within the bounds, with a Problem."""
    valid = min(max(value, least), most)
    if valid != value:
        rule = f"must be a whole number from {least} to {most}; nearest valid value: {valid}"
        problems.append(Problem(path, str(value), rule))
    return valid


def _duration(text: str | None, path: str, problems: list[Problem], *, zero: bool = False) -> int:
    """The duration in ms; 0 if there is none, or none that is valid."""
    if text is None:
        return 0
    try:
        found = duration_ms(text)
    except ValueError:
        found = -1
    if found > 0 or (zero and found == 0):
        return found
    rule = "must be a duration in d, h, m and s, in that order" if zero else DURATION_RULE
    problems.append(Problem(path, text, f"{rule}; nearest valid value: {nearest(text, ('7d', '12h', '1h30m', '30m'))}"))
    return 0


def _budgets(obj: wire.Queue, problems: list[Problem]) -> tuple[GpuBudget | None, MoneyBudget | None]:
    budget = obj.spec.budget
    if budget is None:
        return None, None
    if budget.gpu_hours is None and budget.money is None:
        rule = "must be there: how many GPU-hours the period has; or budget.money"
        problems.append(Problem("spec.budget.gpuHours", "", rule))
        return None, None
    amount = None
    if budget.gpu_hours is not None:
        amount = _amount(_GPU_HOURS, budget.gpu_hours, "spec.budget.gpuHours", problems)
    period = one_of(PERIODS, budget.period, "spec.budget.period", problems)
    hold = one_of(_WHEN_USED, budget.when_used, "spec.budget.whenUsed", problems)
    if period is None or hold is None:
        return None, None
    return GpuBudget(amount, period, hold) if amount is not None else None, money_budget(obj, period, hold, problems)


def _namespaces(
    choice: wire.NamespaceChoice | None, problems: list[Problem]
) -> tuple[tuple[str, ...] | None, LabelSelector | None]:
    path = "spec.namespaces"
    if choice is None:
        return None, None
    if choice.names is None and choice.selector is None:
        problems.append(Problem(path, "", "must have names or selector; leave it out to admit all namespaces"))
    selector = label_selector(choice.selector, f"{path}.selector", problems)
    for i, one in enumerate(choice.selector.match_expressions if choice.selector is not None else ()):
        if one.operator in LABEL_OPERATORS and bool(one.values) != (one.operator in ("In", "NotIn")):
            rule = f"must have values with In and NotIn, and none otherwise; the operator is {one.operator}"
            problems.append(Problem(f"{path}.selector.matchExpressions[{i}].values", ",".join(one.values), rule))
    return tuple(sorted(choice.names)) if choice.names is not None else None, selector


class _UsageAlone(Wire, frozen=True):
    usage: wire.QueueUsage | None = None


def read_usage(obj: wire.Queue) -> tuple[Usage | None, tuple[LayoutFinding, ...]]:
    """The usage history in the status, and a finding if it is invalid and not used."""
    name = obj.metadata.name
    if obj.status is None:
        return None, ()
    try:
        return usage_of(msgspec.convert(obj.status, _UsageAlone).usage, "Queue", name)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        rule, field = match.groups() if match else (str(error), "")
        return None, (_not_used(Problem(f"status.{field}" if field else "status", "", rule), "Queue", name),)


def usage_of(usage: wire.QueueUsage | None, kind: str, name: str) -> tuple[Usage | None, tuple[LayoutFinding, ...]]:
    """The usage history of an object of this kind, and a finding if it is invalid and not used."""
    try:
        return (_usage(usage) if usage is not None else None), ()
    except _NotOurs as error:
        return None, (_not_used(error.problem, kind, name),)


def _not_used(problem: Problem, kind: str, name: str) -> LayoutFinding:
    rule = f"{problem.rule}: what was used before is not known, and counts as nothing"
    return LayoutFinding(kind, name, Problem(problem.field, problem.value, rule))


class _NotOurs(Exception):
    """The usage has a value that the scheduler cannot have written."""

    def __init__(self, field: str, value: str, rule: str) -> None:
        super().__init__(field)
        self.problem = Problem(f"status.usage.{field}", value, rule)


def _usage(usage: wire.QueueUsage) -> Usage:
    if usage.as_of is None or usage.as_of.tzinfo is None:
        raise _NotOurs("asOf", str(usage.as_of or ""), "must be a time as in RFC 3339, with its zone")
    days = {}
    for i, day in enumerate(usage.days):
        days[_day(day.day, f"days[{i}].day")] = _whole(day.used, f"days[{i}].used")
    if len(days) < len(usage.days):
        raise _NotOurs("days", "", _ONCE)
    used, rate = _whole(usage.used, "used"), _whole(usage.rate, "rate")
    users, jobs = _by_name(usage.users, "users"), _by_name(usage.jobs, "jobs")
    return Usage(epoch_ms(usage.as_of), used, rate, tuple(sorted(days.items())), users, jobs)


def _by_name(entries: Sequence[wire.NamedUsage], field: str) -> tuple[tuple[str, int], ...]:
    found = {one.name: _whole(one.used, f"{field}[{i}].used") for i, one in enumerate(entries)}
    if len(found) < len(entries):
        raise _NotOurs(field, "", _ONCE)
    return tuple(sorted(found.items()))


def _whole(text: str, field: str) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise _NotOurs(field, text, "must be a whole number of at least 0, as text")
    return int(text)


def _day(text: str, field: str) -> int:
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise _NotOurs(field, text, "must be a date, as in 2026-01-31") from None


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
            "periodStart": timestamp(spending.start_ms),
            "periodEnd": timestamp(spending.until_ms),
        }
    if snapshot.next_guarantee is not None:
        changes_ms, guarantee = snapshot.next_guarantee
        document["calendar"] = {"changesAt": timestamp(changes_ms), "guarantee": amounts_document(guarantee)}
    spent = spent or (money_spent(before) if before is not None else None)
    if snapshot.money is not None and spent is not None:
        document["money"] = money_document(spent)
    if head is not None:
        name, reason, expected = head
        document["head"] = {"name": name, "reason": reason}
        if expected is not None:
            document["head"]["sure"] = expected.sure.value
            if expected.start_ms:
                document["head"]["expectedStart"] = timestamp(expected.start_ms)
    return document


def usage_document(snapshot: QueueSnapshot) -> dict[str, Any]:
    """What a queue used, as its status has it."""
    return {
        "asOf": timestamp(snapshot.as_of_ms),
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
    status, since = "True" if ready else "False", timestamp(now_ms)
    for one in before:
        if (one.type, one.status) == (READY, status) and one.last_transition_time is not None:
            since = timestamp(epoch_ms(one.last_transition_time))
    explained = {"reason": reason, "message": clipped(message, MESSAGE_BYTES)}
    return {"type": READY, "status": status, "lastTransitionTime": since} | explained


def status_of(obj: wire.Queue) -> wire.QueueStatus:
    """The status of a queue; an empty one if it is none that the scheduler can have written."""
    try:
        return msgspec.convert(obj.status or {}, wire.QueueStatus)
    except msgspec.ValidationError:
        return wire.QueueStatus()


def amounts_document(exact: Amounts) -> dict[str, Any]:
    """The exact amounts in the format of the object."""
    document: dict[str, Any] = {}
    models: dict[str, str] = {}
    for name, amount in exact:
        if name.startswith(MODEL_PREFIX):
            models[name.removeprefix(MODEL_PREFIX)] = _shown(name, amount)
        else:
            document[_SHOWN[name]] = _shown(name, amount)
    return document | ({_MODELS: models} if models else {})


def _shown(name: str, amount: int) -> str:
    if name == CPU:
        return display("cpu", amount)
    if name == GPU_MEMORY:
        return _in_bytes(amount * _MIB)
    if name == MEMORY:
        return _in_bytes(amount)
    if name == GPU_SLICES:
        return str(amount)
    return f"{Decimal(amount) / 1000:f}"


def _in_bytes(amount: int) -> str:
    for power, suffix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power}{suffix}"
    return str(amount)


def gpu_hours(milli_ms: int) -> str:
    """A number of milli-GPU times ms as decimal GPU-hours, to the thousandth."""
    return f"{Decimal(milli_ms) / GPU_HOUR:.3f}"


def timestamp(moment_ms: int) -> str:
    """Epoch milliseconds in the format of RFC 3339."""
    moment = _START + timedelta(milliseconds=moment_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
