# SPDX-License-Identifier: Apache-2.0
"""The columns of the list of `advise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.cli.listing import ListColumn, ListColumns
from dovetail.cli.money import money
from dovetail.cli.output import gpus

if TYPE_CHECKING:
    from collections.abc import Callable

    from dovetail.advice.sizing.rule import JobAdvice

_STYLES = {"advice": "yellow", "right-sized": "green", "not enough data": "dim"}
_HOUR_S = 3600


def _measured(row: JobAdvice) -> bool:
    return row.coverage_milli > 0


def _part(name: str, heading: str, of: Callable[[JobAdvice], int], *, wide: bool = False) -> ListColumn[JobAdvice]:
    """A part in percent of what was measured; nothing where that is nothing."""
    return ListColumn(
        name,
        lambda row: of(row) / 10 if _measured(row) else None,
        lambda row, _: f"{of(row) / 10:.0f}%" if _measured(row) else "",
        heading,
        wide,
        to_the_right=True,
    )


def _saved_hours(row: JobAdvice) -> float | None:
    return sum(one.saving.gpu_s for one in row.advice) / _HOUR_S if row.advice else None


def _cost(row: JobAdvice) -> tuple[int, str] | None:
    from dovetail.advice.sizing.advise import saved_cost

    return saved_cost([row])


def _saved_cost(row: JobAdvice) -> float | None:
    cost = _cost(row)
    return cost[0] / 10**6 if cost else None


def _saved_text(row: JobAdvice) -> str:
    cost = _cost(row)
    return money(*cost) if cost else ""


def _saved(row: JobAdvice) -> str:
    saved = _saved_hours(row)
    return f"{saved:,.1f}" if saved else ""


ADVICE: ListColumns[JobAdvice] = ListColumns(
    (
        ListColumn("job", lambda row: row.job),
        ListColumn("workload", lambda row: row.workload),
        ListColumn("gpus", lambda row: row.gpus_milli / 1000, lambda row, _: gpus(row.gpus_milli), "GPUs"),
        ListColumn("model", lambda row: row.model),
        _part("p50", "p50", lambda row: row.p50_milli),
        _part("p95", "p95", lambda row: row.p95_milli),
        ListColumn(
            "memory", lambda row: row.memory_peak_mib if _measured(row) else None,
            lambda row, _: f"{row.memory_peak_mib / 1024:.1f}Gi" if _measured(row) else "", "peak", to_the_right=True,
        ),
        ListColumn("class", lambda row: row.bottleneck),
        ListColumn("verdict", lambda row: row.verdict, styles=_STYLES, wide=True),
        ListColumn(
            "advice", lambda row: ",".join(one.rule for one in row.advice),
            lambda row, _: ", ".join(one.rule for one in row.advice) or row.verdict, styles=_STYLES,
        ),
        ListColumn(
            "saves-gpu-hours", _saved_hours, lambda row, _: _saved(row), "saves GPU h", to_the_right=True
        ),
        ListColumn("gpu-hours", lambda row: row.held_gpu_s / _HOUR_S,
                   lambda row, _: f"{row.held_gpu_s / _HOUR_S:,.1f}", "of GPU h", to_the_right=True),
        ListColumn("saves-cost", _saved_cost, lambda row, _: _saved_text(row), "saves", wide=True, to_the_right=True),
        ListColumn("user", lambda row: row.user, wide=True),
        ListColumn("queue", lambda row: row.queue, wide=True),
        _part("mean", "mean", lambda row: row.mean_milli, wide=True),
        _part("idle", "idle", lambda row: row.idle_milli, wide=True),
        ListColumn(
            "coverage", lambda row: row.coverage_milli / 10, lambda row, _: f"{row.coverage_milli / 10:.0f}%",
            "measured", wide=True, to_the_right=True,
        ),
        ListColumn("days", lambda row: row.days, wide=True, to_the_right=True),
        ListColumn("runs", lambda row: row.runs, wide=True, to_the_right=True),
        ListColumn("do", lambda row: "; ".join(one.action for one in row.advice) or row.missing, wide=True, prose=True),
    ),
    named_by="job",
)  # fmt: skip
