# SPDX-License-Identifier: Apache-2.0
"""The real use of a GPU, and when one is idle or a straggler: one table for the rules of Prometheus and `dovetail top`.

Rules
- Real use is the weighted sum of `PARTS`. A part that a device does not report is taken from its utilization; a device
  without that, as a MIG instance, has the activity of its graphics engine in place of it.
- A device is idle below the threshold `idle_util`.
- A straggler is used less than the median of its job: by at least `straggler_gap`, and by more than `straggler_sigma`
  standard deviations. The deviation is that of the median (`SIGMA_BY_MAD`), as one outlier among few members hides
  itself in the other one. Only whole GPUs are compared, in jobs of `straggler_gpus` or more.
- `dovetail top` has the defaults of these thresholds, over its shorter window.
Source of weights and of idle: KempnerPulse, docs/classification.md (April 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from dovetail.monitoring.thresholds import resolved

Activity = Literal["sm", "tensor", "dram", "engine"]


class UsePart(Struct, frozen=True):
    """An activity, DCGM's metric of it (0 to 1), and its weight."""

    activity: Activity
    metric: str
    weight: float


PARTS = (
    UsePart("sm", "DCGM_FI_PROF_SM_ACTIVE", 0.35),
    UsePart("tensor", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.35),
    UsePart("dram", "DCGM_FI_PROF_DRAM_ACTIVE", 0.2),
    UsePart("engine", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.1),
)
SIGMA_BY_MAD = 1.4826
"""The standard deviation of a normal distribution by its median absolute deviation."""


def weighted(values: Mapping[str, float | None], other: float | None) -> float | None:
    """Real use, from activities in one unit; `other` stands for each that is None or absent. None if that is None, too,
    where it is needed."""
    total = 0.0
    for part in PARTS:
        value = values.get(part.activity)
        if value is None:
            value = other
        if value is None:
            return None
        total += part.weight * value
    return total


def default(name: str) -> float:
    """The default of a threshold that is a number."""
    return float(resolved()[name])
