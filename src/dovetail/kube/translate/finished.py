# SPDX-License-Identifier: Apache-2.0
"""Pods that were over before they were first seen: what they say of others, and what they had.

Rules
- That a kubelet did not admit a pod is told of those that a controller makes again. Of what had failed before it was
  first seen two pods count for each owner, node and reason: how long ago that was is not known, nor whether the node
  has changed since, and a third would keep the owner away for ever.
- A pod that ran while nobody followed is told as one that is on its node and as one that is gone at once after that:
  so its time is charged, and others of its kind are known to take as long. These are the pods of this scheduler of
  which it is known when they began and ended, the newest ones, from the first that ended to the last.
- Others hold what it had by now: no devices are told of it, and no gang waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core import events as ev
from dovetail.core.bounded_cache import Remembered
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate import pods
from dovetail.kube.translate.standalone import AnyChange

_FAILED_BEFORE = 2
_NEWEST = 10_000
_TOLD_KIB = 4 * 1024
"""Of owner, node and reason, as of so many thousand pods; of whom was forgotten two more count."""


class Finished:
    """The finished pods of one scheduler."""

    def __init__(self, scheduler_name: str) -> None:
        self._scheduler_name = scheduler_name
        self._told = Remembered[list[ev.PodRejected]](_TOLD_KIB, lambda *_: [])
        """Of pods that had failed before they were first seen: what was told, by owner, node and reason."""

    def rejection(self, change: AnyChange[Pod], known: bool) -> Iterable[ev.PodRejected]:
        """That a kubelet did not admit the pod, told once; `known` is one that was told before."""
        obj = change.object
        reason, owner = pods.rejection(obj), pods.owner_of(obj.metadata)
        if not reason or not owner or obj.spec.scheduler_name != self._scheduler_name:
            return
        rejected = ev.PodRejected(owner, obj.spec.node_name, reason)
        if known:
            yield rejected
        elif change.kind == "added":
            told = self._told(owner, obj.spec.node_name, reason)
            if len(told) < _FAILED_BEFORE:
                told.append(rejected)
                yield rejected

    def missed(self, over: Iterable[AnyChange[Pod]]) -> list[Pod]:
        """Of these finished pods those that ran while they were not followed, in the order in which they ended."""
        found = [
            (pods.ended_ms(change.object), change.object)
            for change in over
            if change.kind == "added"
            and change.object.spec.scheduler_name == self._scheduler_name
            and pods.bound_ms(change.object)
        ]
        ran = [(ended_ms, obj) for ended_ms, obj in found if ended_ms]
        ran.sort(key=lambda one: (one[0], one[1].metadata.uid))
        return [obj for _, obj in ran[-_NEWEST:]]
