# SPDX-License-Identifier: Apache-2.0
"""Pods that held GPUs, by group, as columns: how many pods and jobs there were, and how long jobs waited.

Pods and jobs are known by their numbers (`day_sums.number_of`), so that one that is in several parts of an answer
counts once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from dovetail.cost.keyed_sums import Integers, Numbers
from dovetail.history.records import Period


class GpuHolders(Struct, frozen=True):
    """A pod may be there several times. `group` is a number, `job` 0 of a pod of which there is no record; `bound_ms`
    is 0 if it was never bound, and `wait_ms` is how long it waited for that."""

    group: Integers
    pod: Numbers
    job: Numbers
    bound_ms: Integers
    wait_ms: Integers

    def of(self, group: Integers) -> GpuHolders:
        """The same pods in other groups."""
        return GpuHolders(group, self.pod, self.job, self.bound_ms, self.wait_ms)

    def pods_of_groups(self, groups: int) -> list[int]:
        """How many pods held GPUs in each of so many groups."""
        return _distinct(self.group, self.pod, groups)

    def jobs_of_groups(self, groups: int) -> list[int]:
        known = self.job > 0
        return _distinct(self.group[known], self.job[known], groups)


def holders(
    group: Sequence[int] | Integers, pod: Sequence[int] | Numbers, job: Sequence[int] | Numbers,
    bound_ms: Sequence[int] | Integers, wait_ms: Sequence[int] | Integers,
) -> GpuHolders:  # fmt: skip
    """Those of these columns."""
    return GpuHolders(
        np.asarray(group, np.int64), np.asarray(pod, np.uint64), np.asarray(job, np.uint64),
        np.asarray(bound_ms, np.int64), np.asarray(wait_ms, np.int64),
    )  # fmt: skip


def together(parts: Sequence[GpuHolders]) -> GpuHolders:
    columns = zip(*((one.group, one.pod, one.job, one.bound_ms, one.wait_ms) for one in parts), strict=True)
    return GpuHolders(*map(np.concatenate, columns)) if parts else holders((), (), (), (), ())


def first_starts(found: GpuHolders, period: Period, ranks: Integers) -> tuple[Integers, Integers]:
    """The group of each job of which a pod was bound in the period, and for how long that pod waited: the first one, of
    equal ones that with the lowest number, and of its groups the one with the lowest of `ranks`."""
    counts = (found.job > 0) & (found.bound_ms >= period.start_ms) & (found.bound_ms < period.end_ms)
    group, job, wait_ms = found.group[counts], found.job[counts], found.wait_ms[counts]
    order = np.lexsort((wait_ms, ranks[group], found.pod[counts], found.bound_ms[counts], job))
    first = order[_changes(job[order])]
    return group[first], wait_ms[first]


def _distinct(group: Integers, number: Numbers, groups: int) -> list[int]:
    order = np.argsort(group, kind="stable")
    sorted_number, ends = number[order], np.cumsum(np.bincount(group, minlength=groups)).tolist()
    counts, first = [], 0
    for end in ends:
        of_group = sorted_number[first:end]
        # Sorted by itself: numpy needs a third of the time for one column that it needs for two.
        of_group.sort()
        counts.append(int(_changes(of_group).sum()))
        first = end
    return counts


def _changes(column: Integers | Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Where a value differs from the one before it."""
    found = np.ones(len(column), np.bool_)
    found[1:] = column[1:] != column[:-1]
    return found
