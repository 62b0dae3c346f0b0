# SPDX-License-Identifier: Apache-2.0
"""The levels of a fabric, where a driver names no others, what is known of the speed of its links, and the rules of
its spare nodes."""

from msgspec import Struct

DEFAULT_FABRIC = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "network.topology.nvidia.com/datacenter",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/block",
    "network.topology.nvidia.com/leaf",
    "fabric.topograph.run/tier-3",
    "fabric.topograph.run/tier-2",
    "fabric.topograph.run/tier-1",
    "fabric.topograph.run/tier-0",
    "dovetail.dev/block",
    "dovetail.dev/rack",
    "network.topology.nvidia.com/accelerator",
    "accelerator.topograph.run/domain",
    "nvidia.com/gpu.clique",
)
"""Node label keys from the widest to the narrowest: those of Kubernetes, of AWS and Google Cloud, of topograph, of
Dovetail, and NVIDIA's. Keys that no node carries cost nothing."""
NVLINK_LEVELS = (
    "network.topology.nvidia.com/accelerator",
    "accelerator.topograph.run/domain",
    "nvidia.com/gpu.clique",
)
"""Those of them in whose domains NVLink joins the nodes."""
FABRIC_NAME = "cluster"
"""The name of the one Fabric that counts."""


class LevelSpeed(Struct, frozen=True):
    """What a node can send to others in one domain of the level `key` (a node label key; "": between all nodes), one
    way, in MB/s, and the latency of a hop there; 0 where it is not stated."""

    key: str
    mbps: int = 0
    latency_ns: int = 0


class SlowPart(Struct, frozen=True):
    """A node (`level` "") or a domain of a level that was measured as slow; it counts until `until_ms` (epoch ms). The
    name of a domain is its path of label values, joined by `/`."""

    name: str
    until_ms: int
    level: str = ""


class SpareRule(Struct, frozen=True):
    """Of each domain of the level `key` (a node label key) so many nodes are held back (see `cluster.spares`)."""

    key: str
    per_domain: int


class FabricSpeeds(Struct, frozen=True):
    """What decides of a Fabric."""

    name: str
    levels: tuple[LevelSpeed, ...] = ()
    slow: tuple[SlowPart, ...] = ()
    spares: tuple[SpareRule, ...] = ()
