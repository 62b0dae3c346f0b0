# SPDX-License-Identifier: Apache-2.0
"""The expected use of idle GPUs and cores, if pods come as they came so far.

Rules
- A GPU of which r is left, on a node with c cores left, is filled in a model: pods come one after another, each class
  as often as among the pods so far, and each takes its part if it fits, until no more come. The expected use
      f(r, c) = sum w (g + f(r - g, c - k)) / (stop + sum w)
  sums over the classes that request one GPU, or a share g of one, and k cores, and fit; and over those that request
  cores alone. h(r, c) is the same for cores. `w` is how often a class comes to such a GPU.
- `stop` is such that ten times as many pods come as would fill the cluster.
- Amounts of a GPU are in hundredths, cores in halves, use in 1/SCALE of a thousandth of a GPU; divisions round down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dovetail.core.placing import kernel
from dovetail.core.placing.layout import LEVELS, STEP_MILLI, UNIT_MILLI, UNITS

Ints = NDArray[np.int64]
SCALE = 256


class Arriving(Struct, frozen=True):
    """A class in a table: what a pod takes of a GPU and of the cores, and its rate of arrival."""

    milli: int
    cpu_milli: int
    rate: int


def expected_use(arriving: Sequence[Arriving], stop: int) -> tuple[Ints, Ints]:
    """f (in 1/SCALE of a thousandth of a GPU) and h (in milli-CPU), by what is left of a GPU and of the cores."""
    steps: dict[tuple[int, int], list[int]] = {}
    for one in arriving:
        units = (one.cpu_milli + 4 * UNIT_MILLI // 5 - 1) // UNIT_MILLI
        if not one.milli:
            if not one.cpu_milli:
                continue
            units = max(units, 1)
        if units >= UNITS:
            continue
        sums = steps.setdefault((-(-one.milli // STEP_MILLI), units), [0, 0, 0])
        for i, weight in enumerate((1, one.milli * SCALE, one.cpu_milli)):
            sums[i] += one.rate * weight
    fitting = np.zeros((3, LEVELS, UNITS), dtype=np.int64)
    for (level, units), sums in steps.items():
        fitting[:, level, units] = sums
    fitting = fitting.cumsum(axis=1).cumsum(axis=2)
    fitting[0] += stop
    level_of = np.array([level for level, _ in steps], dtype=np.int64)
    units_of = np.array([units for _, units in steps], dtype=np.int64)
    rates = np.array([sums[0] for sums in steps.values()], dtype=np.int64)
    use, cores = (kernel.fill if kernel.BUILT else filled)(fitting, level_of, units_of, rates)
    return use, cores


def filled(fitting: Ints, level_of: Ints, units_of: Ints, rates: Ints) -> Ints:
    """f and h from the sums over the classes that fit by level and units (rate, GPU, cores), and from the steps of the
    classes. `kernel.fill` finds the same.

    Each value depends on those with less left of GPU or cores, so all values with the same sum of both are computed at
    once, one diagonal after another."""
    levels, units = np.divmod(np.arange(LEVELS * UNITS), UNITS)
    diagonals = np.zeros((LEVELS + UNITS - 1, 3, LEVELS), dtype=np.int64)
    diagonals[:, 0] = 2**62  # A place that does not exist has an expected use of 0.
    diagonals[levels + units, :, levels] = fitting[:, levels, units].T
    back = level_of + units_of
    before = int(back.max(initial=0))
    known = np.zeros((before + len(diagonals), 2, 2 * LEVELS - 1), dtype=np.int64)
    shifted = sliding_window_view(known, LEVELS, axis=2)
    for i, (weights, *sums) in enumerate(diagonals):
        further = rates @ shifted[before + i - back, :, LEVELS - 1 - level_of].reshape(-1, 2 * LEVELS)
        known[before + i, :, LEVELS:] = ((sums + further.reshape(2, LEVELS)) // weights)[:, 1:]
    found: Ints = known[before + levels + units, :, LEVELS - 1 + levels].T
    return found.reshape(2, LEVELS, UNITS)
