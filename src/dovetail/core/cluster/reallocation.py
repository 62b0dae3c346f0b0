# SPDX-License-Identifier: Apache-2.0
"""The allocation of a node's devices to the pods placed there, anew when the devices or the binds have changed.

Rules: devices that a bind wrote come first; among pods that claim the same, and among the others, the first bound. So
the order of the events does not change which devices a pod gets. A step marks the slots, and `settle` allocates their
devices once.
"""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core.cluster import shares
from dovetail.core.cluster.changes import Changes, ClusterChange
from dovetail.core.cluster.gpus import Gpus
from dovetail.core.cluster.kubelets import Kubelets
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.slices import Slices


class Reallocation:
    """`placements` (by pod uid) and `on_slot` (the uids on each slot) are the cluster's own. `unsettled` are the slots
    whose devices `settle` allocates again."""

    def __init__(
        self, nodes: Nodes, kubelets: Kubelets, gpus: Gpus, slices: Slices, placements: dict[str, Placement],
        on_slot: dict[int, dict[str, None]], changes: Changes,
    ) -> None:  # fmt: skip
        self._nodes = nodes
        self._kubelets = kubelets
        self._gpus = gpus
        self._slices = slices
        self._placements = placements
        self._on_slot = on_slot
        self._changes = changes
        self.unsettled: dict[int, None] = {}

    def devices(self, slot: int) -> tuple[object, ...]:
        """All that the allocation of GPUs on the node depends on."""
        nodes = self._nodes
        memory_mib, sliced = int(nodes.gpu_memory_mib[slot]), bool(nodes.sliced[slot])
        record = nodes.records[slot]
        return (
            nodes.gpu_count(slot), nodes.layout(slot), nodes.inventory(slot), nodes.sharing(slot), memory_mib, sliced,
            record.mig if record is not None else (), nodes.gpus_out(slot),
        )  # fmt: skip

    def seated(self, placement: Placement) -> None:
        """A bound pod was placed on its node: with other pods there, the order of their binds decides."""
        slot, shape = placement.slot, placement.shape
        if len(self._on_slot[slot]) > 1 and (
            shape.gpus or shape.slices or shares.concerns(self._nodes, shape) or slot in self._kubelets.books
        ):
            self.unsettled[slot] = None

    def left(self, slot: int) -> None:
        """A pod is gone from a slot: another pod there may get now what it requests, or what its bind wrote."""
        if any(self._lacks(self._placements[uid]) for uid in self._on_slot.get(slot, ())):
            self.unsettled[slot] = None

    def _lacks(self, placement: Placement) -> bool:
        """Whether the pod has less than it requests, or other devices than its bind wrote."""
        pod, shape, held = placement.pod, placement.shape, placement.devices
        if shape.gpus > len(held) or (shape.fraction and not held) or (pod.devices or held) != held:
            return True
        if shape.slices and (not placement.slices or pod.instances not in ((), self._slices.instances(placement))):
            return True
        return placement.entry is None and placement.slot in self._kubelets.books and shape.request.managed is not None

    def settle(self) -> None:
        """Allocate the devices again on slots where the pods, or the devices that their binds wrote, have changed."""
        for slot in self.unsettled:
            before = self._allocated(slot)
            self.allocate(slot)
            if self._allocated(slot) != before:
                self._changes.announce(ClusterChange.DEVICES)
        self.unsettled.clear()

    def _allocated(self, slot: int) -> tuple[object, ...]:
        nodes = self._nodes
        placements = [self._placements[uid] for uid in self._on_slot.get(slot, ())]
        # With as much left of each GPU, the rooms of groups may be on others.
        turns = [(placement.uid, placement.share_bits) for placement in placements if placement.extra]
        return (
            int(nodes.gpu_free_bits[slot]), nodes.gpu_parts[:, slot].tolist(), int(nodes.book_numbers[slot]),
            self._slices.used.get(slot), turns,
        )  # fmt: skip

    def allocate(self, slot: int) -> None:
        """Allocate all devices of the slot again."""
        placements = sorted([self._placements[uid] for uid in self._on_slot.get(slot, ())], key=_precedence)
        for placement in placements:
            if not placement.pod.node:
                # Its bind is under way, with these devices.
                devices, instances = placement.devices or None, self._slices.instances(placement)
                placement.pod = replace(placement.pod, devices=devices, instances=instances)
        self._gpus.let_go(slot)
        self._slices.let_go(slot, placements)
        others = []
        for placement in placements:
            if self._gpus.honours(placement) and self._slices.honours(placement):
                self._hold(placement)
            else:
                others.append(placement)
        for placement in others:
            self._hold(placement)

    def _hold(self, placement: Placement) -> None:
        self._gpus.hold(placement, placement.shape)
        if placement.shape.slices:
            self._slices.hold(placement, placement.shape)


def _precedence(placement: Placement) -> tuple[bool, int, int, str]:
    """Pods by the time of their bind, pods that are not bound last. The order of the events does not change it."""
    pod = placement.pod
    return not pod.node, pod.bound_ms, pod.created_ms, pod.uid
