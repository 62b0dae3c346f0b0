# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node, as the GPUNode of its agent lists them."""

from __future__ import annotations

from dovetail.core.queues.node_gpus import ListedGpu
from dovetail.kube.objects.topology import GPUNode

_OFFERED = ("", "healthy", "degraded")


def gpus_of(node: GPUNode) -> tuple[ListedGpu, ...]:
    """By index. A degraded GPU is still offered, so it counts as healthy."""
    found = {}
    for one in node.status.gpus:
        state = one.health.state if one.health is not None else ""
        model = one.product.replace(" ", "-")
        healthy = one.healthy and state in _OFFERED
        found[one.index] = ListedGpu(one.index, one.uuid, model, healthy, one.pci_bus_id)
    return tuple(found[index] for index in sorted(found))
