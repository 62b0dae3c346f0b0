# SPDX-License-Identifier: Apache-2.0
"""The links between GPUs: how close the GPUs of one pod would be, and how many such pods find GPUs.

Rules: GPUs of a node whose layout is not known count as close as possible, except that a shape that needs NVLinks does
not fit there. Closeness is in thousandths of the best that the node can provide, so that jobs do not avoid nodes with
slow links on which they would get the best GPUs that these have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.choose import PERMILLE, choices

TOO_FAR = -1
Free = NDArray[np.int64]
"""The free GPUs of some nodes, as bit sets."""


def closeness(nodes: Nodes, index: Index, free: Free, shape: Shape) -> NDArray[np.int64]:
    """The closeness of the best of these free GPUs on each node; TOO_FAR where the shape needs NVLinks and they lack
    them."""
    request, ids = shape.request, nodes.layout_ids[index]
    close = np.full(len(ids), TOO_FAR if shape.needs_links else PERMILLE, dtype=np.int64)
    for layout_id in np.flatnonzero(np.bincount(ids)).tolist() if len(nodes.layouts) > 1 else ():
        layout = nodes.layouts[layout_id]
        if layout is not None and shape.gpus <= layout.gpus:
            where = ids == layout_id
            table = choices(layout, request.nvlink_required, request.near_nics).closeness
            close[where] = table[shape.gpus, free[where]]
    return close


def times(nodes: Nodes, index: Index, free: Free, shape: Shape) -> NDArray[np.int64]:
    """By node: the number of pods of a shape that needs NVLinks that find connected GPUs, one after another."""
    found = np.zeros(len(free), dtype=np.int64)
    for i, layout_id in enumerate(nodes.layout_ids[index]):
        layout = nodes.layouts[layout_id]
        if layout is not None:
            found[i] = choices(layout, True, shape.request.near_nics).times(int(free[i]), shape.gpus)
    return found


def bandwidth(cluster: Cluster, placement: Placement) -> tuple[int, int]:
    """The bandwidth between the GPUs of a placed pod, and the most that as many GPUs of such a node can have, in MB/s;
    zeros for fewer than two GPUs and where the layout is not known."""
    count = placement.gpu_bits.bit_count()
    layout = cluster.nodes.layout(placement.slot) if count > 1 else None
    if layout is None:
        return 0, 0
    sets = sets_of(layout)
    return int(sets.mbps[placement.gpu_bits]), sets.ideal_mbps[count]


def all_gpus(nodes: Nodes) -> Free:
    """All GPUs that each node offers, free or not."""
    return nodes.gpu_bits
