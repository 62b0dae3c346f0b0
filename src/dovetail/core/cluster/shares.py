# SPDX-License-Identifier: Apache-2.0
"""What a shape takes of one GPU on each node: the whole, or a share, or nothing because it may not.

Rules
- A share is a part of the GPU, exactly (in units of `Nodes.gpu_whole`), so that memory is never promised twice and
  never lost. A node whose GPUs are of unknown memory has none to promise.
- On a node that shares its GPUs a pod takes as many replicas as it asks for, each on another GPU, and of each GPU what
  it asks for, or the replica's equal part where it asks for none. Where the plugin limits each client's memory (MPS),
  it takes the equal part and cannot have more. Where it is not known how a node shares, replicas are only counted, and
  nothing is promised of them.
- An instance that can sleep takes its asleep memory, and its group the room that the one which is awake needs beyond
  that (`awake_rooms`). Where the plugin limits each client's memory there are no turns: it takes the equal part, which
  must suffice while it is awake.
- A node that slices its GPUs under the plain resource name (MIG strategy `single`) gives one slice to a pod: slices
  cannot talk to each other over NVLink, so whoever asks for several GPUs is not sent there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Index, Mask
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.gpu_sharing import ISOLATIONS, Sharing
from dovetail.core.model import GPU, MAX_GPUS, WHOLE_GPU_MILLI
from dovetail.core.placing.layout import BASE_ROW, FRACTION_ROWS, LIMIT_ROW, OPENS_ROW, TAKEN_ROW, UNIT_ROW
from dovetail.core.reasons import Reason

Take = NDArray[np.int64]
"""The part of one GPU; 0 where the shape takes whole GPUs, or none; NOWHERE where it may not have any."""
NOWHERE = 2**31 - 1
_SLICE, _WHOLE, _REPLICA = 0, 1, 2
_VERY_MANY = 2**31
_ALWAYS = 2**62


def take(nodes: Nodes, shape: Shape, index: Index) -> Take | None:
    """None where the shape takes no share anywhere, and nothing of this module keeps it from a node."""
    if not concerns(nodes, shape):
        return None
    asked = _asked(nodes, shape, index)
    taken = np.zeros(len(asked), dtype=np.int64)
    for mask, sharing in _by_sharing(nodes, index):
        # Where no node shares its GPUs that is everywhere.
        where = mask if len(nodes.sharings) > 1 else slice(None)
        count = shape.replicas(sharing) if sharing is not None else 0
        if sharing is not None and count and not sharing.cards:
            taken[where] = NOWHERE if shape.fraction else 0
        elif sharing is not None and count:
            equal = nodes.gpu_whole[index] // sharing.replicas
            taken[where] = (equal if sharing.isolation == "memory" or not shape.fraction else asked)[where]
            if sharing.cards < count:
                taken[where] = NOWHERE
        elif shape.fraction and not shape.gpus:
            opens = sharing is None and not shape.shared
            taken[where] = np.where(nodes.sliced[index], NOWHERE, asked)[where] if opens else NOWHERE
    for _, refused in refusals(nodes, shape, index):
        taken[refused] = NOWHERE
    return taken


def refusals(nodes: Nodes, shape: Shape, index: Index) -> Iterator[tuple[Reason, Mask]]:
    """The nodes that can never give the shape what it asks of a GPU, by reason."""
    if not concerns(nodes, shape):
        return
    request = shape.request
    some = (nodes.allocatable[nodes.resources[GPU], index] > 0) | (nodes.sharing_ids[index] > 0)
    small = some & (_asked(nodes, shape, index) == NOWHERE)
    open_ = np.zeros(len(small), dtype=np.bool_)
    several = nodes.sliced[index] & (shape.gpus > 1)
    for where, sharing in _by_sharing(nodes, index):
        count = shape.replicas(sharing) if sharing is not None else 0
        if sharing is None or not count:
            continue
        if count > 1 and sharing.one_only:
            several = several | where
        if request.isolation and ISOLATIONS.index(sharing.isolation) < ISOLATIONS.index(request.isolation):
            open_ |= where
        if sharing.isolation == "memory":
            memory = request.gpu_memory_mib * sharing.replicas > nodes.gpu_memory_mib[index]
            small = small | (where & (memory | (request.gpu_milli * sharing.replicas > WHOLE_GPU_MILLI)))
    yield Reason.GPU_MEMORY, small
    yield Reason.GPU_ISOLATION, open_
    yield Reason.GPU_PARTS, several


class GpuFractions:
    """What is asked again and again of some nodes, as far as it depends on records alone. In the rows of one array: the
    share that is `taken`; it fits where less than `limit` is left of a GPU; whole GPUs are opened where `opens` is not
    0; how a GPU suits is `base` and what is left of it in multiples of `unit`."""

    __slots__ = ("_opens", "_rows", "_shape")

    def __init__(self, rows: NDArray[np.int64], opens: bool, shape: Shape) -> None:
        self._rows = rows
        self._opens = opens
        self._shape = shape

    @property
    def taken(self) -> Take:
        taken: Take = self._rows[TAKEN_ROW]
        return taken

    @property
    def limit(self) -> NDArray[np.int64]:
        limit: NDArray[np.int64] = self._rows[LIMIT_ROW]
        return limit

    @property
    def rows(self) -> NDArray[np.int64]:
        """All of them, in the order of `placing.layout`."""
        return self._rows

    def at(self, index: Index) -> GpuFractions:
        return GpuFractions(self._rows[:, index], self._opens, self._shape)

    def put(self, index: Index, some: GpuFractions) -> None:
        self._rows[:, index] = some._rows
        self._opens |= some._opens

    def left(self, nodes: Nodes, index: Index) -> NDArray[np.int64]:
        """What the tightest GPU with room for the share would have left, on the nodes of `index`, which are those of
        these parts; a whole GPU's worth or more if there is none."""
        taken, opens = self._rows[TAKEN_ROW], self._rows[OPENS_ROW]
        # Seen without a sign, a GPU with too little left has a huge rest: never the smallest.
        opened = (_parts_left(nodes, self._shape, index) - taken).view(np.uint64).min(axis=0)
        whole = nodes.gpu_whole[index]
        if self._opens:
            whole = whole - np.where(nodes.gpu_free_bits[index] & opens, taken, 0)
        least: NDArray[np.int64] = np.minimum(opened, whole.view(np.uint64)).view(np.int64)
        return least

    def rank(self, least: NDArray[np.int64]) -> NDArray[np.int64]:
        """How a node's GPU suits, from 0 (the best) to 1000, where `least` is the result of `left`: the tightest, a
        slice before a whole GPU is broken; replicas before whole GPUs only where a part is enough for the shape."""
        suits: NDArray[np.int64] = self._rows[BASE_ROW] + least // self._rows[UNIT_ROW]
        return suits


