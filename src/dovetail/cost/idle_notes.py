# SPDX-License-Identifier: Apache-2.0
"""The sentence for the owner of a pod that leaves its GPUs idle."""

from __future__ import annotations

from dovetail.cost.idle_pods import IdleList, IdleRow
from dovetail.cost.rounding import nearest

_CENT_MICRO = 10_000
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def cents(row: IdleRow) -> int:
    """The cost as it is shown, in hundredths; 0 if it is not known."""
    return nearest(row.cost_micro or 0, _CENT_MICRO)


def idle_note(row: IdleRow, answer: IdleList) -> str:
    """What its owner is to read: which of its GPUs are idle, since when, what that has cost, and what to do."""
    gpus = f"{'all' if row.idle else row.unused} of its {row.held} GPUs" if row.held > 1 else "its GPU"
    are = "is" if row.unused == 1 and not (row.idle and row.held > 1) else "are"
    since = f"{row.since:%Y-%m-%d %H:%M} UTC{' or before' if row.at_least else ''}"
    length = _length(round((answer.now - row.since).total_seconds()))
    cost = f", which cost {cents(row) / 100:,.2f} {answer.currency}" if row.cost_micro is not None else ""
    return f"{gpus[0].upper()}{gpus[1:]} {are} idle since {since} ({length}{cost}): {row.action}."


def _length(left_s: int) -> str:
    """In its two largest units."""
    parts = []
    for unit, size_s in _UNITS:
        number, left_s = divmod(max(0, left_s), size_s)
        parts.append(f"{number} {unit}" if number else "")
    first = next((at for at, part in enumerate(parts) if part), len(parts) - 1)
    return " ".join(filter(None, parts[first : first + 2])) or "0 min"
