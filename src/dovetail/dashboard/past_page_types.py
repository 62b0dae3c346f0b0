# SPDX-License-Identifier: Apache-2.0
"""What the pages about the past show, as values, as in `page_types`. Money is in the `currency` of the page, to the
hundredth; None where it is not known."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from dovetail.cost.costs import Coverage, PriceUsed, UnpricedTime
from dovetail.history.jobs import PastJob
from dovetail.kube.queue_budgets import QueueBudgetUse


class CostGroup(Struct, frozen=True):
    """A row of `dovetail cost`: what each part of the time cost, and the GPU-hours. `kind` is as in CostRow."""

    name: str
    kind: str
    cost: float | None
    share_percent: float | None
    allocated: float | None
    used: float | None
    idle: float | None
    unmeasured: float | None
    unallocated: float | None
    unhealthy: float | None
    gpu_hours: float
    allocated_hours: float
    used_hours: float
    idle_hours: float
    unmeasured_hours: float
    unallocated_hours: float
    unhealthy_hours: float
    unpriced_hours: float
    jobs: int
    pods: int


class CostPage(Struct, frozen=True):
    """What the GPUs of the known part of a period cost, by group. `others` groups are in one row together."""

    rows: ClassVar[str] = "groups"
    by: str
    start_ms: int
    end_ms: int
    asked_start_ms: int
    asked_end_ms: int
    currency: str
    groups: tuple[CostGroup, ...]
    total: CostGroup
    others: int
    prices: tuple[PriceUsed, ...]
    unpriced: tuple[UnpricedTime, ...]
    coverage: Coverage


class IdleHolder(Struct, frozen=True):
    """A pod that holds GPUs and does not use them, as in IdleRow."""

    pod: str
    job: str
    kind: str
    user: str
    queue: str
    node: str
    held: int
    unused: int
    since_ms: int
    at_least: bool
    ever_used: bool
    gpu_hours: float
    cost: float | None
    measured_percent: float
    action: str


class IdlePage(Struct, frozen=True):
    """The idle pods at the end of the history, as in IdleList."""

    rows: ClassVar[str] = "pods"
    now_ms: int
    pods: tuple[IdleHolder, ...]
    gpu_hours: float
    cost: float
    currency: str
    price_date: str
    not_measured: tuple[str, ...]
    elsewhere: int
    elsewhere_gpu_hours: float


class AdvisedJob(Struct, frozen=True):
    """Advice for a job, as in SizingAdvice. What it saves is of the window of the page; `mean_percent` is the mean real
    use that it had."""

    job: str
    user: str
    queue: str
    title: str
    cause: str
    action: str
    gain: str
    risk: str
    saves_gpu_hours: float
    saves: float | None
    currency: str
    price_date: str
    gpus_milli: int
    model: str
    mean_percent: float
    held_gpu_hours: float


class AdvicePage(Struct, frozen=True):
    """What is advised of the jobs that held GPUs in the window: `jobs` of them, of which `unjudged` have not enough
    data."""

    rows: ClassVar[str] = "advice"
    start_ms: int
    end_ms: int
    advice: tuple[AdvisedJob, ...]
    jobs: int
    unjudged: int


class JobUsePage(Struct, frozen=True):
    """The past of one job: its runs, the latest first; how it used its GPUs, and what they cost in the period of the
    page. `bottleneck` is what bound it, and `meaning` what that is; "" where it is not known."""

    rows: ClassVar[str] = "runs"
    start_ms: int
    end_ms: int
    runs: tuple[PastJob, ...]
    cost: CostGroup | None
    currency: str
    model: str = ""
    mean_percent: float = 0.0
    p95_percent: float = 0.0
    idle_percent: float = 0.0
    measured_percent: float = 0.0
    memory_peak_mib: int = 0
    memory_mib: int = 0
    bottleneck: str = ""
    meaning: str = ""
    advice: tuple[AdvisedJob, ...] = ()


class TeamTrend(Struct, frozen=True):
    """A queue: the GPU-hours that it was allocated on each day, and those that it used."""

    queue: str
    allocated_hours: tuple[float, ...]
    used_hours: tuple[float, ...]


class TrendPage(Struct, frozen=True):
    """The queues on the last whole `days` (UTC), the first one first."""

    rows: ClassVar[str] = "queues"
    days: tuple[str, ...]
    queues: tuple[TeamTrend, ...]


class BudgetsPage(Struct, frozen=True):
    """The budgets of queues in their periods, as in QueueBudgetUse."""

    rows: ClassVar[str] = "budgets"
    budgets: tuple[QueueBudgetUse, ...]


PastPage = CostPage | IdlePage | AdvicePage | JobUsePage | TrendPage | BudgetsPage
