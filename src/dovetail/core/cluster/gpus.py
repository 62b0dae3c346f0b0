# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of its node each placed pod holds.

Rules: what was written down for a pod is held again if it is free; else what the node's kubelet will give out, else the
best by the node's wiring, else the lowest numbers. A share is a part of one GPU. When a node's devices change, they are
handed out anew to the pods on it, in the order they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.core.cluster.placement import Placement, written_bits
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.choose import choices
from dovetail.core.model import GPU, WHOLE_GPU_MILLI

if TYPE_CHECKING:
    from dovetail.core.cluster.cluster import Cluster
    from dovetail.core.placing.scores import Scoring


class Gpus:
    def __init__(self, cluster: Cluster, scoring: Scoring) -> None:
        self._cluster = cluster
        self._scoring = scoring

    def hold(self, placement: Placement, shape: Shape) -> None:
        """Give a pod its GPUs: those that were written down for it if they are free, else those that the kubelet will
        give it, else the best; fewer than it wants where the node has fewer."""
        slot, written = placement.slot, written_bits(placement.pod)
        free = int(self._cluster.nodes.gpu_free_bits[slot])
        if written.bit_count() != shape.gpus or written & ~free:
            written = 0
        if self._cluster.kubelets.decides(slot, shape):
            given = written or self._cluster.kubelets.ask(slot, shape).gpu_bits
            if given.bit_count() == shape.gpus and not given & ~free:
                placement.entry = self._cluster.kubelets.enter(slot, shape, placement.pod.uid, given)
                written = given
        if shape.request.gpu_milli:
            self._hold_share(placement, shape.request.gpu_milli)
        elif shape.gpus:
            placement.gpu_bits = written or self._best_gpus(slot, free, shape)
            self._cluster.nodes.gpu_free_bits[slot] = free & ~placement.gpu_bits

    def _best_gpus(self, slot: int, free: int, shape: Shape) -> int:
        """By the node's layout; the lowest ones where it is not known, or where the world gave what we would not."""
        layout = self._cluster.nodes.layout(slot)
        chosen = 0
        if layout is not None:
            table = choices(layout, shape.request.nvlink_required, shape.request.near_nics)
            chosen = table.choose(free, shape.gpus)
        if not chosen:
            left = free
            for _ in range(min(shape.gpus, free.bit_count())):
                left &= left - 1
            chosen = free ^ left
        return chosen

    def _hold_share(self, placement: Placement, milli: int) -> None:
        nodes, slot, written = self._cluster.nodes, placement.slot, written_bits(placement.pod)
        gpu = written.bit_length() - 1
        if written.bit_count() == 1 and gpu < len(nodes.gpu_part_milli):
            room = int(nodes.gpu_part_milli[gpu, slot]) or WHOLE_GPU_MILLI * (int(nodes.gpu_free_bits[slot]) >> gpu & 1)
            if room >= milli:
                self._take_share(placement, gpu, milli)
                return
        gpu = self._scoring.share_gpu(self._cluster, slot, placement.pod)
        if gpu >= 0:
            self._take_share(placement, gpu, milli)

    def _take_share(self, placement: Placement, gpu: int, milli: int) -> None:
        """A part of one GPU; one that was whole counts as whole no more."""
        nodes, slot = self._cluster.nodes, placement.slot
        placement.gpu_share = gpu
        free = int(nodes.gpu_free_bits[slot])
        if free >> gpu & 1:
            nodes.gpu_free_bits[slot] = free & ~(1 << gpu)
            nodes.gpu_part_milli[gpu, slot] = WHOLE_GPU_MILLI - milli
            nodes.free[nodes.resources[GPU], slot] -= 1
        else:
            nodes.gpu_part_milli[gpu, slot] -= milli

    def free(self, placement: Placement, shape: Shape) -> None:
        nodes, slot = self._cluster.nodes, placement.slot
        nodes.gpu_free_bits[slot] |= placement.gpu_bits
        if placement.gpu_share >= 0:
            parts = nodes.gpu_part_milli[:, slot]
            parts[placement.gpu_share] += shape.request.gpu_milli
            if parts[placement.gpu_share] == WHOLE_GPU_MILLI:
                parts[placement.gpu_share] = 0
                nodes.gpu_free_bits[slot] |= 1 << placement.gpu_share
                nodes.free[nodes.resources[GPU], slot] += 1

    def hold_again(self, slot: int) -> None:
        """The node has other devices now: hand them out anew to the pods on it, in the order they came."""
        for placement in self._let_go(slot):
            shape = self._cluster.shapes.of(placement.pod.request)
            self.hold(placement, shape)

    def hold_exactly(self, devices: Mapping[str, tuple[int, ...]]) -> None:
        """Give every placed pod the GPUs of its node that it is told to hold, by index."""
        for slot in self._cluster.on_slot:
            for placement in self._let_go(slot):
                held, shape = devices[placement.pod.uid], self._cluster.shapes.of(placement.pod.request)
                milli = shape.request.gpu_milli
                for gpu in held if milli else ():
                    self._take_share(placement, gpu, milli)
                placement.gpu_bits = 0 if milli else sum(1 << gpu for gpu in held)
                self._cluster.nodes.gpu_free_bits[slot] &= ~placement.gpu_bits
                if self._cluster.kubelets.decides(slot, shape):
                    placement.entry = self._cluster.kubelets.enter(slot, shape, placement.pod.uid, placement.gpu_bits)

    def _let_go(self, slot: int) -> list[Placement]:
        """Make every GPU of the slot wholly free. Returns the pods there, in the order they came."""
        nodes = self._cluster.nodes
        placements = [self._cluster.placements[uid] for uid in self._cluster.on_slot.get(slot, ())]
        shared = {placement.gpu_share for placement in placements if placement.gpu_share >= 0}
        nodes.free[nodes.resources[GPU], slot] += len(shared)
        nodes.reset_gpus(slot)
        nodes.amounts_journal.add(slot)
        for placement in placements:
            placement.gpu_bits, placement.gpu_share, placement.entry = 0, -1, None
        self._cluster.kubelets.open(slot)
        return placements
