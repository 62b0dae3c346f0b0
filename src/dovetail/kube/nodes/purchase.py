# SPDX-License-Identifier: Apache-2.0
"""What the labels of a node show of how it is paid for."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

_REGION, _ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_SPOT = {
    ("karpenter.sh/capacity-type", "spot"),
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
}


class NodePurchase(Struct, frozen=True):
    """What a price depends on beside the GPUs; "" is not known. `spot`: the node can be interrupted."""

    instance_type: str = ""
    region: str = ""
    zone: str = ""
    spot: bool = False


def purchase_of(labels: Mapping[str, str]) -> NodePurchase:
    return NodePurchase(
        labels.get(_INSTANCE_TYPE, ""), labels.get(_REGION, ""), labels.get(_ZONE, ""),
        any(labels.get(label) == value for label, value in _SPOT),
    )  # fmt: skip
