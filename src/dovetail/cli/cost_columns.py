# SPDX-License-Identifier: Apache-2.0
"""The columns of `dovetail cost` and `dovetail report`: money in hundredths, GPU time in hundredths of hours.

Rules: what is shown adds up, as in the answers. The rows are rounded together, by largest remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from dovetail.cli.listing import ListColumn, ListColumns
from dovetail.cli.output import span

if TYPE_CHECKING:
    from dovetail.cost.costs import CostAnswer, CostRow
    from dovetail.cost.utilization import Utilization, UtilizationRow

_CENT_MICRO, _CENT_HOUR_S = 10_000, 36
_MONEY = ("used", "idle", "unmeasured", "unallocated", "unhealthy", "shared")
_TIMES = ("used", "idle", "unmeasured", "unallocated", "unhealthy")
_PER_CENT = 100


class CostLine(Struct, frozen=True):
    """A row as it is shown: by name hundredths of the currency (`money`), and of GPU-hours (`hours`)."""

    row: CostRow
    money: dict[str, int]
    hours: dict[str, int]
    share: float | None
    currency: str
    prices: str


class UseLine(Struct, frozen=True):
    """A row of a report as it is shown: by name hundredths of GPU-hours, and the part of all of them in %."""

    row: UtilizationRow
    hours: dict[str, int]
    share: float | None


def cost_lines(answer: CostAnswer) -> tuple[list[CostLine], CostLine]:
    """The rows, and their total."""
    from dovetail.cost.rounding import shown

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
    from dovetail.cost.rounding import shown

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


L = TypeVar("L", CostLine, UseLine)


def _text(number: int | None) -> str | None:
    """Hundredths as text."""
    from dovetail.cost.rounding import decimal

    return decimal(number, 2) if number is not None else None


def _amount(
    name: str, find: Callable[[L], int | None], heading: str | None = None, wide: bool = False
) -> ListColumn[L]:
    return ListColumn(name, lambda row: _text(find(row)), heading=heading, wide=wide, to_the_right=True, rank=find)


_ROUNDED_GPU_S = 6
"""What six times of a row, each rounded by itself, can be more than all of its time."""


def _measured(line: CostLine | UseLine) -> bool:
    return bool(line.row.used_gpu_s or line.row.idle_gpu_s)


def _priced(line: CostLine) -> bool:
    """Whether any of its time has a price: without one it costs something, but not 0."""
    row = line.row
    priced_gpu_s = row.allocated_gpu_s + row.unallocated_gpu_s + row.unhealthy_gpu_s - row.unpriced_gpu_s
    return not row.unpriced_gpu_s or priced_gpu_s > _ROUNDED_GPU_S


def _money_of(name: str, wide: bool = False) -> ListColumn[CostLine]:
    measured = name in ("used", "idle")

    def find(line: CostLine) -> int | None:
        known = (_priced(line) or line.money[name] > 0) and (_measured(line) or not measured)
        return line.money[name] if known else None

    return _amount(name.replace("_", "-"), find, wide=wide)


def _hours_of(name: str, wide: bool = False) -> ListColumn[CostLine]:
    key = name.removesuffix("_hours")
    return _amount(f"{key.replace('_', '-')}-hours", lambda line: line.hours[key], wide=wide)


COST: ListColumns[CostLine] = ListColumns(
    (
        ListColumn("name", lambda line: line.row.name),
        _money_of("cost"),
        ListColumn(
            "share-percent",
            lambda line: line.share if _priced(line) or line.share else None,
            heading="%",
            to_the_right=True,
        ),
        _money_of("allocated"),
        _money_of("used"),
        _money_of("idle"),
        _money_of("unmeasured", wide=True),
        _money_of("start_up", wide=True),
        _money_of("unallocated"),
        _money_of("unhealthy"),
        _money_of("shared"),
        _amount("gpu-hours", lambda line: _all_of(line.hours), heading="GPU-hours"),
        _hours_of("allocated", wide=True),
        _hours_of("used", wide=True),
        _hours_of("idle", wide=True),
        _hours_of("unmeasured", wide=True),
        _hours_of("unallocated", wide=True),
        _hours_of("unhealthy", wide=True),
        _hours_of("start_up", wide=True),
        _hours_of("unpriced", wide=True),
        ListColumn("jobs", lambda line: line.row.jobs, to_the_right=True),
        ListColumn("pods", lambda line: line.row.pods, wide=True, to_the_right=True),
        ListColumn("kind", lambda line: line.row.kind, wide=True),
        ListColumn("currency", lambda line: line.currency, wide=True),
        ListColumn("prices", lambda line: line.prices, wide=True, prose=True),
    ),
    named_by="name",
)
HELD = ("name", "cost", "share-percent", "allocated", "used", "idle", "gpu-hours", "jobs")
"""The columns of a table of holders, in which GPU time that nobody held is in rows of its own."""
SHARED = ("name", "cost", "share-percent", "allocated", "used", "idle", "shared", "gpu-hours", "jobs")
"""Those if it is divided over them."""
PLACED = ("name", "cost", "share-percent", "allocated", "used", "idle", "unallocated", "unhealthy", "gpu-hours", "jobs")
"""Those of a table of places."""


def _use_of(name: str, wide: bool = False, measured: bool = False) -> ListColumn[UseLine]:
    return _amount(
        name.replace("_", "-"), lambda line: line.hours[name] if _measured(line) or not measured else None, wide=wide
    )


REPORT: ListColumns[UseLine] = ListColumns(
    (
        ListColumn("name", lambda line: line.row.name),
        _use_of("allocated"),
        _use_of("used", measured=True),
        _use_of("idle", measured=True),
        _use_of("unmeasured", wide=True),
        _use_of("start_up", wide=True),
        _use_of("unallocated"),
        _use_of("unhealthy"),
        ListColumn("share-percent", lambda line: line.share, heading="%", to_the_right=True),
        ListColumn("jobs", lambda line: line.row.jobs, to_the_right=True),
        ListColumn("started", lambda line: line.row.started, to_the_right=True),
        ListColumn(
            "mean-wait-s",
            lambda line: None if line.row.mean_wait_ms is None else line.row.mean_wait_ms / 1000,
            lambda line, _: "" if line.row.mean_wait_ms is None else span(line.row.mean_wait_ms),
            heading="mean wait",
            to_the_right=True,
        ),
        ListColumn("pods", lambda line: line.row.pods, wide=True, to_the_right=True),
        ListColumn("kind", lambda line: line.row.kind, wide=True),
    ),
    named_by="name",
)
