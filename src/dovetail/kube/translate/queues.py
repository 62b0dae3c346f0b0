# SPDX-License-Identifier: Apache-2.0
"""Queues: from the object to the core's record. `queue_documents` has the way back, of the status.

Rules
- A value of the spec that cannot be honoured is the record's Problem, with its field and the nearest valid value; the
  valid rest of the spec is used. The core checks the tree (parents, cycles), as it has all queues.
- Of the status only `usage` and `money` are read. Where the scheduler cannot have written one, none of it counts. Of
  `usage` there is a finding: a part of a history would be worse than none. The core checks whether `asOf` lies in the
  future.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

import msgspec

from dovetail.core.model import LabelSelector, Problem
from dovetail.core.queues.types import (
    DEFAULT_HALF_LIFE_MS,
    Budgeted,
    GpuBudget,
    MoneyBudget,
    Queue,
    Stop,
    Usage,
)
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects import queues as wire
from dovetail.kube.objects.base import Wire, epoch_ms
from dovetail.kube.translate.durations import DURATION_RULE, duration_ms
from dovetail.kube.translate.money import money_budget
from dovetail.kube.translate.problems import first_of, nearest, one_of
from dovetail.kube.translate.queue_amounts import amounts, check_guarantee, gpu_hours_of
from dovetail.kube.translate.queue_calendars import guarantee_calendar
from dovetail.kube.translate.selectors import LABEL_OPERATORS, label_selector

MAX_WEIGHT = 1_000_000
MAX_PRIORITY = 1_000_000_000
STOPS: dict[str, Stop] = {"None": "", "Hold": "Hold", "HoldAndDrain": "HoldAndDrain"}
"""The values of `spec.stop`."""
_EPOCH = date(1970, 1, 1)
_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_WHOLE = re.compile(r"[0-9]{1,40}")
_ONCE = "must be there once each"
PERIODS: dict[str, Budgeted] = {"Day": "Day", "Week": "Week", "Month": "Month"}
"""The values of `spec.budget.period`."""
_WHEN_USED = {"Report": False, "Hold": True}


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
        amount = gpu_hours_of(budget.gpu_hours, "spec.budget.gpuHours", problems)
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


def status_of(obj: wire.Queue) -> wire.QueueStatus:
    """The status of a queue; an empty one if it is none that the scheduler can have written."""
    try:
        return msgspec.convert(obj.status or {}, wire.QueueStatus)
    except msgspec.ValidationError:
        return wire.QueueStatus()
