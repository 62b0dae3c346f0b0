# SPDX-License-Identifier: Apache-2.0
"""What the status of a GPUStack has of the nodes: counts, and a line for each node that is not ready. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dovetail.kube.objects.stack import BlockedNode, NodeCounts
from dovetail.kube.objects.topology import NodeReadiness
from dovetail.operator.nodes.blockers import READY, STEPS
from dovetail.operator.watched.nodes import WatchedGPUNode

MOST_BLOCKED = 50
_PASSING = frozenset({"ContainerCreating", "ValidationQueued", "ValidationPending", "ValidationRunning", "GpusBusy"})
"""Reasons that end by themselves: other nodes are listed first."""


def counts(nodes: Mapping[str, NodeReadiness], gpu_nodes: Mapping[str, WatchedGPUNode | None]) -> NodeCounts:
    """How many nodes and GPUs there are by state. A GPU that is not healthy, or on a quarantined node, is in repair."""
    found = [(one, gpu_nodes.get(name)) for name, one in nodes.items()]
    gpus = [
        (one.step == READY, gpu.healthy and known.status.quarantine is None)
        for one, known in found
        if known is not None
        for gpu in known.status.gpus
    ]
    return NodeCounts(
        nodes=len(nodes),
        ready=sum(one.step == READY for one, _ in found),
        maintenance=sum(known is not None and known.spec.maintenance is not None for _, known in found),
        repair=sum(known is not None and known.status.quarantine is not None for _, known in found),
        gpus=len(gpus),
        gpus_ready=sum(ready and well for ready, well in gpus),
        gpus_in_repair=sum(not well for _, well in gpus),
        steps=dict(sorted(Counter(one.step for one, _ in found).items())),
    )


def blocked(nodes: Mapping[str, NodeReadiness]) -> tuple[BlockedNode, ...]:
    """The nodes that are not ready: those first that somebody has to do something about, and then by step and name."""
    found = [(name, one) for name, one in nodes.items() if one.step != READY]
    found.sort(key=lambda pair: (pair[1].reason in _PASSING, STEPS.index(pair[1].step), pair[0]))
    return tuple(
        BlockedNode(name, one.pool, one.step, one.reason, one.message, one.action, one.since)
        for name, one in found[:MOST_BLOCKED]
    )
