# SPDX-License-Identifier: Apache-2.0
"""The levels of a fabric, where a driver names no others."""

DEFAULT_FABRIC = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "network.topology.nvidia.com/datacenter",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/block",
    "dovetail.dev/block",
    "dovetail.dev/rack",
    "nvidia.com/gpu.clique",
)
"""Node label keys from the widest to the narrowest. Keys that no node carries cost nothing."""
