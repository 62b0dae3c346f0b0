# SPDX-License-Identifier: Apache-2.0
"""The pods of one declared workload, counted by their declarations, so that one more pod costs the same for any number.

Rules
- A pod counts by its declarations about the gang, by the gang when it was bound, and by whether it waits. The
  declarations of a pod that leaves no longer count.
- Pods that agree make at most MOST_DECLARATIONS different declarations: each of five values or none. Of more the first
  are returned: two of them contradict each other, and the gang waits for that reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from dovetail.kube.gangs.declared import Begun
from dovetail.kube.translate.annotations import NOTHING, WorkloadOptions
from dovetail.kube.translate.known import KnownPod

T = TypeVar("T")
MOST_DECLARATIONS = 2**5
_Declaration = tuple[tuple[str, ...], tuple[str, ...], str, int | None, int | None]


class _Counted(Struct, frozen=True):
    """The counts of one pod; `begun` is None where it is not bound, or is being deleted."""

    declaration: _Declaration
    gang: str
    begun: Begun | None
    waits: bool


class MemberCounts:
    """`waiting` is how many of the pods are on no node."""

    def __init__(self) -> None:
        self.waiting = 0
        self._pods: dict[str, _Counted] = {}
        self._declarations: dict[_Declaration, int] = {}
        self._begun: dict[str, dict[Begun, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._pods)

    def __iter__(self) -> Iterator[str]:
        """The uids, in the order in which the pods came."""
        return iter(self._pods)

    def put(self, uid: str, pod: KnownPod, *, declares: bool = True) -> None:
        """Insert or replace; the pod's declarations count only if it `declares` something about this gang."""
        bound, reported, options = pod.bound, pod.reported, pod.options if declares else NOTHING
        runs = bound is not None and bound.gang and not reported.deleting
        new = _Counted(
            (options.required, options.preferred, options.spread, options.gang_min, options.gang_max),
            bound.gang if bound is not None else "",
            Begun(bound.gang_min, bound.gang_priority) if bound is not None and runs else None,
            not reported.node,
        )
        old = self._pods.get(uid)
        if old == new:
            return
        if old is not None:
            self._count(old, -1)
        self._pods[uid] = new
        self._count(new, 1)

    def drop(self, uid: str) -> None:
        """Remove a pod that is counted."""
        self._count(self._pods.pop(uid), -1)

    def _count(self, one: _Counted, times: int) -> None:
        self.waiting += times * one.waits
        _add(self._declarations, one.declaration, times)
        if one.begun is not None:
            begun = self._begun.setdefault(one.gang, {})
            _add(begun, one.begun, times)
            if not begun:
                del self._begun[one.gang]

    def options(self) -> list[WorkloadOptions]:
        """The declarations of the pods about their gang, and nothing else."""
        return [
            WorkloadOptions(required=required, preferred=preferred, spread=spread, gang_min=least, gang_max=most)
            if any((required, preferred, spread, least, most))
            else NOTHING
            for required, preferred, spread, least, most in islice(self._declarations, MOST_DECLARATIONS + 1)
        ]

    def begun(self) -> dict[str, Begun]:
        """Each gang as of the bind of its running pods."""
        return {gang: reduce(Begun.and_of, counts) for gang, counts in self._begun.items()}


def _add(counts: dict[T, int], key: T, times: int) -> None:
    count = counts.get(key, 0) + times
    if count:
        counts[key] = count
    else:
        del counts[key]
