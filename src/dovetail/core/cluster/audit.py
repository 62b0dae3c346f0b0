# SPDX-License-Identifier: Apache-2.0
"""The books of a cluster, counted again from the placements."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.core.model import GPU, WHOLE_GPU_MILLI

if TYPE_CHECKING:
    from dovetail.core.cluster.cluster import Cluster


def differences(cluster: Cluster) -> list[str]:
    """Recount everything from the placements; each difference in a sentence, none where the state is sound."""
    nodes = cluster.nodes
    free = nodes.allocatable.copy()
    bits = np.zeros_like(nodes.gpu_free_bits)
    shared: Counter[tuple[int, int]] = Counter()
    wrong: list[str] = []
    for slot in range(len(nodes.records)):
        bits[slot] = (1 << nodes.gpu_count(slot)) - 1
    for uid, placement in cluster.placements.items():
        slot, shape = placement.slot, cluster.shapes.of(placement.pod.request)
        free[: shape.width, slot] -= shape.need[:, 0]
        if placement.gpu_bits & ~int(bits[slot]):
            wrong.append(f"pod {uid} holds a GPU of slot {slot} that another pod holds or that does not exist")
        bits[slot] &= ~placement.gpu_bits
        if placement.gpu_share >= 0:
            shared[slot, placement.gpu_share] += shape.request.gpu_milli
    parts = np.zeros_like(nodes.gpu_part_milli)
    for (slot, gpu), milli in shared.items():
        if milli > WHOLE_GPU_MILLI or not int(bits[slot]) >> gpu & 1:
            wrong.append(f"GPU {gpu} of slot {slot} is given out twice, or beyond its whole")
        parts[gpu, slot] = WHOLE_GPU_MILLI - milli
        bits[slot] &= ~(1 << gpu)
        free[nodes.resources[GPU], slot] -= 1
    wrong += _differences("free amounts", free, nodes.free)
    wrong += _differences("parts of GPUs", parts, nodes.gpu_part_milli)
    wrong += _differences("free GPU bits", bits, nodes.gpu_free_bits)
    for slot, books in cluster.kubelets.books.items():
        entered = {uid for uid in cluster.on_slot.get(slot, ()) if cluster.placements[uid].entry is not None}
        gpus = sum(cluster.placements[uid].gpu_bits for uid in entered)
        if entered != books.held.pods.keys() or gpus != books.held.devices.get(GPU, 0):
            wrong.append(
                f"books of slot {slot}: {sorted(books.held.pods)} with GPUs {gpus:b}, but {sorted(entered)} is true"
            )
    listed = {uid: slot for slot, uids in cluster.on_slot.items() for uid in uids}
    if listed != {uid: p.slot for uid, p in cluster.placements.items()}:
        wrong.append("the list of pods by slot differs from the placements")
    for matcher, count in cluster.peers.counts.items():
        real = Counter(slot for pod, slot in cluster.placed() if cluster.peers.picks(matcher, pod))
        if real != count.pods:
            wrong.append(f"peer counts of {matcher}: {dict(count.pods)} but {dict(real)} is true")
    return wrong


def _differences(what: str, true: NDArray[np.integer], kept: NDArray[np.integer]) -> list[str]:
    slots = np.flatnonzero((true != kept).reshape(-1, true.shape[-1]).any(axis=0))
    return [f"{what} of slot {slot}: {kept[..., slot]} but {true[..., slot]} is true" for slot in slots]
