# SPDX-License-Identifier: Apache-2.0
"""Where Dovetail and kube-scheduler answer differently about which nodes suit, each with the smallest example.

Rules: DELIBERATE is also a table in docs/reference/placing.md. `Dice` makes no cluster in which one of these shows, but
for those about nominated pods: `unsettled` names the nodes where they show.
"""

from __future__ import annotations

from msgspec import Struct

from tests.referee.handmade import (
    APP,
    Case,
    away_from,
    case,
    claim,
    controlled,
    csi,
    csi_node,
    node,
    pod,
    port,
    reaching,
    scratch,
    spread,
    using,
    volume,
)
from tests.referee.manifests import BETA_ZONE, ZONE, Manifest
from tools.controlplane.referee import Answer

ANY: Manifest = {}
"""The selector of all pods."""


class Difference(Struct, frozen=True):
    """An example, and the nodes that each side accepts."""

    case: Case
    upstream: set[str]
    ours: set[str]


def unsettled(case: Case, answer: Answer) -> set[str]:
    """Nodes where nominated pods may count differently: `ANTI_AFFINITY` and `EMPTY_SELECTOR` of the table."""
    constraints = case["pod"]["spec"].get("topologySpreadConstraints", ())
    spreads_all = any(c.get("labelSelector") == ANY and c["whenUnsatisfiable"] == "DoNotSchedule" for c in constraints)
    found = set()
    for other in case["pods"]:
        keeps_away = "podAntiAffinity" in other["spec"].get("affinity", {})
        if spreads_all or (keeps_away and "InterPodAffinity" in answer["skipped"]):
            found.add(other["status"].get("nominatedNodeName", ""))
    return found


ANTI_AFFINITY = "anti-affinity of a nominated pod"
EMPTY_SELECTOR = "empty spread selector beside a nominated pod"

_leaving = pod("soon", nominated="n0", labels=APP)
_leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
_attached = {"attacher": "csi.d", "nodeName": "n0", "source": {"persistentVolumeName": "v0"}}