def parts(nodes: Nodes, shape: Shape, index: Index) -> GpuFractions | None:
    """None where the shape takes no share anywhere, and nothing of this module keeps it from a node."""
    taken = take(nodes, shape, index)
    if taken is None:
        return None
    whole, none, sliced = nodes.gpu_whole[index], taken == 0, nodes.sliced[index]
    rows = np.zeros((FRACTION_ROWS, len(taken)), dtype=np.int64)
    rows[TAKEN_ROW] = taken
    limit, opens, base, unit = rows[LIMIT_ROW], rows[OPENS_ROW], rows[BASE_ROW], rows[UNIT_ROW]
    limit[:] = whole
    limit[taken == NOWHERE] = -_ALWAYS
    limit[none] = _ALWAYS
    opens[nodes.sharing_ids[index] == 0] = -1
    if shape.fraction:
        base[none] = WHOLE_GPU_MILLI
        np.floor_divide(whole, WHOLE_GPU_MILLI, out=unit)
        unit[none] = _ALWAYS
    else:
        replicas = replicated(nodes, shape, index)
        base[:] = np.where(replicas, _REPLICA, _WHOLE)
        unit[:] = np.where(replicas, 2 * (whole // WHOLE_GPU_MILLI), _ALWAYS)
    base[sliced] = _SLICE
    unit[sliced] = _ALWAYS
    return GpuFractions(rows, bool(opens.any()), shape)


def replicated(nodes: Nodes, shape: Shape, index: Index) -> Mask:
    """Where what the shape asks for are replicas of shared GPUs."""
    found = np.zeros(len(nodes.sharing_ids[index]), dtype=np.bool_)
    for where, sharing in _by_sharing(nodes, index):
        if sharing is not None and shape.replicas(sharing):
            found |= where
    return found


def copies(nodes: Nodes, shape: Shape, index: Index, taken: Take) -> NDArray[np.int64]:
    """How many pods of the shape find their shares, one after another; very many where it takes none."""
    room = np.maximum(_parts_left(nodes, shape, index), 0) // np.maximum(taken, 1)
    each = nodes.gpu_whole[index] // np.maximum(taken, 1)
    wholes = np.bitwise_count(nodes.gpu_free_bits[index]) * each
    found: NDArray[np.int64] = np.full(len(taken), _VERY_MANY, dtype=np.int64)
    for where, sharing in _by_sharing(nodes, index):
        where = where & (taken > 0)
        if sharing is None:
            found[where] = (room.sum(axis=0) + wholes)[where]
        else:
            seats = np.minimum(room, nodes.gpu_seats[:, index])[:, where]
            found[where] = [_rounds(cards, shape.replicas(sharing)) for cards in seats.T.tolist()]
    return found


def copies_when_empty(nodes: Nodes, shape: Shape) -> NDArray[np.int64]:
    """As `copies`, on every node if nobody held a share of anything, and as if each replica were there more than once:
    how many there are is counted as of any resource."""
    everywhere = slice(0, nodes.size)
    found: NDArray[np.int64] = np.full(nodes.size, _VERY_MANY, dtype=np.int64)
    taken = take(nodes, shape, everywhere)
    if taken is None:
        return found
    each = np.maximum(nodes.gpu_whole - _extras(nodes, shape, everywhere), 0) // np.maximum(taken, 1)
    for where, sharing in _by_sharing(nodes, everywhere):
        where = where & (taken > 0)
        if sharing is None:
            found[where] = (np.minimum(nodes.allocatable[nodes.resources[GPU]], MAX_GPUS) * each)[where]
        else:
            found[where] = (sharing.cards * each // max(shape.replicas(sharing), 1))[where]
    return np.where(taken == NOWHERE, 0, found)


def _rounds(cards: list[int], count: int) -> int:
    """How often `count` different cards can be taken from, where each card can be taken from so often."""
    rounds = sum(cards) // max(count, 1)
    while sum(min(card, rounds) for card in cards) < rounds * count:
        rounds -= 1
    return rounds


def fits(nodes: Nodes, shape: Shape, index: Index, some: GpuFractions, least: NDArray[np.int64]) -> Mask:
    """Where the shape finds its share of a GPU, or of as many different ones as it asks for, or takes none;
    `least` is the result of `GpuFractions.left`."""
    room: Mask = least < some.limit
    if max(shape.gpus, shape.shared) > 1 and nodes.divided:
        for where, sharing in _by_sharing(nodes, index):
            if sharing is not None and (count := shape.replicas(sharing)) > 1:
                enough = (_parts_left(nodes, shape, index) >= some.taken).sum(axis=0) >= count
                room &= ~where | (some.taken == 0) | enough
    return room


def concerns(nodes: Nodes, shape: Shape) -> bool:
    """Whether the shape may take a share anywhere, or be kept from a node by the rules of this module."""
    return bool(shape.fraction or shape.shared or shape.request.isolation or (shape.gpus and nodes.divided))


def _asked(nodes: Nodes, shape: Shape, index: Index) -> NDArray[np.int64]:
    request = shape.request
    if not request.gpu_memory_mib:
        asked: NDArray[np.int64] = nodes.gpu_whole[index] // WHOLE_GPU_MILLI * np.int64(request.gpu_milli)
        return asked
    enough = nodes.gpu_memory_mib[index] >= request.gpu_memory_mib
    kept_mib = request.gpu_asleep_mib or request.gpu_memory_mib
    return np.where(enough, np.int64(kept_mib) * WHOLE_GPU_MILLI, NOWHERE)


def extra(nodes: Nodes, shape: Shape, slot: int) -> int:
    """What the shape takes of each GPU of the slot while it is awake, beyond the result of `take`; 0 where it takes no
    turns."""
    if not shape.request.gpu_asleep_mib:
        return 0
    return int(_extras(nodes, shape, slice(slot, slot + 1))[0])


def left(nodes: Nodes, shape: Shape, slot: int) -> list[int]:
    """What is left for the shape of each GPU that is opened: less where it would need more room to be awake than its
    group has there, and then perhaps less than nothing."""
    found: list[int] = _parts_left(nodes, shape, slice(slot, slot + 1))[:, 0].tolist()
    return found


def _extras(nodes: Nodes, shape: Shape, index: Index) -> NDArray[np.int64]:
    request = shape.request
    found = np.zeros(len(nodes.sharing_ids[index]), dtype=np.int64)
    if request.gpu_asleep_mib:
        for where, sharing in _by_sharing(nodes, index):
            if sharing is not None and sharing.isolation != "memory" and shape.replicas(sharing):
                found[where] = (request.gpu_memory_mib - request.gpu_asleep_mib) * WHOLE_GPU_MILLI
    return found


def _parts_left(nodes: Nodes, shape: Shape, index: Index) -> NDArray[np.int64]:
    parts = nodes.gpu_parts[:, index]
    if not shape.request.gpu_asleep_mib:
        return parts
    slots = range(*index.indices(nodes.size)) if isinstance(index, slice) else index.tolist()
    rooms = nodes.awake_rooms.rooms(shape.request.turn_group, len(parts), slots)
    left_of_each: NDArray[np.int64] = parts - np.maximum(_extras(nodes, shape, index) - rooms, 0)
    return left_of_each


def _by_sharing(nodes: Nodes, index: Index) -> Iterator[tuple[Mask, Sharing | None]]:
    ids = nodes.sharing_ids[index]
    for number, sharing in enumerate(nodes.sharings):
        yield ids == number, sharing
