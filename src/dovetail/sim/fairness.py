# SPDX-License-Identifier: Apache-2.0
"""How evenly the queues were served over time.

Rules
- The fair share of a queue at a moment is its weighted max-min share of the GPUs: no queue gets more than it wants, and
  the rest is divided among the other queues by weight.
- The service of a queue in a window is its allocation divided by its fair share, both integrated over the window.
- The index of a window is that of Jain, Chiu and Hawe ("A Quantitative Measure of Fairness", 1984), (sum x)^2 / (n sum
  x^2), over the queues with a fair share above 0: 1 if the service of all is equal, 1/n if one queue held everything.
- Windows in which no queue waited for GPUs are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dovetail.sim.clock import Result

WINDOW_MS = 6 * 3_600_000


def due(capacity: int, wanted: Sequence[int], weights: Sequence[int]) -> list[float]:
    """The weighted max-min fair share of each queue, in the unit of `capacity`."""
    parts = [0.0] * len(wanted)
    left, weight = float(capacity), sum(weights)
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i] / weights[i]):
        parts[i] = min(wanted[i], left * weights[i] / weight)
        left -= parts[i]
        weight -= weights[i]
    return parts


def jain(served: Sequence[float]) -> float:
    """Jain's index; 1 for an empty list, and if all values are 0."""
    squares = sum(x * x for x in served)
    return sum(served) ** 2 / (len(served) * squares) if squares else 1.0


def jain_over_time(result: Result, window_ms: int = WINDOW_MS) -> list[tuple[int, float]]:
    """(start in ms, index) of each window in which a queue waited and at least two queues had a fair share above 0."""
    indices: list[tuple[int, float]] = []
    if not result.moments:
        return indices
    weights, begin_ms = result.weights, result.moments[0].at_ms
    held, owed, lacking = [0.0] * len(weights), [0.0] * len(weights), False

    def close() -> None:
        nonlocal held, owed, lacking
        served = [has / part for has, part in zip(held, owed, strict=True) if part]
        if lacking and len(served) > 1:
            indices.append((begin_ms, jain(served)))
        held, owed, lacking = [0.0] * len(weights), [0.0] * len(weights), False

    for now, then in pairwise(result.moments):
        parts = due(now.up_milli, now.wanted_milli, weights)
        at_ms = now.at_ms
        while at_ms < then.at_ms:
            until_ms = min(then.at_ms, begin_ms + window_ms)
            for i, part in enumerate(parts):
                held[i] += now.held_milli[i] * (until_ms - at_ms)
                owed[i] += part * (until_ms - at_ms)
            lacking |= now.held_milli != now.wanted_milli
            at_ms = until_ms
            if at_ms == begin_ms + window_ms:
                close()
                begin_ms = at_ms
    close()
    return indices
