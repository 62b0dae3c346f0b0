# SPDX-License-Identifier: Apache-2.0
"""Queue, as it is read. Rules of the structs: see `objects`.

It is ours; its schema is deploy/crds/queue.yaml, its reference docs/reference/queue.md. The spec is the admin's, the
status the scheduler's. Resources are maps here, so that a class that does not exist is seen and can be reported; and a
status that somebody has damaged must not lose the queue: it is read apart, in `queues`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field

from dovetail.kube.objects.base import LabelSelector, ObjectMeta, Quantities, Quantity, Wire

Resources = dict[str, Quantity | Quantities]
"""A quantity by class; `models` holds quantities by GPU model."""


class MinRuntime(Wire, frozen=True):
    """Durations."""

    reclaim: str | None = None
    preempt: str | None = None


class NamespaceChoice(Wire, frozen=True):
    """Either admits. A missing one admits no namespace."""

    names: tuple[str, ...] | None = None
    selector: LabelSelector | None = None


class QueueMoney(Wire, frozen=True):
    """An amount of a currency, by its code of three letters."""

    amount: Quantity = ""
    currency: str = ""


class QueueBudget(Wire, frozen=True):
    """GPU-hours, or money, or both, of a period: Day, Week or Month. `when_used` is Report or Hold."""

    gpu_hours: Quantity | None = None
    money: QueueMoney | None = None
    period: str = "Month"
    when_used: str = "Report"


class QueueWindow(Wire, frozen=True):
    """From `start` to `end`, as HH:MM, on these days (Mon, Tue ...; none: on all of them)."""

    days: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    guarantee: Resources = field(default_factory=dict)


class QueueCalendar(Wire, frozen=True):
    """`time_zone` is a name of the IANA time zone database."""

    time_zone: str = "UTC"
    windows: tuple[QueueWindow, ...] = ()


class QueueSpec(Wire, frozen=True):
    parent: str = ""
    guarantee: Resources = field(default_factory=dict)
    limit: Resources = field(default_factory=dict)
    weight: int = 1
    priority: int = 0
    half_life: str | None = None
    min_runtime: MinRuntime = MinRuntime()
    preemptible: bool = True
    namespaces: NamespaceChoice | None = None
    by_user: bool = False
    least_served_first: bool = False
    idle_first: bool = True
    budget: QueueBudget | None = None
    calendar: QueueCalendar | None = None
    planes: bool = False
    stop: str = "None"


class Queue(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: QueueSpec = QueueSpec()
    status: Any = None


class Amounts(Wire, frozen=True):
    """Quantities by class, as they are written."""

    cpu: str = ""
    memory: str = ""
    gpu: str = ""
    gpu_slices: str = ""
    gpu_memory: str = ""
    models: dict[str, str] = field(default_factory=dict)


class QueueHead(Wire, frozen=True):
    """`sure` is Known, Learned or Unknown."""

    name: str = ""
    reason: str = ""
    expected_start: datetime | None = None
    sure: str = ""


class DayUsage(Wire, frozen=True):
    """`day` is a date, in UTC."""

    day: str = ""
    used: str = ""


class NamedUsage(Wire, frozen=True):
    """Of a user, or of a job."""

    name: str = ""
    used: str = ""


class QueueUsage(Wire, frozen=True):
    """Usage is in milli-GPU times ms, as whole numbers in text: they leave what JSON numbers can hold."""

    as_of: datetime | None = None
    used: str = ""
    rate: str = ""
    share: str = ""
    credit: str = ""
    days: tuple[DayUsage, ...] = ()
    users: tuple[NamedUsage, ...] = ()
    jobs: tuple[NamedUsage, ...] = ()


class QueueSpending(Wire, frozen=True):
    """What was used of the budget in the period, in GPU-hours."""

    used: str = ""
    period_start: datetime | None = None
    period_end: datetime | None = None


class MoneySpent(Wire, frozen=True):
    """What was spent in the period up to `as_of`, by the prices of the collector: a decimal number of its currency.
    `message` is why that cannot be compared with the budget, or what has no price; "" for nothing."""

    spent: str = ""
    currency: str = ""
    period_start: datetime | None = None
    period_end: datetime | None = None
    as_of: datetime | None = None
    message: str = ""


class QueueNextGuarantee(Wire, frozen=True):
    """The next change by the calendar."""

    changes_at: datetime | None = None
    guarantee: Amounts = Amounts()


class QueueCondition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class QueueStatus(Wire, frozen=True):
    """What the scheduler writes."""

    allocated: Amounts = Amounts()
    guaranteed: Amounts = Amounts()
    borrowed: Amounts = Amounts()
    due: Amounts = Amounts()
    pending: Amounts = Amounts()
    pending_jobs: int = 0
    head: QueueHead | None = None
    usage: QueueUsage | None = None
    budget: QueueSpending | None = None
    money: MoneySpent | None = None
    calendar: QueueNextGuarantee | None = None
    conditions: tuple[QueueCondition, ...] = ()
