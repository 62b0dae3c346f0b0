# SPDX-License-Identifier: Apache-2.0
"""The books of a cluster, counted again from the placements."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.kubelets import Kubelets
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.peers import Peers
from dovetail.core.cluster.placement import Placement, indices
from dovetail.core.cluster.slices import Slices
from dovetail.core.model import GPU


def differences(
    nodes: Nodes,
    placements: dict[str, Placement],
    on_slot: dict[int, dict[str, None]],
    kubelets: Kubelets,
    slices: Slices,
    peers: Peers,
) -> list[str]:
    """Recount everything from the placements (by pod uid; `on_slot` has the uids of each slot). Each difference in a
    sentence, none where the state is sound."""
    free = nodes.allocatable.copy()
    bits = np.zeros(nodes.gpu_free_bits.shape, nodes.gpu_free_bits.dtype)
    out = bits.copy()
    parts = np.zeros(nodes.gpu_parts.shape, nodes.gpu_parts.dtype)
    seats = np.zeros(nodes.gpu_seats.shape, nodes.gpu_seats.dtype)
    opened: set[tuple[int, int]] = set()
    rooms: dict[tuple[int, int, str], int] = {}
    wrong: list[str] = []
    for slot in range(len(nodes.records)):
        whole, sharing = nodes.gpu_count(slot), nodes.sharing(slot)
        bits[slot] = (1 << whole) - 1
        out[slot] = nodes.gpus_out(slot)
        if sharing is not None:
            parts[whole : whole + sharing.cards, slot] = nodes.gpu_whole[slot]
            seats[whole : whole + sharing.cards, slot] = sharing.replicas
    for uid, placement in placements.items():
        slot, shape = placement.slot, placement.shape
        free[: shape.width, slot] -= shape.need[:, 0]
        if placement.gpu_bits & ~int(bits[slot]):
            wrong.append(f"pod {uid} holds a GPU of slot {slot} that another pod holds or that does not exist")
        bits[slot] &= ~placement.gpu_bits
        for gpu in indices(placement.share_bits):
            if int(bits[slot]) >> gpu & 1:
                opened.add((slot, gpu))
                bits[slot] &= ~(1 << gpu)
                parts[gpu, slot] = nodes.gpu_whole[slot]
                free[nodes.resources[GPU], slot] -= 1
            parts[gpu, slot] -= placement.share
            if placement.extra:
                key = slot, gpu, shape.request.turn_group
                grown = max(0, placement.extra - rooms.get(key, 0))
                rooms[key] = rooms.get(key, 0) + grown
                parts[gpu, slot] -= grown
            if (slot, gpu) not in opened:
                seats[gpu, slot] -= 1
            if parts[gpu, slot] < 0 or seats[gpu, slot] < 0:
                wrong.append(f"GPU {gpu} of slot {slot} is allocated twice, or beyond its whole")
    for slot in nodes.sharing_ids.nonzero()[0].tolist():
        # A pod that finds no replica gets nothing of what is left.
        parts[seats[:, slot] == 0, slot] = 0
    kept_rooms = {(slot, gpu, group): room for group, slot, gpu, room in nodes.awake_rooms.all_rooms()}
    for slot, gpu, group in sorted({*rooms, *kept_rooms}):
        there, room = kept_rooms.get((slot, gpu, group), 0), rooms.get((slot, gpu, group), 0)
        if there != room:
            wrong.append(f"room of {group} on GPU {gpu} of slot {slot}: {there} but {room} is true")
    wrong += _differences("free amounts", free, nodes.free)
    wrong += _differences("parts of GPUs", parts, nodes.gpu_parts)
    wrong += _differences("replicas of GPUs", seats, nodes.gpu_seats)
    wrong += _differences("free GPU bits", bits & ~out, nodes.gpu_free_bits)
    for slot, entered in kubelets.books.items():
        placed = [placements[uid] for uid in on_slot.get(slot, ())]
        shared = sum(1 << gpu for gpu in range(len(nodes.gpu_parts)) if (slot, gpu) in opened)
        true = kubelets.recounted(slot, [p.entry for p in placed if p.entry is not None], shared)
        gpus = shared + sum(p.gpu_bits for p in placed if p.entry is not None)
        kept = entered.stock.holdings
        wholes = bool(nodes.gpu_count(slot))
        if true != (kept.shared_cpus, kept.devices) or (wholes and gpus != kept.devices.get(GPU, 0)):
            wrong.append(f"books of slot {slot}: {kept.shared_cpus:x}, {kept.devices} but {true}, {gpus} is true")
    wrong += slices.check({slot: [placements[uid].slices for uid in uids] for slot, uids in on_slot.items()})
    listed = {uid: slot for slot, uids in on_slot.items() for uid in uids}
    if listed != {uid: p.slot for uid, p in placements.items()}:
        wrong.append("the list of pods by slot differs from the placements")
    for matcher, count in peers.counts.items():
        real = Counter(p.slot for p in placements.values() if peers.picks(matcher, p.pod))
        if real != count.pods:
            wrong.append(f"peer counts of {matcher}: {dict(count.pods)} but {dict(real)} is true")
    return wrong


def _differences(what: str, true: NDArray[np.integer], kept: NDArray[np.integer]) -> list[str]:
    # Property tests ask after every step, and nothing differs.
    slots = sorted(set((true != kept).nonzero()[-1].tolist()))
    return [f"{what} of slot {slot}: {kept[..., slot]} but {true[..., slot]} is true" for slot in slots]
