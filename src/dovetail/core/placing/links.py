# SPDX-License-Identifier: Apache-2.0
"""What the wiring of nodes says to a shape: how close the GPUs of one pod would be, and how many such pods find GPUs.

Rules: a node whose layout is not known is taken for as close as can be, since nothing says otherwise; but for a shape
that needs NVLinks it is not known to have any. Closeness is in thousandths of the best that such a node can give, so
that nodes with slow links are not shunned by jobs that would run on them as well as can be.
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
"""The free GPUs of some nodes, as bits."""


def closeness(nodes: Nodes, index: Index, free: Free, shape: Shape) -> NDArray[np.int64]:
    """How close the best of these free GPUs are on each node; TOO_FAR where the shape needs NVLinks that they lack."""
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
    """How many pods of a shape that needs NVLinks find these free GPUs connected, one after the other, on each node."""
    found = np.zeros(len(free), dtype=np.int64)
    for i, layout_id in enumerate(nodes.layout_ids[index]):
        layout = nodes.layouts[layout_id]
        if layout is not None:
            found[i] = choices(layout, True, shape.request.near_nics).times(int(free[i]), shape.gpus)
    return found


def bandwidth(cluster: Cluster, placement: Placement) -> tuple[int, int]:
    """(what the GPUs of a placed pod have between them, the most that as many GPUs of such a node can have), in MB/s;
    zeros for fewer than two GPUs and where the layout is not known."""
    count = placement.gpu_bits.bit_count()
    layout = cluster.nodes.layout(placement.slot) if count > 1 else None
    if layout is None:
        return 0, 0
    sets = sets_of(layout)
    return int(sets.mbps[placement.gpu_bits]), sets.ideal_mbps[count]


def all_gpus(nodes: Nodes) -> Free:
    """Every GPU of every node that it offers, free or not."""
    return nodes.gpu_bits
