# SPDX-License-Identifier: Apache-2.0
"""Groups of GPU time by team, queue, namespace, user, job, pod, label, node, model, GPU or day.

Rules
- A team is the queue at a level of the tree of queues above the pod's queue, 1 at the top; a queue that is not so deep
  is one itself.
- By team to label, GPU time that nobody holds is in rows of its own: unallocated, and unhealthy. By node to day it is
  in the row of its node, model, GPU or day.
- What a pod does not have, as a user or the label, is `(none)`; a pod of which there is no record is `(unknown pod)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from dovetail.cost.cells import HeldPods, Where
from dovetail.cost.pod_groups import NONE, UNKNOWN_POD, PodGrouping
from dovetail.history.day_sums import PodOwner
from dovetail.history.records import PodRecord

OWNED_BY = ("team", "queue", "namespace", "user")
HELD_BY = (*OWNED_BY, "job", "pod")
PLACED_BY = ("node", "model", "gpu", "day")
ALL_SHOWN_BY = ("queue", "day")
"""Groups that all have a row, as days are few and budgets of queues rest on their rows."""
LABEL = "label="
ELSEWHERE = "(other-namespaces)"
"""The namespace of pods whose names the asker may not see, and their group."""


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

    def of_held(self, held: HeldPods, of_owner: Callable[[PodOwner], str]) -> str:
        """The group of pods that are in sums of days."""
        if not self.of_holders:
            return held.pods.model or NONE
        return of_owner(held.owner) if held.owner is not None else UNKNOWN_POD

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


def team_of(queue: str, parents: Mapping[str, str], level: int) -> str:
    """The queue at this level of the tree, 1 at the top, on the way to `queue`; that itself if it is not so deep."""
    path = [queue]
    while (parent := parents.get(path[-1], "")) and parent not in path:
        path.append(parent)
    return path[-level] if level <= len(path) else queue
