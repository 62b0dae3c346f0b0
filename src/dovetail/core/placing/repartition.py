# SPDX-License-Identifier: Apache-2.0
"""A proposal to repartition the MIG GPUs of a node, so that a waiting pod gets its instances.

Rules: only idle instances and idle GPUs are changed (`mig.plan`), on nodes that are suitable for the pod and have room
for the rest of it. The proposal is for the node with the fewest GPUs to change, then the fewest changes of MIG mode,
then the fewest instances to destroy. At most 32 nodes that differ are examined. The core only proposes: the agent of
the node carries it out, and the core sees the result.
"""

from __future__ import annotations

import numpy as np

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import Mask
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.placement import indices
from dovetail.core.cluster.shapes import UNASKED, Shape
from dovetail.core.devices.mig.plan import DivisionPlan, NoDivision, PlannedDivision, plan
from dovetail.core.placing import filters
from dovetail.core.reasons import Repartition

_MOST_TRIED = 32


def proposal(cluster: Cluster, shape: Shape) -> Repartition | None:
    """The proposal for one pod of the shape; None where no node can be repartitioned for it, or it requests no MIG
    instances."""
    if not shape.slices:
        return None
    nodes, wanted = cluster.nodes, dict(shape.slices)
    fits = filters.takes(nodes, shape, slice(0, nodes.size)) & _rest_fits(nodes, shape)
    best: tuple[tuple[int, int, int, int], DivisionPlan] | None = None
    seen: set[tuple[PlannedDivision, ...]] = set()
    for slot in np.flatnonzero(fits).tolist():
        cards = _cards(cluster, slot)
        if not cards or cards in seen:
            continue
        if len(seen) >= _MOST_TRIED:
            break
        seen.add(cards)
        found = plan(cards, wanted)
        if isinstance(found, NoDivision) or not found.changes:
            continue
        cost = (
            len(found.changes),
            sum(change.turns_on for change in found.changes),
            sum(len(change.destroy) for change in found.changes),
            slot,
        )
        if best is None or cost < best[0]:
            best = cost, found
    return Repartition(nodes.names[best[0][3]], best[1].changes) if best is not None else None


def _rest_fits(nodes: Nodes, shape: Shape) -> Mask:
    """Nodes where everything but the instances is free."""
    left = nodes.free[: shape.width] - shape.need
    slices = dict(shape.slices)
    if any(name not in slices for name in shape.unoffered):
        return np.zeros(nodes.size, dtype=np.bool_)
    instances = [nodes.column(resource) for resource in slices]
    floor = shape.floor.copy()
    floor[instances] = UNASKED
    return np.asarray((left >= floor).all(axis=0))


def _cards(cluster: Cluster, slot: int) -> tuple[PlannedDivision, ...]:
    """Every GPU of a node that is partitioned or could be; none where it is not known which these are."""
    record, cards = cluster.nodes.records[slot], cluster.slices.cards(slot)
    divided = [] if cards is None else [
        PlannedDivision(card.gpu, card.geometry, True, card.instances, used)
        for card, used in zip(cards.cards, cluster.slices.used[slot], strict=True)
        if not card.assumed
    ]  # fmt: skip
    if record is None or record.geometry is None:
        return tuple(divided)
    in_mig = {card.gpu for card in record.mig}
    count = cluster.nodes.gpu_count(slot) + len(in_mig)
    free = int(cluster.nodes.gpu_free_bits[slot])
    if cluster.nodes.gpus_out(slot):
        # Bits are the GPUs' own numbers.
        whole = [(gpu, gpu) for gpu in indices(int(cluster.nodes.gpu_bits[slot]))]
    else:
        whole = list(enumerate(gpu for gpu in range(count) if gpu not in in_mig))[: cluster.nodes.gpu_count(slot)]
    divided += [PlannedDivision(gpu, record.geometry, False, busy=not free >> bit & 1) for bit, gpu in whole]
    return tuple(divided)
