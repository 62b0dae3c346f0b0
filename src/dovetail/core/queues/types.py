# SPDX-License-Identifier: Apache-2.0
"""The types of queues: a queue, its usage so far, a disruption budget, and how often a job was evicted.

Amounts are by resource class, sorted by its name: `cpu` in milli-CPU, `memory` in bytes, `gpu` in milli-GPU (a part of
a GPU counts as the larger of its parts of compute and memory), `gpu-slices` in compute slices of cards in MIG mode,
`gpu-memory` in MiB, and `gpu/MODEL` in milli-GPU of one model (the value of the node label nvidia.com/gpu.product).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from dovetail.core.model import LabelSelector, Problem
from dovetail.core.queues.amounts import CPU as CPU
from dovetail.core.queues.amounts import GPU as GPU
from dovetail.core.queues.amounts import GPU_CLASSES as GPU_CLASSES
from dovetail.core.queues.amounts import GPU_MEMORY as GPU_MEMORY
from dovetail.core.queues.amounts import GPU_SLICES as GPU_SLICES
from dovetail.core.queues.amounts import MEMORY as MEMORY
from dovetail.core.queues.amounts import MODEL_LABEL as MODEL_LABEL
from dovetail.core.queues.amounts import MODEL_PREFIX as MODEL_PREFIX
from dovetail.core.queues.amounts import Amounts as Amounts
from dovetail.core.queues.guarantee_calendar import GuaranteeCalendar as GuaranteeCalendar
from dovetail.core.queues.guarantee_calendar import GuaranteeWindow as GuaranteeWindow

DEFAULT_QUEUE = "default"
QUEUE_LABEL = "dovetail.dev/queue"
"""A label of namespaces: the queue of those of its pods that name none."""
DAY_MS = 86_400_000
GPU_HOUR = 1000 * 3_600_000
"""In milli-GPU times ms."""
DEFAULT_HALF_LIFE_MS = 7 * DAY_MS

RECLAIM_MIN_RUNTIME_MS = 600_000
"""The least run time of a queue that does not set one: until then its jobs are not reclaimed by jobs that exceed the
guarantee of their own queue."""

DIVIDED = {CPU: 1, MEMORY: 1, GPU: 1000}
"""The classes that are divided between queues, with their grains: whole GPUs."""

Stop = Literal["", "Hold", "HoldAndDrain"]
"""How a queue is stopped: not at all; no job starts in it; and its running jobs are evicted, too."""


Budgeted = Literal["Day", "Week", "Month"]


def stopped_as(stop: Stop) -> str:
    """What the status of a stopped queue begins with, by which it is seen that the scheduler knows it."""
    return f"stopped (spec.stop: {stop})"


class GpuBudget(Struct, frozen=True):
    """GPU time for a period of the calendar: `amount` in milli-GPU times ms. With `hold` the queue is stopped once it
    is used; without, that is only reported."""

    amount: int
    period: Budgeted = "Month"
    hold: bool = False


class MoneyBudget(Struct, frozen=True):
    """Money for a period of the calendar that ends at `until_ms`: `amount`, of which `spent` is used, both in
    millionths of one currency. What was spent is worked out elsewhere, from the prices and the past of the cluster; an
    `until_ms` of 0 is that it is not known. `hold` as in GpuBudget."""

    amount: int
    spent: int = 0
    until_ms: int = 0
    hold: bool = False

    def used_up(self, now_ms: int) -> bool:
        """Whether all of it is spent, in a period that is not over."""
        return now_ms < self.until_ms and self.spent >= self.amount


class Usage(Struct, frozen=True):
    """The recorded usage of a queue at `as_of_ms`. `used` is the decayed usage in milli-GPU times ms (see `usage`),
    `rate_milli` the rate from then on, `days` the usage without decay in milli-GPU times ms by day (days since 1970,
    UTC), `users` the decayed usage of each user, and `jobs` the service of jobs from pods that were gone by then, where
    the queue orders by it (see `attained`)."""

    as_of_ms: int
    used: int = 0
    rate_milli: int = 0
    days: tuple[tuple[int, int], ...] = ()
    users: tuple[tuple[str, int], ...] = ()
    jobs: tuple[tuple[str, int], ...] = ()


class History(Struct, frozen=True):
    """The usage of a queue. `recorded_until_ms` is the time up to which its record included its usage when the queue
    was first read (None: no object writes it). The queues above it include its usage since `linked_ms`, unless their
    own records do already."""

    queue: str
    recorded_until_ms: int | None = field(name="told_ms")
    usage: Usage
    linked_ms: int = 0


class Queue(Struct, frozen=True):
    """A team, or a team of teams. Only leaves hold jobs. `guarantee` is what it can always reclaim, `limit` what it
    never exceeds (a class that is missing has no limit). `weight` is its part of what no queue is guaranteed, and of
    usage over time; among siblings a higher `priority` goes first. `half_life_ms` is the time after which usage counts
    half. Its running jobs are protected from other queues for `reclaim_min_runtime_ms` (None: `RECLAIM_MIN_RUNTIME_MS`,
    but not from jobs within their guarantee), and from its own jobs for `preempt_min_runtime_ms`. `preemptible` holds
    for pods that do not set it themselves. `namespaces` and `namespace_selector` list the namespaces that may use it
    (both None: all; either admits). `by_user` divides it equally between its users over time. `least_served_first` puts
    its job with the least attained service first, after priority, and lets it preempt others (see `attained`). `uid`
    differs from that of an older queue of its name ("": there is only one). `usage` is read the first time only. With
    `planes` its leaves are control planes of software agents, and it holds no jobs itself. `stop` holds for it and for
    the queues below it. With `idle_first` the time in which its pods use none of their GPUs counts as no work that they
    would lose. `budget` is what it, with the queues below it, may use in a period, and `money` what that may cost; None
    is no such bound. With a `calendar` the guarantee is the one of the calendar at the time of the step."""

    name: str
    parent: str = ""
    guarantee: Amounts = ()
    limit: Amounts = ()
    weight: int = 1
    priority: int = 0
    half_life_ms: int = DEFAULT_HALF_LIFE_MS
    reclaim_min_runtime_ms: int | None = None
    preempt_min_runtime_ms: int = 0
    preemptible: bool = True
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None
    by_user: bool = False
    least_served_first: bool = False
    created_ms: int = 0
    problem: Problem | None = None
    usage: Usage | None = None
    uid: str = ""
    planes: bool = False
    stop: Stop = ""
    idle_first: bool = True
    budget: GpuBudget | None = None
    money: MoneyBudget | None = None
    calendar: GuaranteeCalendar | None = None

    @property
    def least_run_ms(self) -> int:
        """The time for which its running jobs are protected from jobs that exceed the guarantee of their own queue."""
        return RECLAIM_MIN_RUNTIME_MS if self.reclaim_min_runtime_ms is None else self.reclaim_min_runtime_ms


class Budget(Struct, frozen=True):
    """A PodDisruptionBudget: of the pods of its namespace that `selector` matches (None: none), `allowed` may be
    evicted now, as the disruption controller last reported."""

    namespace: str
    name: str
    selector: LabelSelector | None
    allowed: int

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Evictions(Struct, frozen=True):
    """How often a job was evicted, and the time of the last eviction."""

    job: str
    times: int
    last_ms: int
