# SPDX-License-Identifier: Apache-2.0
"""The labels of spot nodes, and how long after its notice each cloud takes a node.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-interruptions.html;
https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms (by default, pods have the first 15 of 30 s and system
pods the rest; a node pool can be set to up to 120 s);
https://learn.microsoft.com/azure/virtual-machines/spot-vms (30 s). Karpenter's label counts as one of AWS.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dovetail.advice.lint.field import Field

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class SpotNodes(Struct, frozen=True):
    """The spot nodes with a label of this value. `notice_s` is the time that their pods have to end."""

    label: str
    value: str
    cloud: str
    notice_s: int


SPOT_NODES = (
    SpotNodes("cloud.google.com/gke-spot", "true", "GKE", 15),
    SpotNodes("cloud.google.com/gke-preemptible", "true", "GKE", 15),
    SpotNodes("karpenter.sh/capacity-type", "spot", "AWS", 120),
    SpotNodes("eks.amazonaws.com/capacityType", "SPOT", "AWS", 120),
    SpotNodes("kubernetes.azure.com/scalesetpriority", "spot", "Azure", 30),
)
_NODES = {one.label: one for one in SPOT_NODES}


def required_labels(spec: Field) -> Iterator[tuple[str, Field]]:
    """(label, field) of each node label with exactly one allowed value. Affinity counts only with a single term, as the
    terms are alternatives."""
    yield from spec.at("nodeSelector").entries()
    terms = list(spec.at("affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms").each())
    for one in terms[0].at("matchExpressions").each() if len(terms) == 1 else ():
        values = list(one.at("values").each())
        if one.at("operator").text == "In" and len(values) == 1:
            yield one.at("key").text, values[0]


def spot_nodes(spec: Field) -> tuple[SpotNodes, Field] | None:
    """The spot nodes to which a pod's spec restricts it, and the field that does; None where it may run elsewhere."""
    for key, field in required_labels(spec):
        nodes = _NODES.get(key)
        if nodes is not None and field.text == nodes.value:
            return nodes, field
    return None
