# SPDX-License-Identifier: Apache-2.0
"""Days of pods, added up by group, as columns: the time of each group by place and price, and the pods that held GPUs.

Rules
- The groups are those that `grouping` makes of records; a pod without a record is in that of unknown pods.
- Of many hundreds of thousands of pods the names are read once, and only what counts of each is kept.
- Money is in no column: it is the time of a row x its price, in integers of any size.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np
from msgspec import Struct

from dovetail.cost.holders import GpuHolders, holders
from dovetail.cost.keyed_sums import Integers, KeyedSums
from dovetail.history.day_sums import job_number, pod_number, wait_ms
from dovetail.history.pod_days import PodDay
from dovetail.history.records import GpuSpan, Period, PodRecord
from dovetail.history.store import HistoryReader

NONE, UNKNOWN_POD = "(none)", "(unknown pod)"
ALLOCATED = 0
"""The number of that state in columns."""
_GROUP_BITS, _STATE_BITS = 32, 2
_W = TypeVar("_W")


class PodGrouping(Struct, frozen=True):
    """How pods are grouped: by what `of_pod` has, or by `node`. `seen` is what the asker may see of a pod."""

    of_pod: Callable[[PodRecord], str]
    by_node: bool = False
    seen: Callable[[PodRecord], PodRecord] = lambda pod: pod


class GroupColumns(Struct, Generic[_W], frozen=True):
    """Time by group, place and state; group, place and state are indices into `names`, `places` and `STATES`. A place
    has a price. Time of nobody is in the group 0, which has no name, but for groups of nodes. `times` are all of the
    time, and what of it was start-up, used and idle."""

    names: list[str]
    places: list[_W]
    group: Integers
    state: Integers
    place: Integers
    times: Integers
    holders: GpuHolders

    @property
    def allocated_time(self) -> int:
        return int(self.times[0, self.state == ALLOCATED].sum())

    @property
    def measured_time(self) -> int:
        return int(self.times[2:, self.state == ALLOCATED].sum())


class PodGroups(Generic[_W]):
    """The groups of a period. `where` has the place of a GPU at a time; with `of_nodes` by the name of its node."""

    def __init__(
        self, reader: HistoryReader, period: Period, grouping: PodGrouping,
        where: Callable[[GpuSpan, int], _W], of_nodes: bool,
    ) -> None:  # fmt: skip
        self._reader, self._grouping, self._where, self._of_nodes = reader, grouping, where, of_nodes
        self._pods: dict[str, int] = {}
        """Of each pod its index in the columns below; nobody is the first."""
        self._group, self._job, self._bound_ms, self._wait_ms = array("q"), array("Q"), array("q"), array("q")
        self._names: dict[str, int] = {"": 0}
        self._places: dict[_W, int] = {}
        self._times, self._held = KeyedSums(4), KeyedSums(0)
        self._append("", "", 0, 0, 0)
        self._note(reader.pod_names(period))

    def _note(self, pods: Iterable[PodRecord]) -> None:
        for pod in pods:
            seen = self._grouping.seen(pod)
            group = "" if self._grouping.by_node else self._grouping.of_pod(seen)
            self._append(pod.uid, group, job_number(seen), pod.bound_ms, wait_ms(pod))

    def _append(self, uid: str, group: str, job: int, bound_ms: int, waited_ms: int) -> None:
        self._pods[uid] = len(self._group)
        self._group.append(self._name(group))
        self._job.append(job)
        self._bound_ms.append(bound_ms)
        self._wait_ms.append(waited_ms)

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def add(self, day: PodDay) -> None:
        """Add a day. Raises StoreError, and what `where` raises."""
        place, node, state, uid, *times = day.columns
        held = uid >= 0
        pod = self._indices(day.uids)[uid]
        if self._grouping.by_node:
            group = np.array([self._name(name or NONE) for name in day.nodes], np.int64)[node]
        else:
            group = np.array(self._group, np.int64)[pod]
        at = self._place_of(day, place, node)
        self._times.add((at << _GROUP_BITS + _STATE_BITS) | (state << _GROUP_BITS) | group, np.stack(times))
        pairs = (group[held] << _GROUP_BITS) | pod[held]
        self._held.add(pairs, np.empty((0, len(pairs)), np.int64))

    def _indices(self, uids: list[str]) -> Integers:
        """Of each pod, and of nobody at the end. Raises StoreError."""
        missing = [uid for uid in uids if uid not in self._pods]
        if missing:
            self._note(self._reader.pods_of(missing))
        for uid in missing:
            if uid not in self._pods:
                self._append(uid, UNKNOWN_POD, 0, 0, 0)
        return np.array([*(self._pods[uid] for uid in uids), 0], np.int64)

    def _place_of(self, day: PodDay, place: Integers, node: Integers) -> Integers:
        nodes = len(day.nodes) if self._of_nodes else 1
        pairs, at = np.unique(place * nodes + (node if self._of_nodes else 0), return_inverse=True)
        found = []
        for number in pairs.tolist():
            name = day.nodes[number % nodes] if self._of_nodes else ""
            where = self._where(day.places[number // nodes].span(name), day.start_ms)
            found.append(self._places.setdefault(where, len(self._places)))
        return np.array(found, np.int64)[at]

    def columns(self) -> GroupColumns[_W]:
        """All days together."""
        keys, times = self._times.merged()
        pairs, _ = self._held.merged()
        pod = pairs & (1 << _GROUP_BITS) - 1
        number = np.fromiter(map(pod_number, self._pods), np.uint64, len(self._pods))
        held = holders(
            pairs >> _GROUP_BITS, number[pod], np.array(self._job)[pod], np.array(self._bound_ms)[pod],
            np.array(self._wait_ms)[pod],
        )  # fmt: skip
        group = keys & (1 << _GROUP_BITS) - 1
        state = keys >> _GROUP_BITS & (1 << _STATE_BITS) - 1
        place = keys >> _GROUP_BITS + _STATE_BITS
        return GroupColumns(list(self._names), list(self._places), group, state, place, times, held)
