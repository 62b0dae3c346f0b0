# SPDX-License-Identifier: Apache-2.0
"""The levels of a fabric, where a driver names no others."""

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
