# SPDX-License-Identifier: Apache-2.0
"""The rows of costs and of reports as they are shown: money in hundredths, GPU time in hundredths of hours.

Rules: what is shown adds up, as in the answers. The rows are rounded together, by largest remainder.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dovetail.cost.costs import CostAnswer, CostRow
from dovetail.cost.rounding import shown
from dovetail.cost.utilization import Utilization, UtilizationRow

_CENT_MICRO, _CENT_HOUR_S = 10_000, 36
_MONEY = ("used", "idle", "unmeasured", "unallocated", "unhealthy", "shared")
_TIMES = ("used", "idle", "unmeasured", "unallocated", "unhealthy")
_MEASURED = ("used", "idle")
_PER_CENT = 100
_ROUNDED_GPU_S = 6
"""What six times of a row, each rounded by itself, can be more than all of its time."""


class CostLine(Struct, frozen=True):
    """A row as it is shown: by name hundredths of the currency (`money`), and of GPU-hours (`hours`)."""

    row: CostRow
    money: dict[str, int]
    hours: dict[str, int]
    share: float | None
    currency: str
    prices: str

    @property
    def gpu_hours(self) -> int:
        return _all_of(self.hours)

    @property
    def measured(self) -> bool:
        return bool(self.row.used_gpu_s or self.row.idle_gpu_s)

    @property
    def priced(self) -> bool:
        """Whether any of its time has a price: without one it costs something, but not 0."""
        row = self.row
        priced_gpu_s = row.allocated_gpu_s + row.unallocated_gpu_s + row.unhealthy_gpu_s - row.unpriced_gpu_s
        return not row.unpriced_gpu_s or priced_gpu_s > _ROUNDED_GPU_S

    def known(self, name: str) -> int | None:
        """The hundredths of money of this name, where they are known."""
        known = (self.priced or self.money[name] > 0) and (self.measured or name not in _MEASURED)
        return self.money[name] if known else None


class UseLine(Struct, frozen=True):
    """A row of a report as it is shown: by name hundredths of GPU-hours, and the part of all of them in %."""

    row: UtilizationRow
    hours: dict[str, int]
    share: float | None

    @property
    def measured(self) -> bool:
        return bool(self.row.used_gpu_s or self.row.idle_gpu_s)


def cost_lines(answer: CostAnswer) -> tuple[list[CostLine], CostLine]:
    """The rows, and their total."""
    rows = answer.rows
    money = shown([[getattr(row, f"{name}_micro") for name in _MONEY] for row in rows], _CENT_MICRO)
    starts = shown([[row.start_up_micro] for row in rows], _CENT_MICRO)
    cents = [
        dict(zip(_MONEY, line, strict=True)) | {"start_up": one[0]} for line, one in zip(money, starts, strict=True)
    ]
    for one in cents:
        one["allocated"] = one["used"] + one["idle"] + one["unmeasured"]
        one["cost"] = one["allocated"] + one["unallocated"] + one["unhealthy"] + one["shared"]
    hours = _hours(rows)
    free = shown([[row.unpriced_gpu_s] for row in rows], _CENT_HOUR_S)
    for one, (unpriced,) in zip(hours, free, strict=True):
        one["unpriced"] = unpriced
    prices = "; ".join(f"{one.source} of {one.date or 'no date'}" for one in answer.prices)
    total = _summed(cents, (*_MONEY, "start_up", "allocated", "cost"))
    whole = total["cost"]

    def line(row: CostRow, money: dict[str, int], hours: dict[str, int]) -> CostLine:
        return CostLine(row, money, hours, _share(money["cost"], whole), answer.currency, prices)

    lines = [line(*one) for one in zip(rows, cents, hours, strict=True)]
    return lines, line(answer.total, total, _summed(hours, (*_TIMES, "allocated", "start_up", "unpriced")))


def use_lines(answer: Utilization) -> tuple[list[UseLine], UseLine]:
    """The rows, and their total."""
    hours = _hours(answer.rows)
    total = _summed(hours, (*_TIMES, "allocated", "start_up"))
    whole = _all_of(total)
    lines = [UseLine(row, one, _share(_all_of(one), whole)) for row, one in zip(answer.rows, hours, strict=True)]
    return lines, UseLine(answer.total, total, _share(whole, whole))


def _all_of(hours: dict[str, int]) -> int:
    return hours["allocated"] + hours["unallocated"] + hours["unhealthy"]


def _hours(rows: Sequence[CostRow] | Sequence[UtilizationRow]) -> list[dict[str, int]]:
    times = shown([[getattr(row, f"{name}_gpu_s") for name in _TIMES] for row in rows], _CENT_HOUR_S)
    starts = shown([[row.start_up_gpu_s] for row in rows], _CENT_HOUR_S)
    found = [
        dict(zip(_TIMES, line, strict=True)) | {"start_up": one[0]} for line, one in zip(times, starts, strict=True)
    ]
    for one in found:
        one["allocated"] = one["used"] + one["idle"] + one["unmeasured"]
    return found


def _summed(lines: Sequence[dict[str, int]], names: Sequence[str]) -> dict[str, int]:
    return {name: sum(line[name] for line in lines) for name in names}


def _share(part: int, whole: int) -> float | None:
    return round(part * _PER_CENT / whole, 1) if whole else None
