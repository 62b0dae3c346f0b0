# SPDX-License-Identifier: Apache-2.0
"""What a period cost, by group: the answer of `dovetail cost`.

Rules
- Money is in millionths of the currency and GPU time in GPU-seconds, whole numbers by largest remainder: of each row
  used, idle and not measured add up to allocated, and that with unallocated, unhealthy and shared to its cost; of each
  column the rows add up to the total.
- The total is the bill: the price of each GPU for all of the time for which it was there.
- Time without a price is in no amount of money; it is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dovetail.cost.cells import GpuTimes
from dovetail.cost.group_sums import RowKind, Sums, group_sums
from dovetail.cost.grouping import Grouping
from dovetail.cost.idle_rules import IdleRule, shared
from dovetail.cost.price_rules import PriceRule, Unpriced
from dovetail.cost.rounding import MICRO, nearest, parts_of, shown
from dovetail.history.records import Gap

GPU_SECOND = 1000 * 1000
"""Thousandths of a GPU times milliseconds."""
PPM = 10**6


class CostRow(Struct, frozen=True):
    """A group, all others together, or GPU time that nobody held (`kind`). Amounts end in `_micro` (millionths of the
    currency) and in `_gpu_s` (GPU-seconds). `start_up` is a part of allocated, `unpriced` a part of all times."""

    name: str
    kind: RowKind
    jobs: int
    pods: int
    cost_micro: int
    allocated_micro: int
    used_micro: int
    idle_micro: int
    unmeasured_micro: int
    unallocated_micro: int
    unhealthy_micro: int
    shared_micro: int
    start_up_micro: int
    allocated_gpu_s: int
    used_gpu_s: int
    idle_gpu_s: int
    unmeasured_gpu_s: int
    unallocated_gpu_s: int
    unhealthy_gpu_s: int
    start_up_gpu_s: int
    unpriced_gpu_s: int


class PriceUsed(Struct, frozen=True):
    """A source of prices, with their date ("" if it has none) and currency, and what was charged by them."""

    source: str
    date: str
    currency: str
    cost_micro: int
    gpu_s: int


class UnpricedTime(Struct, frozen=True):
    """GPU time without a price."""

    model: str
    instance_type: str
    region: str
    spot: bool
    nodes: int
    gpu_s: int
    why: str
    fix: str


class Coverage(Struct, frozen=True):
    """What the answer rests on: the history from `known_start_ms` to `known_end_ms`, without `gaps`, which together are
    `gap_ms`. `measured_ppm` millionths of the allocated time were measured. For `unknown_gpu_s` pods held GPUs that
    were on no node, and are not charged for it; for `assumed_gpu_s` it is assumed which GPU a pod held, as pods were
    only counted."""

    known_start_ms: int
    known_end_ms: int
    gaps: tuple[Gap, ...]
    gap_ms: int
    measured_ppm: int
    unknown_gpu_s: int
    assumed_gpu_s: int


class CostAnswer(Struct, frozen=True):
    """`start_ms` to `end_ms` is what is known of the period from `asked_start_ms` to `asked_end_ms`. `others` groups
    are in one row together."""

    by: str
    start_ms: int
    end_ms: int
    asked_start_ms: int
    asked_end_ms: int
    currency: str
    idle: IdleRule
    rows: tuple[CostRow, ...]
    total: CostRow
    prices: tuple[PriceUsed, ...]
    unpriced: tuple[UnpricedTime, ...]
    coverage: Coverage
    others: int = 0


NUMBERS = CostRow.__struct_fields__[4:]
"""The fields of a row that add up to the total."""
_MONEY = ("used", "idle", "unmeasured", "unallocated", "unhealthy", "shared")
_TIMES = ("used_time", "idle_time", "unmeasured_time", "unallocated_time", "unhealthy_time")


def costs(
    times: GpuTimes, grouping: Grouping, idle: IdleRule, currency: str, limit: int | None = None
) -> CostAnswer:  # fmt: skip
    """The costs by group, the largest first; of at most `limit` groups, and of the others together."""
    found = group_sums(times, grouping, limit)
    made = cost_rows(shared(found.rows, idle))
    return CostAnswer(
        grouping.by, times.period.start_ms, times.period.end_ms, times.asked.start_ms, times.asked.end_ms,
        currency, idle, made, _total(made, found.jobs, found.pods), _prices(times), _unpriced(times), coverage(times),
        found.others,
    )  # fmt: skip


def cost_rows(rows: Sequence[Sums]) -> tuple[CostRow, ...]:
    """The rows in whole units."""
    money = shown([[getattr(row, name) for name in _MONEY] for row in rows], MICRO)
    times = shown([[getattr(row, name) for name in _TIMES] for row in rows], GPU_SECOND)
    start_up = _column([row.start_up for row in rows], MICRO)
    start_up_s = _column([row.start_up_time for row in rows], GPU_SECOND)
    unpriced_s = _column([row.unpriced_time for row in rows], GPU_SECOND)
    made = []
    for row, micro, gpu_s, *others in zip(rows, money, times, start_up, start_up_s, unpriced_s, strict=True):
        begun, begun_s, free_s = others
        numbers = (sum(micro), sum(micro[:3]), *micro, begun, sum(gpu_s[:3]), *gpu_s, begun_s, free_s)
        values = dict(zip(NUMBERS, numbers, strict=True))
        made.append(CostRow(row.name, row.kind, row.jobs, row.pods, **values))
    return tuple(made)


def _column(amounts: Sequence[int], unit: int) -> list[int]:
    return parts_of(nearest(sum(amounts), unit), amounts)


def _total(rows: Sequence[CostRow], jobs: int, pods: int) -> CostRow:
    summed = {name: sum(getattr(row, name) for row in rows) for name in NUMBERS}
    return CostRow("total", "group", jobs, pods, **summed)


def _prices(times: GpuTimes) -> tuple[PriceUsed, ...]:
    found: dict[tuple[str, str, str], list[int]] = {}
    for line in times.bill:
        if isinstance(rule := line.price, PriceRule):
            amounts = found.setdefault((rule.source, rule.date, rule.currency), [0, 0])
            amounts[0] += line.money
            amounts[1] += line.time
    money = _column([amounts[0] for amounts in found.values()], MICRO)
    gpu_s = _column([amounts[1] for amounts in found.values()], GPU_SECOND)
    used = [PriceUsed(*key, micro, s) for key, micro, s in zip(found, money, gpu_s, strict=True)]
    return tuple(sorted(used, key=lambda one: (-one.cost_micro, one.source, one.date)))


def _unpriced(times: GpuTimes) -> tuple[UnpricedTime, ...]:
    found: dict[tuple[str, str, str, bool, str, str], tuple[set[str], list[int]]] = {}
    for line in times.bill:
        if isinstance(price := line.price, Unpriced):
            key = (line.model, line.instance_type, line.region, line.spot, price.why, price.fix)
            nodes, time = found.setdefault(key, (set(), [0]))
            nodes.add(line.node)
            time[0] += line.time
    gpu_s = _column([time[0] for _, time in found.values()], GPU_SECOND)
    return tuple(
        UnpricedTime(*key[:4], len(nodes), s, *key[4:])
        for (key, (nodes, _)), s in sorted(zip(found.items(), gpu_s, strict=True), key=lambda one: (-one[1], one[0][0]))
    )


def coverage(times: GpuTimes) -> Coverage:
    """What is known of the times."""
    held = [cell for cell in times.cells if cell.state == "allocated"]
    whole = sum(cell.time for cell in held)
    measured = sum(cell.used_time + cell.idle_time for cell in held)
    if times.columns is not None:
        whole += times.columns.allocated_time
        measured += times.columns.measured_time
    gaps = tuple(Gap(part.start_ms, part.end_ms, gap.reason) for gap in times.gaps
                 if (part := times.period.clipped(gap.start_ms, gap.end_ms)).ms)  # fmt: skip
    return Coverage(
        times.known.start_ms, times.known.end_ms, gaps, sum(gap.end_ms - gap.start_ms for gap in gaps),
        measured * PPM // whole if whole else 0, times.unknown_ms // 1000, times.assumed_time // GPU_SECOND,
    )  # fmt: skip
