# SPDX-License-Identifier: Apache-2.0
"""What the core is told about teams: queues, what they used before, and budgets of disruptions.

Amounts are by resource class, sorted by its name: `cpu` in milli-CPU, `memory` in bytes, `gpu` in milli-GPU (a part of
a GPU counts as the larger of its parts of compute and memory), `gpu-slices` in compute slices of cards in MIG mode,
`gpu-memory` in MiB, and `gpu/MODEL` in milli-GPU of one model (the value of the node label nvidia.com/gpu.product).
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.model import LabelSelector, Problem

CPU = "cpu"
MEMORY = "memory"
GPU = "gpu"
GPU_SLICES = "gpu-slices"
GPU_MEMORY = "gpu-memory"
MODEL_PREFIX = "gpu/"
GPU_CLASSES = frozenset({GPU, GPU_SLICES, GPU_MEMORY})
MODEL_LABEL = "nvidia.com/gpu.product"

DEFAULT_QUEUE = "default"
QUEUE_LABEL = "dovetail.dev/queue"
"""Of a namespace: the queue of those of its pods that name none."""
DAY_MS = 86_400_000
DEFAULT_HALF_LIFE_MS = 7 * DAY_MS

RECLAIM_MIN_RUNTIME_MS = 600_000
"""How long jobs of a queue that does not say it run at least before jobs beyond their guarantee reclaim their room."""

DIVIDED = {CPU: 1, MEMORY: 1, GPU: 1000}
"""The classes of which each queue is due a part, with their grains: whole GPUs."""

Amounts = tuple[tuple[str, int], ...]


class Usage(Struct, frozen=True):
    """What a queue had used when that was last written down, at `as_of_ms`. `used` is the decayed usage in milli-GPU
    times ms (see `ledger`), `rate_milli` what it was charged from then on, `days` its plain usage in milli-GPU times ms
    by day (days since 1970, UTC), `users` the decayed usage of each user, `jobs` what jobs had by pods that were gone
    by then, where that counts (see `attained`)."""

    as_of_ms: int
    used: int = 0
    rate_milli: int = 0
    days: tuple[tuple[int, int], ...] = ()
    users: tuple[tuple[str, int], ...] = ()
    jobs: tuple[tuple[str, int], ...] = ()


class History(Struct, frozen=True):
    """What a queue has used. Up to `told_ms` its record knew its usage when it was first told (None: it was not); it
    counts for those above it since `linked_ms`, as far as they do not know better."""

    queue: str
    told_ms: int | None
    usage: Usage
    linked_ms: int = 0


class Queue(Struct, frozen=True):
    """A team, or a team of teams. Jobs are in leaves alone. `guarantee` is what it always gets back, `limit` what it
    never goes beyond (classes that are not there: no limit). `weight` is its part of what nobody has guaranteed, and
    of time; who is of a higher `priority` goes first among siblings. `half_life_ms` is after what time usage counts
    half. Its running jobs are left alone for `reclaim_min_runtime_ms` by other queues (None: for
    `RECLAIM_MIN_RUNTIME_MS`, but not by jobs within their guarantee) and for `preempt_min_runtime_ms` by its own.
    `preemptible` is for pods that do not say it themselves. `namespaces` and `namespace_selector` say who may use it
    (both None: everybody; either admits). With `by_user` its users share it alike over time. With
    `least_served_first` that of its jobs comes first, after priority, that had least (see `attained`), and others give
    way to it. `uid` tells it from an older one of its name ("": there is one alone). `usage` counts when it is first
    told."""

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

    @property
    def least_run_ms(self) -> int:
        """How long its running jobs are left alone by jobs that go beyond the guarantee of their queue."""
        return RECLAIM_MIN_RUNTIME_MS if self.reclaim_min_runtime_ms is None else self.reclaim_min_runtime_ms


class Budget(Struct, frozen=True):
    """A PodDisruptionBudget: of the pods of its namespace that `selector` matches (None: none), `allowed` may be
    evicted now, as the disruption controller last worked out."""

    namespace: str
    name: str
    selector: LabelSelector | None
    allowed: int

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"
