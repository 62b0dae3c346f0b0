# SPDX-License-Identifier: Apache-2.0
"""Nodes in maintenance: which pods may still start there.

Rules
- A node in maintenance takes no pod, with or without GPUs, whether it is on its own or of a gang.
- A maintenance with a start still takes a pod that ends by then, by the limit of its run time or by what was learned
  of equal ones. A pod whose end is not known never counts as one.
- No reservation holds a node in maintenance, no pod is nominated to one, and none is moved there: that would be for
  later, and later less fits.
- Pods that run stay. What `drain` makes of them is decided in `preemption.draining`.
- A pod with a toleration of the key `dovetail.dev/maintenance` may start at any time: so a node is tested before its
  maintenance ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.cluster.shapes import Shape, Shapes
from dovetail.core.model import MAINTENANCE_TOLERATION, Pod, Request


class Maintenances:
    """`run_ms` is how long a pod runs, as far as that is known; else it is for ever."""

    def __init__(self, nodes: Nodes, shapes: Shapes) -> None:
        self._nodes, self._shapes = nodes, shapes
        self.run_ms: Callable[[Pod], int] = declared_ms

    def shape_of(self, shape: Shape, pod: Pod, now_ms: int) -> Shape:
        """The shape of a pod that starts now, beside nodes that close later: pods of one request that may use other
        nodes have different shapes."""
        closings_ms = self._nodes.closings_ms
        if closings_ms[-1] <= now_ms:
            return shape
        first = bisect_left(closings_ms, now_ms + self.run_ms(pod))
        return shape if first == len(closings_ms) else self._shapes.until(shape, closings_ms[first], closings_ms)


def declared_ms(pod: Pod) -> int:
    """The limit of its run time."""
    return pod.work.max_runtime_ms or FOR_EVER_MS


def tolerates(request: Request) -> bool:
    """Whether such a pod may start on nodes in maintenance."""
    return any(one.key == MAINTENANCE_TOLERATION and one.effect in ("", "NoSchedule") for one in request.tolerations)
