# SPDX-License-Identifier: Apache-2.0
"""The mix of pods: how many of each class have come so far, and how many have ended.

Rules: a class is what a pod asks of cores and GPUs, and where it may go; not its memory, and nothing that looks at
other pods. A pod counts once, when it becomes known. Pods that want what is not counted in GPUs and cores (claims, MIG
instances, replicas, other devices) belong to no class. A pod that had a GPU, or a share of one, and is gone has ended.
When many came, or of many classes, all counts are halved: what was long ago counts less.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.cluster.placement import Placement
from dovetail.core.complexity import light
from dovetail.core.model import CPU, GPU, Pod, Request

MOST_COUNTED = 65_536
MOST_CLASSES = 4_096

Record = tuple[Request, int]
"""A class, and how many pods of it count."""


class Mix:
    """`counts` by class, in the order in which they came; `seen` is the number of pods ever counted, `ended` the number
    of pods with GPUs among those in `counts` that are gone."""

    def __init__(self) -> None:
        self.counts: dict[Request, int] = {}
        self.seen = 0
        self.ended = 0
        self._total = 0
        self._classes: dict[Request, Request | None] = {}

    def see(self, pod: Pod) -> None:
        """Count a pod that came."""
        request = pod.request
        if request not in self._classes:
            if len(self._classes) >= MOST_CLASSES:
                self._classes.clear()
            if not light(request):
                # It is of no use for guessing which pods come next.
                return
            self._classes[request] = class_of(request)
        kind = self._classes[request]
        if kind is None or pod.device_claims:
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.seen += 1
        self._total += 1
        if self._total > MOST_COUNTED or len(self.counts) > MOST_CLASSES:
            self.counts = {kind: count // 2 for kind, count in self.counts.items() if count > 1}
            self.ended //= 2
            self._classes.clear()
            self._total = sum(self.counts.values())

    def end(self, placement: Placement) -> None:
        """Count a pod that was there and is gone."""
        if placement.has_gpus:
            self.ended += 1

    def records(self) -> tuple[Record, ...]:
        return tuple(self.counts.items())

    def restore(self, records: Iterable[Record], ended: int) -> None:
        self.counts, self.ended = dict(records), ended
        self.seen = self._total = sum(self.counts.values())


def class_of(request: Request) -> Request | None:
    """The class of a pod that asks for this; None where it belongs to none."""
    asked = {name: amount for name, amount in request.resources if amount > 0}
    fraction = bool(request.gpu_milli or request.gpu_memory_mib)
    if any("/" in name and name != GPU for name in asked) or (fraction and GPU in asked):
        return None
    return Request(
        tuple((name, asked[name]) for name in (CPU, GPU) if name in asked),
        request.gpu_milli,
        request.gpu_memory_mib,
        node_selector=request.node_selector,
        node_terms=request.node_terms,
        tolerations=request.tolerations,
    )
