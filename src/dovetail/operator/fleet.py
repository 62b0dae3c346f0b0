# SPDX-License-Identifier: Apache-2.0
"""What counts a GPU node in the budgets, from its objects: its pool, its rack, its GPUs, and whether it is out of
service. Pure."""

from __future__ import annotations

from msgspec import Struct

from dovetail.kube.objects.stack import NodePool
from dovetail.kube.objects.topology import NodeReadiness
from dovetail.operator.budgets import FleetNode
from dovetail.operator.watched.nodes import WatchedGPUNode, WatchedNode

_VALIDATED, _READY = "validated", "ready"


class Holders(Struct, frozen=True):
    """Of a node: how many pods hold its devices, and when the last of them ends (0: not known)."""

    pods: int = 0
    ends_ms: int = 0


def fleet_node(
    node: WatchedNode, gpu_node: WatchedGPUNode | None, pool: NodePool, rack_label: str, holders: Holders
) -> FleetNode:
    """The node, out of service where its kubelet does not answer, where somebody keeps pods off it (a cordon, a drain,
    any maintenance), or where it has to be repaired."""
    gpus = len(gpu_node.status.gpus) if gpu_node is not None else 0
    asked = gpu_node is not None and gpu_node.spec.maintenance is not None
    repaired = gpu_node is not None and gpu_node.status.quarantine is not None
    return FleetNode(
        node.metadata.name,
        pool.name,
        node.metadata.labels.get(rack_label, ""),
        gpus or node.gpus,
        not node.reachable or node.spec.unschedulable or asked or repaired,
        not holders.pods,
        holders.ends_ms,
    )


def is_unready(readiness: NodeReadiness | None) -> bool:
    """Whether the walk found that the node cannot run pods with GPUs. One that waits for its validation may run
    some."""
    return readiness is not None and readiness.step not in ("", _VALIDATED, _READY)
