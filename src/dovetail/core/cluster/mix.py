# SPDX-License-Identifier: Apache-2.0
"""What kinds of pods come: how many of each class were told so far.

Rules: a class is what a pod asks of cores and GPUs, and where it may go; not its memory, and nothing that looks at
other pods. A pod counts once, when it is first told. Pods that want what is not counted in GPUs and cores (claims, MIG
instances, replicas, other devices) belong to no class. When many were counted, all counts are halved: what was long ago
counts less.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.model import CPU, GPU, Pod, Request

MOST_COUNTED = 65_536

Record = tuple[Request, int]
"""A class, and how many pods of it count."""


class Mix:
    """`counts` by class, who came first at first; `seen` is how many pods were ever counted."""

    def __init__(self) -> None:
        self.counts: dict[Request, int] = {}
        self.seen = 0
        self._total = 0
        self._classes: dict[Request, Request | None] = {}

    def see(self, pod: Pod) -> None:
        """Count a pod that came."""
        request = pod.request
        if request not in self._classes:
            self._classes[request] = class_of(request)
        kind = self._classes[request]
        if kind is None or pod.device_claims:
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.seen += 1
        self._total += 1
        if self._total > MOST_COUNTED:
            self.counts = {kind: count // 2 for kind, count in self.counts.items() if count > 1}
            self._classes.clear()
            self._total = sum(self.counts.values())

    def records(self) -> tuple[Record, ...]:
        return tuple(self.counts.items())

    def restore(self, records: Iterable[Record]) -> None:
        self.counts = dict(records)
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
