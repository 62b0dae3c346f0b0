# SPDX-License-Identifier: Apache-2.0
"""Days of pods, added up by group: which group each pod is in, and which pods held GPUs in each.

Rules
- The groups are those that `grouping` makes of records; a pod without a record is in that of unknown pods.
- Of many thousands of pods the names are read once, and only what counts of each is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dovetail.history.day_sums import HeldSum, Place, job_number, pod_number, wait_ms
from dovetail.history.ledger import State
from dovetail.history.pod_days import STATES, PodDay
from dovetail.history.records import Period, PodRecord
from dovetail.history.store import HistoryReader

NONE, UNKNOWN_POD = "(none)", "(unknown pod)"


class PodGrouping(Struct, frozen=True):
    """How pods are grouped: by what `of_pod` has, or by `node`. `seen` is what the asker may see of a pod."""

    of_pod: Callable[[PodRecord], str]
    by_node: bool = False
    seen: Callable[[PodRecord], PodRecord] = lambda pod: pod


class GroupTime(NamedTuple):
    """The time of a place, a node ("" where it is not asked for), a state and a group ("" of nobody): all of it, and
    what of it was start-up, used and idle."""

    place: Place
    node: str
    state: State
    group: str
    times: list[int]


class _Pod(NamedTuple):
    group: str
    job: int
    bound_ms: int
    wait_ms: int


_UNKNOWN = _Pod(UNKNOWN_POD, 0, 0, 0)


class PodGroups:
    """The groups of a period. `with_nodes`: times are wanted node by node."""

    def __init__(self, reader: HistoryReader, period: Period, grouping: PodGrouping, with_nodes: bool) -> None:
        self._reader, self._grouping, self._with_nodes = reader, grouping, with_nodes
        self._pods = {pod.uid: self._pod(pod) for pod in reader.pod_names(period)}
        self._names: dict[str, int] = {"": 0}
        self._held: dict[str, dict[str, None]] = {}

    def _pod(self, pod: PodRecord) -> _Pod:
        seen = self._grouping.seen(pod)
        group = "" if self._grouping.by_node else self._grouping.of_pod(seen)
        return _Pod(group, job_number(seen), pod.bound_ms, wait_ms(pod))

    def times(self, day: PodDay) -> Iterator[GroupTime]:
        """The times of a day, by group. Raises StoreError."""
        missing = [uid for uid in day.uids if uid not in self._pods]
        if missing:
            self._pods |= dict.fromkeys(missing, _UNKNOWN)
            self._pods |= {pod.uid: self._pod(pod) for pod in self._reader.pods_of(missing)}
        place, node, state, uid, *times = day.columns
        self._note(day, node, uid)
        groups = [self._names.setdefault(self._pods[one].group, len(self._names)) for one in day.uids]
        group = np.array([*groups, 0], np.int64)[uid]
        if not self._with_nodes:
            node = np.zeros_like(node)
        sizes = len(day.places), len(day.nodes), len(STATES), len(self._names)
        keys, at = np.unique(np.ravel_multi_index((place, node, state, group), sizes), return_inverse=True)
        sums = np.zeros((len(times), len(keys)), np.int64)
        for row, column in zip(sums, times, strict=True):
            np.add.at(row, at, column)
        names = list(self._names)
        for (one, of, how, which), found in zip(
            np.stack(np.unravel_index(keys, sizes), 1).tolist(), sums.T.tolist(), strict=True
        ):
            of_node = day.nodes[of] if self._with_nodes else ""
            yield GroupTime(day.places[one], of_node, STATES[how], names[which], found)

    def _note(self, day: PodDay, node: NDArray[np.int64], uid: NDArray[np.int64]) -> None:
        """Note which pods held GPUs in each group."""
        if not self._grouping.by_node:
            for one in day.uids:
                self._held.setdefault(self._pods[one].group, {})[one] = None
            return
        pairs = np.unique(np.stack((node, uid))[:, uid >= 0], axis=1).T.tolist()
        for of, one in pairs:
            self._held.setdefault(day.nodes[of] or NONE, {})[day.uids[one]] = None

    def held(self) -> Iterator[tuple[str, HeldSum]]:
        """By group the pods that held GPUs in it."""
        for group, uids in self._held.items():
            pods = [self._pods[uid] for uid in uids]
            yield group, HeldSum(
                "", -1, [pod_number(uid) for uid in uids], [pod.job for pod in pods], [pod.bound_ms for pod in pods],
                [pod.wait_ms for pod in pods],
            )  # fmt: skip
