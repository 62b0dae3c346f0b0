# SPDX-License-Identifier: Apache-2.0
"""The published orders of pending jobs, one line of code each.

Sources
- FIFO, SJF, SRTF and QSSF: the artifact of Helios (Hu et al., SC'21; S-Lab-System-Group/HeliosArtifact, framework/QSSF
  Service/policies). Without preemption no job passes the first one that does not fit. SRTF passes it, and preempts at
  no cost. On Philly, whose job names are hidden, the artifact's QSSF does not predict: it orders by the true run time
  with a random error as large as that of its predictions on Helios (estimators/philly_estimate.py).
- LAS: Tiresias (Gu et al., NSDI'19). Levels of attained GPU time; within a level, running jobs first, then age.
- `fair` and `fair-history`: Kubernetes queues without and with usage history. The queue with the fewest GPUs held, or
  the least decayed usage, per weight comes first.
- `credit`: a token bucket per queue; its share of the GPUs fills the bucket, its usage drains it.
"""

from __future__ import annotations

import random

from dovetail.core.queues.attained import level, level_after_ms
from dovetail.sim.clock import Fate
from dovetail.sim.plain import BackfillRule, Plain, PlainOrder

_UNKNOWN_MS = 2**62
_ERRORS = ((0.1, 0.0, 0.1), (0.5, 0.1, 0.5), (0.7, 0.5, 1.0), (0.9, 1.0, 10.0), (1.0, 10.0, 100.0))
"""The errors of Helios' predictions: (cumulative fraction of the jobs, least, largest relative error)."""


def _age(plain: Plain, fate: Fate) -> int:
    return fate.job.at_ms


def _duration(plain: Plain, fate: Fate) -> tuple[int, int]:
    return fate.job.duration_ms or _UNKNOWN_MS, fate.job.at_ms


def _remaining(plain: Plain, fate: Fate) -> tuple[int, int]:
    known = fate.job.duration_ms is not None
    return fate.remaining_ms(plain.now_ms) if known else _UNKNOWN_MS, fate.job.at_ms


def _guessed(plain: Plain, fate: Fate) -> tuple[float, int]:
    chance = random.Random(f"{plain.seed}/{fate.job.pods[0].uid}")
    part = chance.random()
    least, most = next((least, most) for upto, least, most in _ERRORS if part <= upto)
    error = chance.uniform(least, most) * chance.choice((-1, 1))
    return (fate.job.duration_ms or _UNKNOWN_MS) * (1 + error), fate.job.at_ms


def _attained(plain: Plain, fate: Fate) -> int:
    """Attained service in milli-GPU times ms, lost progress included."""
    return fate.milli * fate.served_ms(plain.now_ms)


def _level(plain: Plain, fate: Fate) -> tuple[int, bool, int]:
    return level(_attained(plain, fate)), not fate.running, fate.job.at_ms


def _next_level_ms(plain: Plain, fate: Fate) -> int | None:
    if not fate.milli:
        return None
    return plain.now_ms + level_after_ms(_attained(plain, fate), fate.milli)


ORDERS: dict[str, PlainOrder] = {
    "fifo": PlainOrder(_age),
    "sjf": PlainOrder(_duration),
    "srtf": PlainOrder(_remaining, preempts=True, backfill=BackfillRule.SKIP),
    "qssf": PlainOrder(_guessed),
    "las": PlainOrder(_level, preempts=True, changes_ms=_next_level_ms, backfill=BackfillRule.SKIP),
    "fair": PlainOrder(_age, queue=lambda plain, queue: plain.walked_milli[queue] / plain.weights[queue]),
    "fair-history": PlainOrder(_age, queue=lambda plain, queue: plain.usage.used[queue] / plain.weights[queue]),
    "credit": PlainOrder(_age, queue=lambda plain, queue: -plain.usage.credit[queue] / plain.weights[queue]),
}
"""The orders by name."""
