# SPDX-License-Identifier: Apache-2.0
"""GPU time added up by group: the rows of an answer.

Rules
- Rows are in the order of their money, then of the allocated time, the largest first, then by name; days are in their
  own order. What nobody held comes last.
- With a limit only so many groups have rows of their own, those that come first; all others together are one row, and
  it is as if they were one group. The sum of all rows is the same.
- A group that has no row takes no more than its name and two numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from typing import Literal

import numpy as np
from msgspec import Struct

from dovetail.cost.cells import Cell, GpuTimes, PricedPlace
from dovetail.cost.grouping import ALL_SHOWN_BY, Grouping
from dovetail.cost.holders import GpuHolders, holders, together
from dovetail.cost.keyed_sums import Integers
from dovetail.cost.pod_groups import ALLOCATED, UNKNOWN_POD, GroupColumns
from dovetail.history.day_sums import job_number, pod_number, wait_ms
from dovetail.history.pod_days import STATES

RowKind = Literal["group", "others", "unallocated", "unhealthy"]
OTHERS = "(others)"
_NEVER = 0


class Sums(Struct):
    """What cells of a group add up to, times and money as in `Cell`; `unpriced_time` is the time without a price.
    `jobs` and `pods` are how many held GPUs; `bearers` how many of its groups did, if it is of several."""

    name: str
    kind: RowKind = "group"
    jobs: int = 0
    pods: int = 0
    bearers: int = 1
    allocated_time: int = 0
    used_time: int = 0
    idle_time: int = 0
    unallocated_time: int = 0
    unhealthy_time: int = 0
    start_up_time: int = 0
    unpriced_time: int = 0
    allocated: int = 0
    used: int = 0
    idle: int = 0
    unallocated: int = 0
    unhealthy: int = 0
    shared: int = 0
    start_up: int = 0

    @property
    def unmeasured(self) -> int:
        return self.allocated - self.used - self.idle

    @property
    def unmeasured_time(self) -> int:
        return self.allocated_time - self.used_time - self.idle_time

    @property
    def nobodys(self) -> int:
        """The money for what nobody held."""
        return self.unallocated + self.unhealthy

    @property
    def of_groups(self) -> bool:
        """Whether it is of a group, or of several."""
        return self.kind in ("group", "others")

    def add(self, cell: Cell) -> None:
        if cell.where.rule is None:
            self.unpriced_time += cell.time
        if cell.state == "unallocated":
            self.unallocated_time += cell.time
            self.unallocated += cell.money
            return
        if cell.state == "unhealthy":
            self.unhealthy_time += cell.time
            self.unhealthy += cell.money
            return
        self.allocated_time += cell.time
        self.allocated += cell.money
        self.used_time += cell.used_time
        self.used += cell.used
        self.idle_time += cell.idle_time
        self.idle += cell.idle
        self.start_up_time += cell.start_up_time
        self.start_up += cell.start_up


class GroupSums(Struct, frozen=True):
    """`rows` in their order. `others` is how many groups are in the row of the others, 0 without it; `jobs` and `pods`
    are those of all rows. `holders` are in groups that are numbered: `row_of` is the index of the row of each, and
    `names` its name."""

    rows: list[Sums]
    others: int
    jobs: int
    pods: int
    holders: GpuHolders
    row_of: Integers
    names: list[str]


class _Groups:
    """Groups by number, with what they are ranked by."""

    def __init__(self) -> None:
        self.kinds: list[RowKind] = []
        self.names: list[str] = []
        self.money: list[int] = []
        self.held_time: list[int] = []
        self._numbers: dict[RowKind, dict[str, int]] = {"group": {}, "unallocated": {}, "unhealthy": {}}

    def number(self, kind: RowKind, name: str) -> int:
        found = self._numbers[kind].setdefault(name, len(self.names))
        if found == len(self.names):
            self.kinds.append(kind)
            self.names.append(name)
            self.money.append(0)
            self.held_time.append(0)
        return found

    def of_cells(self, times: GpuTimes, grouping: Grouping) -> Iterator[int]:
        """The group of each cell; adds the cell to what the group is ranked by."""
        pods, of_pod, of_owner, of_holders = times.pods, grouping.of_pods(), grouping.of_owners(), grouping.of_holders
        for cell in times.cells:
            pod = pods.get(cell.pod_uid) if cell.pod_uid else None
            kind: RowKind = "group"
            if not of_holders:
                name = grouping.of_place(cell.where)
            elif pod is not None:
                name = of_pod(pod)
            elif cell.owner is not None:
                name = of_owner(cell.owner)
            elif cell.state == "allocated":
                name = UNKNOWN_POD
            else:
                kind, name = cell.state, f"({cell.state})"
            number = self.number(kind, name)
            self.money[number] += cell.money
            self.held_time[number] += cell.time if cell.state == "allocated" else 0
            yield number

    def of_columns(self, columns: GroupColumns[PricedPlace], of_holders: bool) -> tuple[Integers, Integers]:
        """The group of each row, and of each holder; adds the rows to what groups are ranked by."""
        nobodys = (columns.state != ALLOCATED) & of_holders
        numbers = np.zeros(len(columns.names), np.int64)
        named = np.unique(columns.group[~nobodys])
        numbers[named] = [self.number("group", columns.names[one]) for one in named.tolist()]
        group = numbers[columns.group]
        for state, kind in enumerate(STATES):
            if kind != "allocated" and (of_state := nobodys & (columns.state == state)).any():
                group[of_state] = self.number(kind, f"({kind})")
        prices = [micro for _, micro in columns.places]
        # Views, as lists of all numbers would take most of the memory.
        rows: list[Integers] = [group, columns.state, columns.place, columns.times[0]]
        for number, state, place, time in zip(*(row.data for row in rows), strict=True):
            self.money[number] += time * prices[place]
            self.held_time[number] += time if state == ALLOCATED else 0
        return group, numbers[columns.holders.group]

    def shown(self, limit: int | None, by_name: bool) -> list[int]:
        """The groups that have rows, in their order: all, or so many."""

        def rank(number: int) -> tuple[int, int, str]:
            return -self.money[number], -self.held_time[number], self.names[number]

        groups = self._numbers["group"].values()
        if by_name:
            return sorted(groups, key=self.names.__getitem__)
        return nsmallest(len(groups) if limit is None else limit, groups, key=rank)

    def nobodys(self) -> list[int]:
        numbers = [number for kind in ("unallocated", "unhealthy") for number in self._numbers[kind].values()]
        return sorted(numbers, key=lambda number: (-self.money[number], self.names[number]))

    def bearers(self, row_of: Integers, rows: int) -> list[int]:
        """How many groups of each row held GPUs."""
        held = np.fromiter((time > 0 for time in self.held_time), np.bool_, len(self.held_time))
        counts: list[int] = np.bincount(row_of[held], minlength=rows).tolist()
        return counts


def group_sums(times: GpuTimes, grouping: Grouping, limit: int | None = None) -> GroupSums:
    """The rows, of at most `limit` groups and of the others together."""
    groups, columns = _Groups(), times.columns
    of_cells = list(groups.of_cells(times, grouping))
    held = [_of_cells(times, of_cells), *_of_days(times, grouping, groups)]
    of_rows = None
    if columns is not None:
        of_rows, of_holders = groups.of_columns(columns, grouping.of_holders)
        held.append(columns.holders.of(of_holders))
    shown = groups.shown(None if grouping.by in ALL_SHOWN_BY else limit, grouping.by == "day")
    nobodys = groups.nobodys()
    others = len(groups.names) - len(shown) - len(nobodys)
    rows = [Sums(groups.names[number]) for number in shown]
    rows += [Sums(OTHERS, "others")] * (others > 0)
    rows += [Sums(groups.names[number], groups.kinds[number]) for number in nobodys]
    row_of = np.full(len(groups.names), len(shown), np.int64)
    row_of[shown] = np.arange(len(shown))
    row_of[nobodys] = np.arange(len(rows) - len(nobodys), len(rows))
    for number, cell in zip(of_cells, times.cells, strict=True):
        rows[row_of[number]].add(cell)
    if columns is not None and of_rows is not None:
        for index, cell in _cells(columns, row_of[of_rows]):
            rows[index].add(cell)
    every = together(held)
    of_row = every.of(row_of[every.group])
    counts = of_row.jobs_of_groups(len(rows)), of_row.pods_of_groups(len(rows)), groups.bearers(row_of, len(rows))
    for row, *of in zip(rows, *counts, strict=True):
        row.jobs, row.pods, row.bearers = of
    whole = every.of(np.zeros_like(every.group))
    return GroupSums(
        rows, others, whole.jobs_of_groups(1)[0], whole.pods_of_groups(1)[0], every, row_of, groups.names
    )  # fmt: skip


def _of_cells(times: GpuTimes, of_cells: Iterable[int]) -> GpuHolders:
    """The pods of cells of their own."""
    found = []
    for number, cell in zip(of_cells, times.cells, strict=True):
        if not cell.pod_uid:
            continue
        pod = times.pods.get(cell.pod_uid)
        known = (job_number(pod), pod.bound_ms, wait_ms(pod)) if pod is not None else (0, _NEVER, 0)
        found.append((number, pod_number(cell.pod_uid), *known))
    return holders(*(zip(*found, strict=True) if found else [()] * 5))


def _of_days(times: GpuTimes, grouping: Grouping, groups: _Groups) -> Iterator[GpuHolders]:
    """The pods of sums of days by owner."""
    of_owner = grouping.of_owners()
    for one in times.held:
        number, held = groups.number("group", grouping.of_held(one, of_owner)), one.pods
        yield holders([number] * len(held.pods), held.pods, held.jobs, held.bound_ms, held.wait_ms)


def _cells(columns: GroupColumns[PricedPlace], row: Integers) -> Iterator[tuple[int, Cell]]:
    """The cells of each row of the answer: one for each place and state."""
    sizes = len(STATES), len(columns.places)
    keys, at = np.unique((row * sizes[0] + columns.state) * sizes[1] + columns.place, return_inverse=True)
    sums = np.zeros((len(columns.times), len(keys)), np.int64)
    for column, times in zip(sums, columns.times, strict=True):
        np.add.at(column, at, times)
    for key, (time, start_up, used, idle) in zip(keys.tolist(), sums.T.tolist(), strict=True):
        index, (state, place) = key // (sizes[0] * sizes[1]), divmod(key % (sizes[0] * sizes[1]), sizes[1])
        where, micro = columns.places[place]
        yield index, Cell(
            where, STATES[state], "", None, time, time * micro, start_up, start_up * micro, used, used * micro,
            idle, idle * micro,
        )  # fmt: skip