DELIBERATE = {
    "host port on ::": Difference(
        case(pods=[pod("old", "n0", containers=port("::"))], pod=pod("new", containers=port("10.0.0.1"))),
        upstream={"n0"},
        ours=set(),
    ),
    "zone label of a volume that is not bound": Difference(
        case(
            nodes=[node("n0", {ZONE: "b"})],
            pod=pod("new", **using("c0")),
            persistentVolumeClaims=[claim("c0")],
            persistentVolumes=[volume("v0", labels={ZONE: "a"})],
        ),
        upstream={"n0"},
        ours=set(),
    ),
    "zone label of an ephemeral volume": Difference(
        case(
            nodes=[node("n0", {ZONE: "b"})],
            pod=pod("new", **scratch()),
            persistentVolumeClaims=[controlled(claim("new-scratch", "v0"))],
            persistentVolumes=[volume("v0", "new-scratch", labels={ZONE: "a"})],
        ),
        upstream={"n0"},
        ours=set(),
    ),
    "matchFields of a volume": Difference(
        case(
            pod=pod("new", **using("c0")),
            persistentVolumeClaims=[claim("c0", "v0")],
            persistentVolumes=[
                volume(
                    "v0", "c0", **reaching(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n1"]}])
                )
            ],
        ),
        upstream={"n0"},
        ours=set(),
    ),
    "beta zone label of a node": Difference(
        case(
            nodes=[node("n0", {BETA_ZONE: "a"})],
            pod=pod("new", **using("c0")),
            persistentVolumeClaims=[claim("c0", "v0")],
            persistentVolumes=[volume("v0", "c0", labels={BETA_ZONE: "a"})],
        ),
        upstream={"n0"},
        ours=set(),
    ),
    ANTI_AFFINITY: Difference(
        case(pods=[pod("soon", nominated="n0", affinity=away_from("1"))], pod=pod("new", labels=APP)),
        upstream={"n0"},
        ours=set(),
    ),
    EMPTY_SELECTOR: Difference(
        case(
            nodes=[node("n0"), node("n1")],
            pods=[pod("soon", nominated="n0")],
            pod=pod("new", topologySpreadConstraints=spread(labelSelector=ANY)),
        ),
        upstream={"n1"},
        ours={"n0", "n1"},
    ),
    "nominated pod that is being deleted": Difference(
        case(
            nodes=[node("n0"), node("n1")],
            pods=[_leaving],
            pod=pod("new", labels=APP, topologySpreadConstraints=spread()),
        ),
        upstream={"n1"},
        ours={"n0", "n1"},
    ),
    "pod that another scheduler nominated": Difference(
        case(
            pods=[pod("soon", nominated="n0", schedulerName="another", containers=port(""))],
            pod=pod("new", containers=port("")),
        ),
        upstream={"n0"},
        ours=set(),
    ),
    "two volumes with one handle": Difference(
        case(
            csiNodes=[csi_node(1)],
            pods=[pod("old", "n0", **using("c0"))],
            pod=pod("new", **using("c1")),
            persistentVolumeClaims=[claim("c0", "v0"), claim("c1", "v1")],
            persistentVolumes=[volume("v0", "c0", **csi("h")), volume("v1", "c1", **csi("h"))],
        ),
        upstream={"n0"},
        ours=set(),
    ),
    "VolumeAttachment": Difference(
        case(
            csiNodes=[csi_node(1)],
            pod=pod("new", **using("c1")),
            persistentVolumeClaims=[claim("c1", "v1")],
            persistentVolumes=[volume("v0", **csi("h0")), volume("v1", "c1", **csi("h1"))],
            volumeAttachments=[{"metadata": {"name": "a0"}, "spec": _attached, "status": {"attached": True}}],
        ),
        upstream=set(),
        ours={"n0"},
    ),
    "preventPodSchedulingIfMissing": Difference(
        case(
            pod=pod("new", **using("c0")),
            persistentVolumeClaims=[claim("c0", "v0")],
            persistentVolumes=[volume("v0", "c0", **csi("h"))],
            csiDrivers=[{"metadata": {"name": "csi.d"}, "spec": {"preventPodSchedulingIfMissing": True}}],
        ),
        upstream=set(),
        ours={"n0"},
    ),
    "CSIStorageCapacity": Difference(
        case(
            pod=pod("new", **using("c0")),
            persistentVolumeClaims=[claim("c0", storageClassName="cloud")],
            csiDrivers=[{"metadata": {"name": "csi.d"}, "spec": {"storageCapacity": True}}],
        ),
        upstream=set(),
        ours={"n0"},
    ),
    "volumeAttributesClassName": Difference(
        case(
            pod=pod("new", **using("c0")),
            persistentVolumes=[volume("v0")],
            persistentVolumeClaims=[claim("c0", volumeAttributesClassName="gold")],
        ),
        upstream=set(),
        ours={"n0"},
    ),
    "lost claim whose volume is back": Difference(
        case(
            pod=pod("new", **using("c0")),
            persistentVolumes=[volume("v0", "c0")],
            persistentVolumeClaims=[claim("c0", "v0", phase="Lost")],
        ),
        upstream=set(),
        ours={"n0"},
    ),
    "ReadWriteOncePod on a node that is gone": Difference(
        case(
            pods=[pod("old", "gone", **using("c0"))],
            pod=pod("new", **using("c0")),
            persistentVolumeClaims=[claim("c0", "v0", accessModes=["ReadWriteOncePod"])],
            persistentVolumes=[volume("v0", "c0")],
        ),
        upstream={"n0"},
        ours=set(),
    ),
    "in-tree volume": Difference(
        case(
            pods=[pod("old", "n0", volumes=[{"name": "d", "awsElasticBlockStore": {"volumeID": "x"}}])],
            pod=pod("new", volumes=[{"name": "d", "awsElasticBlockStore": {"volumeID": "x"}}]),
        ),
        upstream=set(),
        ours={"n0"},
    ),
    "NodeDeclaredFeatures": Difference(
        case(pod=pod("new", hostNetwork=True, hostUsers=False)), upstream=set(), ours={"n0"}
    ),
    "unknown taint effect": Difference(
        case(nodes=[node("n0", taints=[{"key": "k", "effect": "Later"}])]), upstream={"n0"}, ours=set()
    ),
    "node without allocatable": Difference(
        case(
            nodes=[node("n0"), node("n1") | {"status": {}}],
            pods=[pod("old", "n0", labels=APP)],
            pod=pod("new", labels=APP, topologySpreadConstraints=spread()),
        ),
        upstream=set(),
        ours={"n0"},
    ),
    "amounts of pods and nodes above 2^50 (1 PiB, in bytes)": Difference(
        case(
            nodes=[node("n0") | {"status": {"allocatable": {"cpu": "8", "memory": "2Pi", "pods": "9"}}}],
            pod=pod("new", containers=[{"name": "main", "image": "x", "resources": {"requests": {"memory": "3Pi"}}}]),
        ),
        upstream=set(),
        ours={"n0"},
    ),
    "volume of a claim that is not completed": Difference(
        case(
            csiNodes=[csi_node(1)],
            pods=[pod("old", "n0", **using("c0"))],
            pod=pod("new", **using("c1")),
            persistentVolumeClaims=[claim("c0", volumeName="v0"), claim("c1", "v1")],
            persistentVolumes=[volume("v0", "c0", **csi("h0")), volume("v1", "c1", **csi("h1"))],
        ),
        upstream=set(),
        ours={"n0"},
    ),
}
