# SPDX-License-Identifier: Apache-2.0
"""The columns of the list of `capacity`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.cli.listing import ListColumn, ListColumns

if TYPE_CHECKING:
    from collections.abc import Callable

    from dovetail.cost.capacity import CapacityAdvice

_STYLES = {"give back": "yellow", "rent or buy": "yellow", "keep": "green", "not enough data": "dim"}
_HOUR_S = 3600
_ONE = 10**6


def _number(
    name: str, of: Callable[[CapacityAdvice], int], heading: str | None = None, *, wide: bool = False
) -> ListColumn[CapacityAdvice]:
    return ListColumn(name, of, lambda row, _: f"{of(row):,}", heading, wide, to_the_right=True)


def _gpu_hours(
    name: str, of: Callable[[CapacityAdvice], int], heading: str, *, wide: bool = False
) -> ListColumn[CapacityAdvice]:
    return ListColumn(
        name, lambda row: of(row) / _HOUR_S, lambda row, _: f"{of(row) / _HOUR_S:,.0f}", heading, wide,
        to_the_right=True,
    )  # fmt: skip


def _money(row: CapacityAdvice) -> float | None:
    return row.per_30d_micro / _ONE if row.per_30d_micro is not None else None


def _stranded(row: CapacityAdvice) -> int:
    return sum(one.gpu_s for one in row.stranded if one.waited)


def _stranded_cost(row: CapacityAdvice) -> float | None:
    known = [one.cost_micro for one in row.stranded if one.waited]
    return sum(cost or 0 for cost in known) / _ONE if None not in known else None


def change(row: CapacityAdvice) -> str:
    """The advice with its number of GPUs."""
    gpus = abs(row.change_nodes) * row.node_gpus
    return f"{row.verdict}: {gpus} GPUs" if gpus else row.verdict


CAPACITY: ListColumns[CapacityAdvice] = ListColumns(
    (
        ListColumn("model", lambda row: row.model),
        _number("node-gpus", lambda row: row.node_gpus, "a node"),
        _number("nodes", lambda row: row.nodes),
        _number("gpus", lambda row: row.gpus, "GPUs"),
        ListColumn("mean", lambda row: row.mean_gpus_milli / 1000, lambda row, _: f"{row.mean_gpus_milli / 1000:,.1f}",
                   "held: mean", to_the_right=True),
        _number("p95", lambda row: row.p95_gpus),
        _number("most", lambda row: row.peak_gpus),
        _number("unused", lambda row: row.least_unused_gpus),
        _gpu_hours("waited-gpu-hours", lambda row: row.waited_gpu_s, "waited GPU h"),
        _gpu_hours("lacked-gpu-hours", lambda row: row.lacked_gpu_s, "lacked"),
        ListColumn("advice", lambda row: row.verdict, lambda row, _: change(row), styles=_STYLES),
        ListColumn("change-nodes", lambda row: row.change_nodes, wide=True, to_the_right=True),
        ListColumn("per-30d", _money, lambda row, _: f"{_money(row):,.2f}" if _money(row) is not None else "-",
                   "in 30 days", wide=True, to_the_right=True),
        _number("lacked-days", lambda row: row.lacked_days, "days lacked", wide=True),
        _gpu_hours("stranded-gpu-hours", _stranded, "stranded GPU h", wide=True),
        ListColumn(
            "stranded-cost", _stranded_cost,
            lambda row, _: f"{cost:,.2f}" if (cost := _stranded_cost(row)) is not None else "-",
            "cost of stranded", wide=True, to_the_right=True,
        ),
        ListColumn("evidence", lambda row: row.evidence, wide=True, prose=True),
    ),
    named_by="model",
)  # fmt: skip
