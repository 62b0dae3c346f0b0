# SPDX-License-Identifier: Apache-2.0
"""Cells added up by team, queue, namespace, user, job, pod, label, node, model, GPU or day.

Rules
- A team is the queue at a level of the tree of queues above the pod's queue, 1 at the top; a queue that is not so deep
  is one itself.
- By team to label, GPU time that nobody holds is in rows of its own: unallocated, and unhealthy. By node to day it is
  in the row of its node, model, GPU or day.
- What a pod does not have, as a user or the label, is `(none)`; a pod of which there is no record is `(unknown pod)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from dovetail.cost.cells import Cell, GpuTimes, HeldPods, Where
from dovetail.cost.pod_groups import NONE, UNKNOWN_POD, PodGrouping
from dovetail.history.day_sums import PodOwner, job_number, pod_number
from dovetail.history.records import PodRecord

OWNED_BY = ("team", "queue", "namespace", "user")
HELD_BY = (*OWNED_BY, "job", "pod")
PLACED_BY = ("node", "model", "gpu", "day")
LABEL = "label="
ELSEWHERE = "(other-namespaces)"
"""The namespace of pods whose names the asker may not see, and their group."""
RowKind = Literal["group", "unallocated", "unhealthy"]


class Grouping(Struct, frozen=True):
    """`by` is one of HELD_BY, PLACED_BY, or LABEL and a key. `parents` are those of queues, by name; `days` the names
    of the segments, where that is asked for."""

    by: str
    level: int = 1
    parents: Mapping[str, str] = {}
    days: tuple[str, ...] = ()

    @property
    def of_holders(self) -> bool:
        """Whether groups are of holders: what nobody holds is in none of them."""
        return self.by not in PLACED_BY

    def of_place(self, where: Where) -> str:
        """The group of a place, by one."""
        match self.by:
            case "node":
                return where.node or NONE
            case "model":
                return where.model or NONE
            case "gpu":
                return where.gpu
        return self.days[where.segment]

    @property
    def of_pod_days(self) -> PodGrouping | None:
        """For whole days that are known by pod; None where that does not do."""
        if self.by == "node":
            return PodGrouping(lambda pod: "", by_node=True)
        return PodGrouping(self.of_pods()) if self.of_holders else None

    def of_owners(self) -> Callable[[PodRecord | PodOwner], str]:
        """What finds the group of a pod by its owner, by one of OWNED_BY."""
        if self.by != "team":
            return lambda one: getattr(one, self.by) or NONE
        teams: dict[str, str] = {}
        return lambda one: (
            teams.get(one.queue) or teams.setdefault(one.queue, team_of(one.queue, self.parents, self.level) or NONE)
        )

    def of_pods(self) -> Callable[[PodRecord], str]:
        """What finds the group of a pod, by its holder."""
        named = self._of_named()
        return lambda pod: named(pod) if pod.namespace != ELSEWHERE else ELSEWHERE

    def _of_named(self) -> Callable[[PodRecord], str]:
        if self.by in OWNED_BY:
            return self.of_owners()
        match self.by:
            case "job":
                return lambda pod: f"{pod.namespace}/{pod.job or pod.name}"
            case "pod":
                return lambda pod: f"{pod.namespace}/{pod.name}"
        label = self.by.removeprefix(LABEL)
        return lambda pod: pod.labels.get(label, "") or NONE


class Sums(Struct):
    """What cells of a group add up to, times and money as in `Cell`; `unpriced_time` is the time without a price.
    `jobs` and `pods` are those that held GPUs, by their numbers."""

    name: str
    kind: RowKind = "group"
    jobs: set[int] = set()
    pods: set[int] = set()
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

    def add(self, cell: Cell, pod: PodRecord | None) -> None:
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
        if cell.pod_uid:
            self.pods.add(pod_number(cell.pod_uid))
        if pod is not None:
            self.jobs.add(job_number(pod))


def team_of(queue: str, parents: Mapping[str, str], level: int) -> str:
    """The queue at this level of the tree, 1 at the top, on the way to `queue`; that itself if it is not so deep."""
    path = [queue]
    while (parent := parents.get(path[-1], "")) and parent not in path:
        path.append(parent)
    return path[-level] if level <= len(path) else queue


def grouped(times: GpuTimes, grouping: Grouping) -> list[Sums]:
    """The groups by name, then what nobody held."""
    groups: dict[tuple[RowKind, str], Sums] = {}
    pods, of_pod, of_owner, of_holders = times.pods, grouping.of_pods(), grouping.of_owners(), grouping.of_holders
    for cell in times.cells:
        pod = pods.get(cell.pod_uid) if cell.pod_uid else None
        kind: RowKind = "group"
        if not of_holders:
            name = grouping.of_place(cell.where)
        elif pod is not None:
            name = of_pod(pod)
        elif cell.group:
            name = cell.group
        elif cell.owner is not None:
            name = of_owner(cell.owner)
        elif cell.state == "allocated":
            name = UNKNOWN_POD
        else:
            kind, name = cell.state, f"({cell.state})"
        found = groups.get((kind, name))
        if found is None:
            found = groups[kind, name] = Sums(name, kind)
        found.add(cell, pod)
    for held in times.held:
        found = groups["group", name_of_held(held, grouping, of_owner)]
        found.pods.update(held.pods.pods)
        found.jobs.update(filter(None, held.pods.jobs))
    return sorted(groups.values(), key=lambda row: (row.kind != "group", row.kind, row.name))


def name_of_held(held: HeldPods, grouping: Grouping, of_owner: Callable[[PodOwner], str]) -> str:
    """The group of pods that are in sums of days."""
    if held.group:
        return held.group
    if not grouping.of_holders:
        return held.pods.model or NONE
    return of_owner(held.owner) if held.owner is not None else UNKNOWN_POD


def totals(rows: Iterable[Sums]) -> Sums:
    """All rows together."""
    total = Sums("total")
    for row in rows:
        total.jobs |= row.jobs
        total.pods |= row.pods
        for name in AMOUNTS:
            setattr(total, name, getattr(total, name) + getattr(row, name))
    return total


AMOUNTS = tuple(name for name in Sums.__struct_fields__ if name not in ("name", "kind", "jobs", "pods"))
