# SPDX-License-Identifier: Apache-2.0
"""Reader of the labels that Kubernetes nodes have already (`kubectl get nodes -o json`): topograph's, those of clouds,
NVIDIA's cliques of NVLink, and Dovetail's.

Source: docs/reference/node-labels.md and docs/providers/lldp.md of NVIDIA/topograph.

Rules
- The levels are those of `KEYS` that at least one node has. A node without a label of `KEYS` has no place.
- A node without the key of one level is in a domain there that has the name of the next wider one, or of the next
  narrower one if no wider one is there.
- The value of a clique, or of an accelerator domain, is one domain wherever it is: below two others, the labels
  contradict each other.
- The nodes have these labels already, so that there are no usual keys to import them to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dovetail.topology.fabric import (
    MOST_LEVELS,
    FabricError,
    FabricFinding,
    FabricPlacement,
    FabricReading,
    one_place_each,
)
from dovetail.topology.node_list import ListedMetadata, ListedNode, listed_nodes

_ONE_EVERYWHERE = (
    "network.topology.nvidia.com/accelerator",
    "accelerator.topograph.run/domain",
    "accelerator.topograph.run/sub-domain",
    "nvidia.com/gpu.clique",
)
_TIERS = tuple(
    f"{domain}/tier-{tier}"
    for tier in reversed(range(4))
    for domain in ("network.topology.nvidia.com", "fabric.topograph.run")
)
KEYS = (
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
    *_TIERS,
    "dovetail.dev/block",
    "dovetail.dev/rack",
    *_ONE_EVERYWHERE,
)
"""From the widest to the narrowest."""


def read(text: str) -> FabricReading:
    """From the output of kubectl. Raises FabricError."""
    return of_nodes(listed_nodes(text))


def of_nodes(listed: Sequence[ListedNode]) -> FabricReading:
    """Raises FabricError."""
    nodes = [one.metadata for one in listed]
    keys = [key for key in KEYS if any(one.labels.get(key) for one in nodes)]
    if not keys:
        raise FabricError("no node has a label of a network: label them, or pass a file of another tool")
    if len(keys) > MOST_LEVELS:
        raise FabricError(f"the nodes have labels of more than {MOST_LEVELS} levels: remove those of old tools")
    placed = [
        FabricPlacement(one.name, _path([one.labels.get(key, "") for key in keys]))
        for one in nodes
        if any(one.labels.get(key) for key in keys)
    ]
    placements, twice = one_place_each(placed)
    return FabricReading(placements, (), (*twice, *_apart(keys, nodes)))


def _path(values: Sequence[str]) -> tuple[str, ...]:
    """`values` with what is empty filled: from the left, at the beginning from the right."""
    path = []
    known = next(filter(None, values))
    for value in values:
        known = value or known
        path.append(known)
    return tuple(path)


def _apart(keys: Sequence[str], nodes: Sequence[ListedMetadata]) -> Iterator[FabricFinding]:
    """Values of cliques that are below different domains of the next wider level."""
    for wider, key in pairwise(keys):
        above: dict[str, str] = {}
        for one in nodes:
            value, parent = one.labels.get(key), one.labels.get(wider)
            if key in _ONE_EVERYWHERE and value and parent and above.setdefault(value, parent) != parent:
                what = f"{one.name}: {key} {value} is below {wider} {above[value]} and below {parent}"
                yield FabricFinding("split-clique", what, one.name)
