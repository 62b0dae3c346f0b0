# SPDX-License-Identifier: Apache-2.0
"""The columns of the list of `idle`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.cli.listing import ListColumn, ListColumns, Shown
from dovetail.cli.output import ago, span

if TYPE_CHECKING:
    from dovetail.cost.idle_pods import IdleRow

_HOUR_S, _MICRO = 3600, 1_000_000


def _since(row: IdleRow, shown: Shown) -> str:
    text = ago(round(row.since.timestamp() * 1000), shown.now_ms)
    return f"{text} or more" if row.at_least else text


def _policy(row: IdleRow, shown: Shown) -> str:
    if row.policy_at is None:
        return row.policy
    left_ms = round(row.policy_at.timestamp() * 1000) - shown.now_ms
    step = row.policy.replace("-", " ")
    if left_ms > 0:
        return f"{step} in {span(left_ms)}"
    return f"{step} only" if row.policy == "notice" else f"{step} now"


def _policy_at(row: IdleRow, _: Shown) -> str:
    return f"{row.policy_at:%Y-%m-%d %H:%M} UTC" if row.policy_at is not None else ""


def _cost(row: IdleRow) -> float | None:
    return row.cost_micro / _MICRO if row.cost_micro is not None else None


def _cents(row: IdleRow) -> int:
    """Imported when a row is shown, not when the options are declared."""
    from dovetail.cost.idle_notes import cents

    return cents(row)


IDLE: ListColumns[IdleRow] = ListColumns(
    (
        ListColumn("pod", lambda row: row.pod),
        ListColumn("user", lambda row: row.user),
        ListColumn("queue", lambda row: row.queue),
        ListColumn("gpus", lambda row: row.unused, lambda row, _: f"{row.unused} of {row.held}", "idle GPUs"),
        ListColumn("idle", lambda row: row.since, _since),
        ListColumn(
            "gpu-hours", lambda row: row.gpu_s / _HOUR_S, lambda row, _: f"{row.gpu_s / _HOUR_S:,.1f}", "GPU-hours",
            to_the_right=True,
        ),
        ListColumn(
            "cost", _cost, lambda row, _: f"{_cents(row) / 100:,.2f}" if row.cost_micro is not None else "",
            to_the_right=True,
        ),
        ListColumn("policy", lambda row: row.policy, _policy),
        ListColumn("action", lambda row: row.action, heading="what to do", prose=True),
        ListColumn("job", lambda row: row.job, wide=True),
        ListColumn("kind", lambda row: row.kind, wide=True),
        ListColumn("node", lambda row: row.node, wide=True),
        ListColumn("policy-at", lambda row: row.policy_at, _policy_at, "at", wide=True),
        ListColumn("policy-note", lambda row: row.policy_note, heading="what the policy does", wide=True, prose=True),
        ListColumn(
            "measured", lambda row: row.coverage_milli / 10, lambda row, _: f"{row.coverage_milli / 10:.0f}%",
            wide=True, to_the_right=True,
        ),
    ),
    named_by="pod",
)  # fmt: skip
