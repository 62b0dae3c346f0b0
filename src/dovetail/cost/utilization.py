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

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from dovetail.cost.cells import GpuTimes
from dovetail.cost.costs import Coverage, cost_rows, coverage
from dovetail.cost.grouping import Grouping, RowKind, grouped, name_of_held, totals
from dovetail.history.day_sums import job_number, pod_number, wait_ms
from dovetail.history.gpu_use import NEVER_MS


class UtilizationRow(Struct, frozen=True):
    """A group, or GPU time that nobody held (`kind`). `jobs` and `pods` held GPUs in the period; `started` jobs started
    in it, and waited `mean_wait_ms`, None if there are none."""

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
    """`start_ms` to `end_ms` is what is known of the period from `asked_start_ms` to `asked_end_ms`."""

    by: str
    start_ms: int
    end_ms: int
    asked_start_ms: int
    asked_end_ms: int
    rows: tuple[UtilizationRow, ...]
    total: UtilizationRow
    coverage: Coverage


TIMES = UtilizationRow.__struct_fields__[6:]
"""The fields of a row that add up to the total."""


def utilization(times: GpuTimes, grouping: Grouping) -> Utilization:
    """The use by group, most allocated time first."""
    groups = grouped(times, grouping)
    if grouping.by != "day":
        groups.sort(key=lambda row: (row.kind != "group", -row.allocated_time, row.name))
    waits: dict[str, list[int]] = {}
    for name, waited_ms in _waits(times, grouping):
        waits.setdefault(name, []).append(waited_ms)
    rows = [
        UtilizationRow(
            row.name, row.kind, row.jobs, row.pods, *_mean(waits.get(row.name, []) if row.kind == "group" else []),
            **{name: getattr(row, name) for name in TIMES},
        )
        for row in cost_rows(groups)
    ]  # fmt: skip
    whole, summed = totals(groups), {name: sum(getattr(row, name) for row in rows) for name in TIMES}
    every = [wait for found in waits.values() for wait in found]
    total = UtilizationRow("total", "group", len(whole.jobs), len(whole.pods), *_mean(every), **summed)
    return Utilization(
        grouping.by, times.period.start_ms, times.period.end_ms, times.asked.start_ms, times.asked.end_ms,
        tuple(rows), total, coverage(times),
    )  # fmt: skip


def _mean(waits: list[int]) -> tuple[int, int | None]:
    return len(waits), sum(waits) // len(waits) if waits else None


class _Start(NamedTuple):
    """The bind of a pod; in order, the one that counts first."""

    bound_ms: int
    pod: int
    group: str
    wait_ms: int


_NEVER = _Start(NEVER_MS, 0, "", 0)


def _waits(times: GpuTimes, grouping: Grouping) -> Iterator[tuple[str, int]]:
    """The group of each job that started in the period, and how long it waited."""
    first: dict[int, _Start] = {}
    for job, start in _starts(times, grouping):
        if start < first.get(job, _NEVER):
            first[job] = start
    return ((start.group, start.wait_ms) for start in first.values())


def _starts(times: GpuTimes, grouping: Grouping) -> Iterator[tuple[int, _Start]]:
    """The jobs of pods that were bound in the period, by group."""
    period, of_pod, of_owner = times.period, grouping.of_pods(), grouping.of_owners()
    starts = [part.start_ms for part in times.segments]
    for cell in times.cells:
        pod = times.pods.get(cell.pod_uid)
        if pod is None or not period.start_ms <= pod.bound_ms < period.end_ms:
            continue
        if grouping.by == "day":
            group = grouping.days[bisect_right(starts, pod.bound_ms) - 1]
        else:
            group = of_pod(pod) if grouping.of_holders else grouping.of_place(cell.where)
        yield job_number(pod), _Start(pod.bound_ms, pod_number(pod.uid), group, wait_ms(pod))
    for held in times.held:
        group, pods = name_of_held(held, grouping, of_owner), held.pods
        for number, job, bound_ms, waited_ms in zip(pods.pods, pods.jobs, pods.bound_ms, pods.wait_ms, strict=True):
            if job and period.start_ms <= bound_ms < period.end_ms:
                yield job, _Start(bound_ms, number, group, waited_ms)
