# SPDX-License-Identifier: Apache-2.0
"""The columns of `dovetail cost` and `dovetail report`: money in hundredths, GPU time in hundredths of hours.

The rows are those of `cost.cost_lines`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dovetail.cli.listing import ListColumn, ListColumns
from dovetail.cli.output import span

if TYPE_CHECKING:
    from dovetail.cost.cost_lines import CostLine, UseLine

L = TypeVar("L", "CostLine", "UseLine")


def _text(number: int | None) -> str | None:
    """Hundredths as text."""
    from dovetail.cost.rounding import decimal

    return decimal(number, 2) if number is not None else None


def _amount(
    name: str, find: Callable[[L], int | None], heading: str | None = None, wide: bool = False
) -> ListColumn[L]:
    return ListColumn(name, lambda row: _text(find(row)), heading=heading, wide=wide, to_the_right=True, rank=find)


def _money_of(name: str, wide: bool = False) -> ListColumn[CostLine]:
    return _amount(name.replace("_", "-"), lambda line: line.known(name), wide=wide)


def _hours_of(name: str, wide: bool = False) -> ListColumn[CostLine]:
    key = name.removesuffix("_hours")
    return _amount(f"{key.replace('_', '-')}-hours", lambda line: line.hours[key], wide=wide)


COST: ListColumns[CostLine] = ListColumns(
    (
        ListColumn("name", lambda line: line.row.name),
        _money_of("cost"),
        ListColumn(
            "share-percent",
            lambda line: line.share if line.priced or line.share else None,
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
        _amount("gpu-hours", lambda line: line.gpu_hours, heading="GPU-hours"),
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
        name.replace("_", "-"), lambda line: line.hours[name] if line.measured or not measured else None, wide=wide
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
