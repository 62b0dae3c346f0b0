# SPDX-License-Identifier: Apache-2.0
"""How a period's GPUs were used, by group, without prices: the answer of `dovetail report`.

Rules
- Times are GPU-seconds, whole numbers that add up as those of `costs` do.
- A job has started in the period if one of its pods was bound in it. It waited from when the first pod that was bound
  in the period was submitted until that was bound, and counts for the group of that pod; by day that of the bind.
  Of several models, or nodes, that this pod held GPUs of, the first by name counts.
- Jobs that still wait, or ended without a start, are in no mean.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dovetail.cost.cells import GpuTimes
from dovetail.cost.costs import Coverage, cost_rows, coverage
from dovetail.cost.group_sums import GroupSums, RowKind, group_sums
from dovetail.cost.grouping import Grouping
from dovetail.cost.holders import first_starts


class UtilizationRow(Struct, frozen=True):
    """A group, all others together, or GPU time that nobody held (`kind`). `jobs` and `pods` held GPUs in the period;
    `started` jobs started in it, and waited `mean_wait_ms`, None if there are none."""

    name: str
    kind: RowKind
    jobs: int
    pods: int
    started: int
    mean_wait_ms: int | None
    allocated_gpu_s: int
    used_gpu_s: int
    idle_gpu_s: int
    unmeasured_gpu_s: int
    unallocated_gpu_s: int
    unhealthy_gpu_s: int
    start_up_gpu_s: int


class Utilization(Struct, frozen=True):
    """`start_ms` to `end_ms` is what is known of the period from `asked_start_ms` to `asked_end_ms`. `others` groups
    are in one row together."""

    by: str
    start_ms: int
    end_ms: int
    asked_start_ms: int
    asked_end_ms: int
    rows: tuple[UtilizationRow, ...]
    total: UtilizationRow
    coverage: Coverage
    others: int = 0


TIMES = UtilizationRow.__struct_fields__[6:]
"""The fields of a row that add up to the total."""


def utilization(times: GpuTimes, grouping: Grouping, limit: int | None = None) -> Utilization:
    """The use by group, most allocated time first; of at most `limit` groups, and of the others together."""
    found = group_sums(times, grouping, limit)
    waits = _waits(found, times, grouping)
    rows = [
        UtilizationRow(
            row.name, row.kind, row.jobs, row.pods, *_mean(waits[index]), **{name: getattr(row, name) for name in TIMES}
        )
        for index, row in enumerate(cost_rows(found.rows))
    ]  # fmt: skip
    summed = {name: sum(getattr(row, name) for row in rows) for name in TIMES}
    every = [wait for waited in waits for wait in waited]
    total = UtilizationRow("total", "group", found.jobs, found.pods, *_mean(every), **summed)
    return Utilization(
        grouping.by, times.period.start_ms, times.period.end_ms, times.asked.start_ms, times.asked.end_ms,
        tuple(rows), total, coverage(times), found.others,
    )  # fmt: skip


def _mean(waits: list[int]) -> tuple[int, int | None]:
    return len(waits), sum(waits) // len(waits) if waits else None


def _waits(found: GroupSums, times: GpuTimes, grouping: Grouping) -> list[list[int]]:
    """For how long each job waited that started in the period, by row; those of no row come last."""
    holders, names, row_of = found.holders, found.names, found.row_of
    if grouping.by == "day":
        # A day may have no row, as there was no GPU, and a pod is bound all the same.
        starts = [part.start_ms for part in times.segments]
        names = list(grouping.days)
        rows = {row.name: index for index, row in enumerate(found.rows)}
        row_of = np.array([rows.get(name, len(rows)) for name in names], np.int64)
        holders = holders.of(np.searchsorted(starts, holders.bound_ms, side="right") - 1)
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    group, waited_ms = first_starts(holders, times.period, ranks)
    waits: list[list[int]] = [[] for _ in range(len(found.rows) + 1)]
    for row, wait in zip(row_of[group].tolist(), waited_ms.tolist(), strict=True):
        waits[row].append(wait)
    return waits
