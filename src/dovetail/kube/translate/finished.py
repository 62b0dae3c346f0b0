# SPDX-License-Identifier: Apache-2.0
"""Pods that were finished when first seen: their rejections by kubelets, and their run times.

Rules
- A rejection by a kubelet is reported for pods that a controller will recreate. Of pods that had failed before they
  were first seen, two count for each owner, node and reason: the time of the failure is unknown, and so is whether the
  node has changed since. A third one would keep the owner away from the node for ever.
- A pod that ran while no scheduler watched is reported as bound to its node and as removed right after that. So its
  time is charged, and it counts for the estimates of pods of its family. This covers the newest pods of this scheduler
  with known start and end, in the order of their ends.
- Other pods may have its devices by now: it is reported without devices and without a gang.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core import events as ev
from dovetail.core.bounded_cache import Remembered
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate import pod_status, pods
from dovetail.kube.translate.standalone import AnyChange

_FAILED_BEFORE = 2
_NEWEST = 10_000
_REPORTED_KIB = 4 * 1024
"""The size of the memory of rejections, in KiB. For an entry that was dropped, two more rejections count."""


class Finished:
    """The finished pods of one scheduler."""

    def __init__(self, scheduler_name: str) -> None:
        self._scheduler_name = scheduler_name
        self._reported = Remembered[list[ev.PodRejected]](_REPORTED_KIB, lambda *_: [])
        """The rejections reported for pods that had failed before they were first seen, by owner, node and reason."""

    def rejection(self, change: AnyChange[Pod], known: bool) -> Iterable[ev.PodRejected]:
        """The rejection of the pod by a kubelet, reported once; `known`: the pod was reported before."""
        obj = change.object
        reason, owner = pod_status.rejection(obj), pods.owner_of(obj.metadata)
        if not reason or not owner or obj.spec.scheduler_name != self._scheduler_name:
            return
        rejected = ev.PodRejected(owner, obj.spec.node_name, reason)
        if known:
            yield rejected
        elif change.kind == "added":
            reported = self._reported(owner, obj.spec.node_name, reason)
            if len(reported) < _FAILED_BEFORE:
                reported.append(rejected)
                yield rejected

    def missed(self, over: Iterable[AnyChange[Pod]]) -> list[Pod]:
        """The finished pods that ran while no scheduler watched, in the order of their ends."""
        found = [
            (pod_status.ended_ms(change.object), change.object)
            for change in over
            if change.kind == "added"
            and change.object.spec.scheduler_name == self._scheduler_name
            and pod_status.bound_ms(change.object)
        ]
        ran = [(ended_ms, obj) for ended_ms, obj in found if ended_ms]
        ran.sort(key=lambda one: (one[0], one[1].metadata.uid))
        return [obj for _, obj in ran[-_NEWEST:]]
