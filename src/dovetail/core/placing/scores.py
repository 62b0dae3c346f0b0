# SPDX-License-Identifier: Apache-2.0
"""How good a node is for a shape, as one integer: higher is better.

In order of weight: what the user prefers (node affinity weights, PreferNoSchedule taints), then the tightest fit:
for a share of a GPU the least left of that GPU, then the fewest whole GPUs left on the node, then the least CPU, then
the least memory. A pod without GPUs thereby goes to nodes that have none, and whole nodes stay whole for large jobs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.selection import matches_term
from dovetail.core.cluster.shapes import Shape
from dovetail.core.labels import tolerates
from dovetail.core.model import WHOLE_GPU_MILLI

INFEASIBLE = -(2**62)
_PREFERENCE_BITS = 53
_SHARE_BITS = 43
# Resources pods, cpu, memory, gpu of the node table: coarse units, the largest value kept, and the place of one unit.
_UNIT_BITS = np.array([[62], [4], [28], [0]], dtype=np.int64)
_LARGEST = np.array([[0], [2**18 - 1], [2**18 - 1], [2**7 - 1]], dtype=np.int64)
_PLACE_BITS = np.array([[0], [18], [0], [36]], dtype=np.int64)
Scores = NDArray[np.int64]


def looseness(left: NDArray[np.int64]) -> Scores:
    """What would stay unused on each node, GPUs above CPU above memory; less is a tighter fit."""
    units = np.minimum(np.maximum(left[:4] >> _UNIT_BITS, 0), _LARGEST)
    total: Scores = (units << _PLACE_BITS).sum(axis=0)
    return total


def share_left(nodes: Nodes, index: Index, gpu_milli: int) -> Scores:
    """What the tightest fitting GPU of each node would have left; a whole GPU's worth or more where none fits."""
    # Seen without a sign, a GPU with too little left has a huge rest: never the smallest.
    opened = (nodes.gpu_part_milli[:, index] - np.int32(gpu_milli)).view(np.uint32).min(axis=0)
    whole = np.where(nodes.gpu_free_bits[index] != 0, WHOLE_GPU_MILLI - gpu_milli, WHOLE_GPU_MILLI)
    least: Scores = np.minimum(opened, whole).astype(np.int64)
    return least


def weigh_share(left_milli: Scores) -> Scores:
    return left_milli << _SHARE_BITS


def preference(nodes: Nodes, shape: Shape, index: Index) -> Scores:
    """Weights of the matching preferred node terms, less the PreferNoSchedule taints that nothing tolerates."""
    request = shape.request
    points = np.zeros(len(nodes.usable[index]), dtype=np.int64)
    for preferred in request.preferred_nodes:
        points[matches_term(nodes, preferred.term, index)] += preferred.weight
    avoided = np.array(
        [
            sum(
                taint.effect == "PreferNoSchedule" and not any(tolerates(t, taint) for t in request.tolerations)
                for taint in taints
            )
            for taints in nodes.taint_sets
        ],
        dtype=np.int64,
    )
    if avoided.any():
        points -= 100 * avoided[nodes.taint_ids[index]]
    return weigh_preference(points)


def weigh_preference(points: Scores) -> Scores:
    return np.clip(points, -511, 511) << _PREFERENCE_BITS


def further_preference(preference: Scores, points: Scores) -> Scores:
    """What more points add to a weighed preference; the sum stays within the same bounds."""
    return weigh_preference((preference >> _PREFERENCE_BITS) + points) - preference
