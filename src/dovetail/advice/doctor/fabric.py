# SPDX-License-Identifier: Apache-2.0
"""Fabric labels that only some GPU nodes have, so that a gang cannot be placed close together.

Rules
- A key that administrators set (`dovetail.dev/`, or named by `--fabric`) is expected on every GPU node.
- A key that a cloud or NVIDIA's software sets is expected on all nodes of one kind, with the same
  `node.kubernetes.io/instance-type` and `nvidia.com/gpu.product`. Other kinds may lack that level.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.doctor.records import PRODUCT, Check, ClusterFacts, NodeRecord, Problems, some
from dovetail.core.fabric import DEFAULT_FABRIC

_TYPE = "node.kubernetes.io/instance-type"
_OURS = "dovetail.dev/"
_CLIQUE = "nvidia.com/gpu.clique"
OTHERS = ("cloud.google.com/gce-topology-host",)
"""Keys of Google Cloud, besides those of the default fabric: a domain there is one machine."""


def _by_people(key: str) -> bool:
    return key.startswith(_OURS) or key not in (*DEFAULT_FABRIC, *OTHERS)


def _groups(key: str, nodes: list[NodeRecord]) -> Iterator[tuple[str, list[NodeRecord]]]:
    """(description, nodes) of each group in which all nodes should have the key if one of them has it."""
    if _by_people(key):
        yield "GPU nodes", nodes
        return
    kinds: dict[tuple[str, ...], list[NodeRecord]] = {}
    for node in nodes:
        kinds.setdefault(tuple(filter(None, (node.labels.get(_TYPE), node.labels.get(PRODUCT)))), []).append(node)
    for kind, group in sorted(kinds.items()):
        yield f"GPU nodes of kind {' with '.join(kind)}" if kind else "GPU nodes", group


def _incomplete(seen: ClusterFacts) -> Problems:
    nodes = [node for node in seen.nodes or () if node.has_gpus]
    for key in dict.fromkeys((*seen.fabric, *OTHERS)):
        for what, group in _groups(key, nodes):
            without = sorted(node.name for node in group if not node.labels.get(key))
            if without and len(without) < len(group):
                evidence = f"{len(group) - len(without)} of {len(group)} {what} have it; not {some(without)}"
                by_hand = f"kubectl label node {without[0]} {key}=...; the others likewise"
                fix = by_hand if _by_people(key) else "see why the software that sets it skips these nodes"
                yield f"label/{key}", evidence, _CLIQUE_FIX if key == _CLIQUE else fix


_CLIQUE_FIX = "NVLink to the other nodes is down, or a GPU of these nodes is: see nvidia-smi -q there, section Fabric"


def _no_such_level(seen: ClusterFacts) -> Problems:
    nodes = [node for node in seen.nodes or () if node.has_gpus]
    for key in seen.fabric:
        if nodes and key not in DEFAULT_FABRIC and not any(node.labels.get(key) for node in nodes):
            fix = "label the nodes, or correct the key in --fabric, here and of the scheduler"
            yield f"label/{key}", f"--fabric names it; none of {len(nodes)} GPU nodes has it", fix


CHECKS = (
    Check("fabric/incomplete", "warning", "some nodes lack the label of this fabric level",
          ("nodes",), _incomplete),
    Check("fabric/no-such-level", "warning", "no GPU node has the label of this fabric level",
          ("nodes",), _no_such_level),
)  # fmt: skip
