# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of its node each placed pod holds.

Rules: a pod gets the GPUs of its record if they are free; else those that the node's kubelet will allocate, else the
best by the node's links, else the lowest numbers. A pod may have a part of a GPU, or of several. When a node's devices
are allocated again, pods with a record come first, and the others get what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import gpu_choice, shares
from dovetail.core.cluster.kubelets import Kubelets
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.placement import Placement, indices, written_bits
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.choose import choices
from dovetail.core.model import GPU, WHOLE_GPU_MILLI, Pod

_REMEMBERED = 65_536


class Gpus:
    """`placements` (by pod uid) and `on_slot` (the uids on each slot) are the cluster's own. `share_gpu` decides which
    GPU of a slot a pod gets a share of; -1 where none has room."""

    def __init__(
        self,
        nodes: Nodes,
        kubelets: Kubelets,
        placements: dict[str, Placement],
        on_slot: dict[int, dict[str, None]],
        share_gpu: Callable[[int, Pod, int], int],
    ) -> None:
        self._nodes = nodes
        self._kubelets = kubelets
        self._placements = placements
        self._on_slot = on_slot
        self._share_gpu = share_gpu
        self._shares: dict[tuple[int, int, int, bool], int] = {}
        self._locked: dict[tuple[int, int], int] = {}
        """What is left of shared GPUs of which all replicas are taken, by slot and GPU."""

    def hold_equal(self, placements: list[Placement], shape: Shape, slots: NDArray[np.int64]) -> None:
        """As `hold`, for each of these pods of one shape, slot by slot."""
        nodes = self._nodes
        written = [placement for placement in placements if placement.pod.devices]
        if written or self._kubelets.books or shares.concerns(nodes, shape):
            for placement in placements:
                self.hold(placement, shape)
            return
        if not shape.gpus:
            return
        left: list[int] = nodes.gpu_free_bits[slots].tolist()
        layouts: list[int] = nodes.layout_ids[slots].tolist()
        at, slot = -1, -1
        layout, free, chosen = -1, 0, 0
        for placement in placements:
            if placement.slot != slot:
                at, slot = at + 1, placement.slot
            # The same GPUs are free on most of the nodes that a gang gets.
            if layouts[at] != layout or left[at] != free:
                layout, free = layouts[at], left[at]
                chosen = self._best_gpus(slot, free, shape)
            placement.gpu_bits = chosen
            left[at] = free & ~chosen
        nodes.gpu_free_bits[slots] = left

    def hold(self, placement: Placement, shape: Shape) -> None:
        """Give a pod its GPUs: those that were written down for it if they are free, else those that the kubelet will
        give it, else the best; fewer than it wants where the node has fewer."""
        slot, nodes, kubelets = placement.slot, self._nodes, self._kubelets
        free, written = int(nodes.gpu_free_bits[slot]), self._written(placement, shape)
        answer = kubelets.ask(slot, shape) if kubelets.books else None
        if answer is not None:
            allocated = written or answer.gpu_bits
            if written or (allocated.bit_count() == shape.gpus and not allocated & ~free):
                placement.entry = kubelets.enter(slot, answer, allocated)
                written = allocated
            elif not nodes.gpu_count(slot):
                # What the kubelet counts there, if anything, are parts of GPUs.
                placement.entry = kubelets.enter(slot, answer, 0)
        if shares.concerns(nodes, shape) and (share := self._share_of(slot, shape)):
            self._hold_shares(placement, shape, share)
        elif shape.gpus:
            placement.gpu_bits = written or self._best_gpus(slot, free, shape)
            nodes.gpu_free_bits[slot] = free & ~placement.gpu_bits

    def honours(self, placement: Placement) -> bool:
        """Whether nothing is to be chosen for the pod: it gets no GPUs, or those that were written down for it."""
        slot, shape = placement.slot, placement.shape
        if shares.concerns(self._nodes, shape) and (share := self._share_of(slot, shape)):
            return bool(self._written_shares(placement, shape, share))
        return not shape.gpus or bool(self._written(placement, shape))

    def _written(self, placement: Placement, shape: Shape) -> int:
        """The whole GPUs that were written down for a pod; 0 for none, and where it cannot have them now."""
        written = written_bits(placement.pod) if placement.pod.devices else 0
        if written.bit_count() != shape.gpus:
            return 0
        missing = written & ~int(self._nodes.gpu_free_bits[placement.slot])
        return 0 if missing and missing & ~self._out(placement.slot) else written

    def _out(self, slot: int) -> int:
        """The GPUs that the node offers no more and that no pod holds. A pod that has one keeps it."""
        held = (self._placements[uid].gpu_bits for uid in self._on_slot.get(slot, ()))
        return self._nodes.gpus_out(slot) & ~sum(held)

    def _best_gpus(self, slot: int, free: int, shape: Shape) -> int:
        """By the node's layout; the lowest ones where it is not known, or where the world gave what we would not."""
        nodes = self._nodes
        layout = nodes.layout(slot) if len(nodes.layouts) > 1 else None
        chosen = 0
        if layout is not None:
            table = choices(layout, shape.request.nvlink_required, shape.request.near_nics)
            chosen = table.choose(free, shape.gpus)
        if not chosen and shape.gpus >= free.bit_count():
            chosen = free
        elif not chosen:
            left = free
            for _ in range(shape.gpus):
                left &= left - 1
            chosen = free ^ left
        return chosen

    def _share_of(self, slot: int, shape: Shape) -> int:
        """What a pod of a shape that `shares` concerns takes of each GPU that it gets a part of there; 0 where it gets
        whole ones."""
        nodes = self._nodes
        kind = shape.id, int(nodes.sharing_ids[slot]), int(nodes.gpu_memory_mib[slot]), bool(nodes.sliced[slot])
        share = self._shares.get(kind)
        if share is None:
            if len(self._shares) >= _REMEMBERED:
                self._shares.clear()
            taken = shares.take(nodes, shape, slice(slot, slot + 1))
            share = 0 if taken is None or taken[0] == shares.NOWHERE else int(taken[0])
            self._shares[kind] = share
        return share

    def _hold_shares(self, placement: Placement, shape: Shape, share: int) -> None:
        """Those that were written down if they have room, else the tightest, or of several the ones that most such
        pods could still take from, so that the last of them find different ones; none where there is no room."""
        nodes, slot = self._nodes, placement.slot
        sharing = nodes.sharing(slot)
        extra = shares.extra(nodes, shape, slot)
        chosen = self._written_shares(placement, shape, share)
        if not chosen and sharing is None:
            chosen = (self._share_gpu(slot, placement.pod, share),)
        elif not chosen and sharing is not None:
            chosen = gpu_choice.replicas(nodes, slot, shares.left(nodes, shape, slot), share, shape.replicas(sharing))
        self._take_shares(placement, sum(1 << gpu for gpu in chosen if gpu >= 0), share, extra)

    def _written_shares(self, placement: Placement, shape: Shape, share: int) -> tuple[int, ...]:
        """The GPUs that were written down for a pod that gets a share of each; none where it cannot have that now."""
        slot, sharing = placement.slot, self._nodes.sharing(placement.slot)
        chosen = indices(written_bits(placement.pod))
        if len(chosen) != (shape.replicas(sharing) if sharing is not None else 1):
            return ()
        left = shares.left(self._nodes, shape, slot)
        return chosen if all(self._room(slot, gpu, left) >= share for gpu in chosen) else ()

    def _room(self, slot: int, gpu: int, left: list[int]) -> int:
        nodes = self._nodes
        if gpu >= len(left):
            return 0
        opens = nodes.sharing(slot) is None and int(nodes.gpu_free_bits[slot]) >> gpu & 1
        return left[gpu] or (int(nodes.gpu_whole[slot]) if opens else 0)

    def _take_shares(self, placement: Placement, gpus: int, share: int, extra: int) -> None:
        """A part of each of these GPUs, with what its group needs more of it for the one that is awake; one that was
        whole counts as whole no more."""
        nodes, slot, group = self._nodes, placement.slot, placement.shape.request.turn_group
        sharing, free = nodes.sharing(slot), int(nodes.gpu_free_bits[slot])
        placement.share_bits, placement.share, placement.extra = gpus, share, extra
        placement.share_milli = -(-(share + extra) * WHOLE_GPU_MILLI // int(nodes.gpu_whole[slot]))
        for gpu in indices(gpus):
            if free >> gpu & 1:
                nodes.gpu_free_bits[slot] &= ~(1 << gpu)
                nodes.gpu_parts[gpu, slot] = nodes.gpu_whole[slot] - share
                nodes.free[nodes.resources[GPU], slot] -= 1
                self._kubelets.set_aside(slot, 1 << gpu)
            else:
                nodes.gpu_parts[gpu, slot] -= share
            if extra:
                nodes.gpu_parts[gpu, slot] -= nodes.awake_rooms.add(group, slot, gpu, extra)
            if sharing is not None:
                nodes.gpu_seats[gpu, slot] -= 1
                if not nodes.gpu_seats[gpu, slot]:
                    # Nobody else gets in, however much is left.
                    self._locked[slot, gpu] = int(nodes.gpu_parts[gpu, slot])
                    nodes.gpu_parts[gpu, slot] = 0

    def free(self, placement: Placement) -> None:
        nodes, slot = self._nodes, placement.slot
        nodes.gpu_free_bits[slot] |= placement.gpu_bits & int(nodes.gpu_bits[slot])
        group = placement.shape.request.turn_group
        for gpu in indices(placement.share_bits):
            shared = bool(nodes.gpu_seats[gpu, slot]) or (slot, gpu) in self._locked
            left = self._locked.pop((slot, gpu), int(nodes.gpu_parts[gpu, slot])) + placement.share
            if placement.extra:
                left += nodes.awake_rooms.remove(group, slot, gpu, placement.extra)
            if shared:
                nodes.gpu_seats[gpu, slot] += 1
            elif left == nodes.gpu_whole[slot]:
                left = 0
                nodes.gpu_free_bits[slot] |= 1 << gpu
                nodes.free[nodes.resources[GPU], slot] += 1
                self._kubelets.take_back(slot, 1 << gpu)
            nodes.gpu_parts[gpu, slot] = left

    def hold_as_before(self, placement: Placement) -> None:
        """Restore what a placement held before it was released; no other has held it since."""
        if placement.share_bits:
            self._take_shares(placement, placement.share_bits, placement.share, placement.extra)
        self._nodes.gpu_free_bits[placement.slot] &= ~placement.gpu_bits

    def hold_exactly(self, devices: Mapping[str, tuple[int, ...]]) -> None:
        """Allocate these GPUs, by index, to the placed pods."""
        for slot in self._on_slot:
            for placement in self.let_go(slot):
                held, shape = devices[placement.pod.uid], placement.shape
                share, bits = 0, sum(1 << gpu for gpu in held)
                if shares.concerns(self._nodes, shape):
                    share = self._share_of(slot, shape)
                if share:
                    self._take_shares(placement, bits, share, shares.extra(self._nodes, shape, slot))
                placement.gpu_bits = 0 if share else bits
                self._nodes.gpu_free_bits[slot] &= ~placement.gpu_bits
                answer = self._kubelets.ask(slot, shape)
                if answer is not None:
                    placement.entry = self._kubelets.enter(slot, answer, placement.gpu_bits)

    def let_go(self, slot: int) -> list[Placement]:
        """Make every GPU of the slot wholly free, and begin its kubelet's books anew. Returns the pods there, which
        have to hold theirs again."""
        nodes = self._nodes
        placements = [self._placements[uid] for uid in self._on_slot.get(slot, ())]
        for placement in placements:
            self.free(placement)
        nodes.reset_gpus(slot)
        nodes.amounts_journal.add(slot)
        for placement in placements:
            placement.gpu_bits, placement.share_bits, placement.entry = 0, 0, None
        self._kubelets.open(slot)
        return placements
