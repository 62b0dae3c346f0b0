# SPDX-License-Identifier: Apache-2.0
"""The cluster: nodes, the pods placed on them, and everything else that a decision reads.

Rules: every change of a placement goes through `place` and `unplace`. Changes inside a `trial()` are undone unless
kept. `changes` lists what may let a refused workload fit. A pod holds its resources from the moment it is placed, by
this scheduler or another, until it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np

import kubecel
from dovetail.core.cluster.audit import differences
from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.cluster.claims import Claims
from dovetail.core.cluster.fabric import Fabric
from dovetail.core.cluster.gpus import Gpus
from dovetail.core.cluster.host_ports import HostPorts
from dovetail.core.cluster.kubelets import Kubelets
from dovetail.core.cluster.link_speeds import LinkSpeeds
from dovetail.core.cluster.maintenances import Maintenances
from dovetail.core.cluster.mix import Mix
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.peers import Peers
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.quarantines import Quarantines
from dovetail.core.cluster.reallocation import Reallocation
from dovetail.core.cluster.rejections import Rejections
from dovetail.core.cluster.shapes import Shape, Shapes
from dovetail.core.cluster.slices import Slices
from dovetail.core.cluster.spares import NOTHING_OPEN, Spares
from dovetail.core.cluster.trials import Evicted, Undoable
from dovetail.core.cluster.volumes import Volumes
from dovetail.core.decisions import ClaimGrant, VolumePick
from dovetail.core.dra.extended import claim_key
from dovetail.core.dra.types import ClaimSpec
from dovetail.core.fabric import FABRIC_NAME, FabricSpeeds
from dovetail.core.model import Node, Pod, Request


class GpuChoice(Protocol):
    """The part of a policy's scoring that a cluster needs."""

    def share_gpu(self, cluster: Cluster, slot: int, pod: Pod, share: int) -> int:
        """Which GPU of the node a pod gets its share of; -1 where none has room."""


class Cluster(Undoable):
    """`placements` by pod uid; `on_slot[slot]` the uids there; `nominated` the pending pods with a nominated node;
    `avoided[uid]` the nodes that refused the pod, with the time until when ("" stands for every node). `now_ms` is the
    time of the step."""

    def __init__(self, choice: GpuChoice, fabric: tuple[str, ...] = (), quarantine: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.nodes = Nodes()
        self.quarantines = Quarantines(self.nodes, *quarantine)
        self.shapes = Shapes(self.nodes)
        self.maintenances = Maintenances(self.nodes, self.shapes)
        self.fabric = Fabric(self.nodes, fabric)
        self.link_speeds = LinkSpeeds(self.nodes, self.fabric)
        self.peers = Peers()
        self.volumes = Volumes(self.nodes)
        self.kubelets = Kubelets(self.nodes)
        self.slices = Slices(self.nodes)
        self.claims = Claims(self.nodes, kubecel.compile)
        self.rejections = Rejections()
        self.mix = Mix()
        self.now_ms = 0
        self.placements: dict[str, Placement] = {}
        self.on_slot: dict[int, dict[str, None]] = {}
        self.spares = Spares(self.nodes, self.fabric, self.claims.offers, self.placements, self.on_slot)
        self.gpus = Gpus(self.nodes, self.kubelets, self.placements, self.on_slot, partial(choice.share_gpu, self))
        self.ports = HostPorts()
        self.nominated: dict[str, Pod] = {}
        self.avoided: dict[str, dict[str, int]] = {}
        self.learned: dict[object, Any] = {}
        """What a scoring remembers of the cluster, by the scoring."""
        self.reallocation = Reallocation(
            self.nodes, self.kubelets, self.gpus, self.slices, self.placements, self.on_slot, self.changes
        )

    def put_node(self, node: Node) -> None:
        slot = self.nodes.slot_of(node.name)
        before, offered = self.reallocation.devices(slot), len(self.nodes.resources)
        if self.nodes.put(node):
            self.changes.announce(ClusterChange.NODE)
            if len(self.nodes.resources) > offered:
                self._measure()
            self.rejections.forget_node(node.name)
            self.claims.node_changed(slot)
            if self.reallocation.devices(slot) != before:
                self.reallocation.allocate(slot)

    def _measure(self) -> None:
        """Nodes offer resources that no node offered before: pods may request them."""
        nodes = self.nodes
        asking = [placement for placement in self.placements.values() if placement.shape.unoffered]
        for placement in asking:
            nodes.free[: placement.shape.width, placement.slot] += placement.shape.need[:, 0]
        for shape in dict.fromkeys([*self.shapes.known(), *[placement.shape for placement in asking]]):
            if any(name in nodes.resources for name in shape.unoffered):
                shape.measure(nodes)
        for placement in asking:
            nodes.free[: placement.shape.width, placement.slot] -= placement.shape.need[:, 0]
        # Rows start over.
        nodes.resizes += 1

    def remove_node(self, name: str) -> None:
        """Pods that are bound to the node stay counted there until they are gone."""
        slot = self.nodes.slots.get(name)
        if slot is not None and self.nodes.remove(name):
            self.rejections.forget_node(name)
            self.claims.node_changed(slot)
            self.reallocation.allocate(slot)
            self._vacate_if_gone(slot)

    def seat(self, pod: Pod, slot: int, picks: tuple[VolumePick, ...]) -> None:
        """Place a bound pod on its node. The order of the events does not change which devices the pods get."""
        self.reallocation.seated(self.place(pod, slot, picks))

    def leave(self, slot: int) -> None:
        """A pod is gone from a slot: another pod there may get its devices. If the node is gone too and no pod is left
        on it, the slot can be used again."""
        self.reallocation.left(slot)
        self._vacate_if_gone(slot)

    def put_fabric(self, record: FabricSpeeds) -> None:
        self.link_speeds.put(record)
        if record.name == FABRIC_NAME:
            self.spares.put(record.spares)

    def remove_fabric(self, name: str) -> None:
        self.link_speeds.remove(name)
        if name == FABRIC_NAME:
            self.spares.put(())

    def settle(self, promised: frozenset[int] = NOTHING_OPEN) -> None:
        """Allocate devices again where pods have changed, quarantine nodes and hold spares back, after a batch of
        changes. The slots that are `promised` to waiting pods are no spares."""
        self.reallocation.settle()
        freed = self.quarantines.settle()
        if self.spares.settle(promised) or freed:
            self.changes.announce(ClusterChange.NODE)

    def placed(self) -> Iterator[tuple[Pod, int]]:
        for placement in self.placements.values():
            yield placement.pod, placement.slot

    def shape_of(self, pod: Pod) -> Shape:
        """The shape of a waiting pod: its request, with what its claims still want, and the nodes that it may use if it
        starts now."""
        shape = self.shape_with(pod, self.claims.wanted(pod) if pod.device_claims else ())
        if self.spares.open_gangs and (opened := self.spares.opened(pod.gang)):
            shape = self.shapes.beside_spares(shape, opened)
        return self.maintenances.shape_of(shape, pod, self.now_ms) if self.nodes.closings_ms else shape

    def shape_with(self, pod: Pod, wants: tuple[ClaimSpec, ...]) -> Shape:
        """The shape of a waiting pod if these are the claims that still want something."""
        shape = self.shapes.of(pod.request, wants)
        if pod.containers and (classes := self.claims.classes_for(pod)):
            return self.shapes.of_several(shape, classes, pod.containers, self.claims.made(pod))
        return shape

    def shapes_of(self, pods: Iterable[Pod]) -> list[Shape]:
        """As `shape_of`, of each of the pods."""
        if self.nodes.closings_ms:
            return list(map(self.shape_of, pods))
        shapes: list[Shape] = []
        opening = bool(self.spares.open_gangs)
        plain: Request | None = None
        for pod in pods:
            # Pods of a gang mostly request the same, and without claims the request alone is the shape.
            if pod.request is not plain or pod.device_claims or pod.containers or (opening and pod.gang):
                shape = self.shape_of(pod)
                alone = pod.device_claims or pod.containers or (opening and pod.gang)
                plain = None if alone else pod.request
            shapes.append(shape)
        return shapes

    def place(self, pod: Pod, slot: int, picks: tuple[VolumePick, ...] = (), shape: Shape | None = None) -> Placement:
        """Place one pod on a slot, whether it fits or not (it may be bound there). Devices for its claims are allocated
        where `shape` wants some."""
        self.place_equal(shape or self.shapes.without(pod.request, pod.by_claim), [pod], {slot: 1})
        placement = self.placements[pod.uid]
        if picks:
            placement.picks = picks
            self.volumes.assume(picks)
        return placement

    def place_equal(self, shape: Shape, pods: list[Pod], where: dict[int, int]) -> None:
        """Place pods of one shape on slots, so many on each, in order. The arrays are updated once per slot, not
        once per pod."""
        if shape.stand_ins is not None:
            self._place_by_form(shape, pods, where)
            return
        nodes, at = self.nodes, 0
        on_slot, undo, placed, placements = self.on_slot, self.undo, self.placements, list[Placement]()
        for slot, count in where.items():
            here = on_slot.get(slot)
            if here is None:
                here = on_slot[slot] = {}
            for _ in range(count):
                placement = Placement(pods[at], slot, shape)
                placements.append(placement)
                placed[placement.uid] = placement
                here[placement.uid] = None
                if undo is not None:
                    undo.append(placement)
                at += 1
        if len(placements) == 1:
            slot = placements[0].slot
            nodes.free[: shape.width, slot] -= shape.need[:, 0]
            nodes.amounts_journal.add(slot)
            self.gpus.hold(placements[0], shape)
        else:
            slots = np.fromiter(where, np.int64, len(where))
            several = len(where) < len(placements)
            times = np.fromiter(where.values(), np.int64, len(where)) if several else 1
            nodes.free[: shape.width, slots] -= shape.need * times
            nodes.amounts_journal.extend(where)
            self.gpus.hold_equal(placements, shape, slots)
        if shape.slices:
            for placement in placements:
                self.slices.hold(placement, shape)
        if shape.wants:
            for placement in placements:
                placement.grants = self.claims.hold(placement.slot, placement.pod, shape)
        counted = bool(self.peers.counts or shape.request.ports or shape.request.anti_affinity)
        for placement in placements:
            if counted or placement.pod.claims:
                self._count(placement.pod, placement.slot)

    def _place_by_form(self, shape: Shape, pods: list[Pod], where: dict[int, int]) -> None:
        forms: dict[int, tuple[Shape, list[Pod], dict[int, int]]] = {}
        at = 0
        for slot, count in where.items():
            form = self.shapes.at(shape, slot)
            _, some, slots = forms.setdefault(form.id, (form, [], {}))
            some += pods[at : at + count]
            slots[slot] = count
            at += count
        for form, some, slots in forms.values():
            self.place_equal(form, some, slots)

    def unplace(self, uid: str) -> None:
        """Take a pod off its node; nothing happens if it is on none."""
        placement = self.placements.get(uid)
        if placement is not None:
            self._take_off(placement)

    def evict(self, uid: str) -> None:
        """Take a placed pod off its node inside a trial. When the trial is undone the pod is put back as it was, with
        the same devices and grants."""
        assert self.undo is not None, "evict() outside of a trial"
        placement = self.placements[uid]
        books, order = self.kubelets.books.get(placement.slot), tuple(self.on_slot[placement.slot])
        slices, grants = placement.slices, placement.grants
        heirs = self._take_off(placement)
        vacated = self.claims.vacate(placement.pod) if placement.pod.device_claims or placement.pod.by_claim else []
        self.undo.append(Evicted(placement, slices, grants, books, order, heirs, vacated))

    def _put_back(self, evicted: Evicted) -> None:
        """Undo an eviction; whatever happened after it is undone already."""
        placement, nodes = evicted.placement, self.nodes
        slot, pod, shape = placement.slot, placement.pod, placement.shape
        self.placements[pod.uid] = placement
        self.on_slot[slot] = dict.fromkeys(evicted.order)
        nodes.free[: shape.width, slot] -= shape.need[:, 0]
        nodes.amounts_journal.add(slot)
        self.gpus.hold_as_before(placement)
        if evicted.books is not None:
            self.kubelets.reopen(slot, evicted.books)
        if evicted.slices:
            self.slices.hold_as_before(placement, evicted.slices)
        self.claims.occupy(evicted.vacated)
        inherited = {grant.claim for heir, _ in evicted.heirs for grant in heir.grants}
        for heir, grants in reversed(evicted.heirs):
            heir.grants = grants
        if evicted.grants:
            self.claims.assume([grant for grant in evicted.grants if grant.claim not in inherited], claim_key(pod))
        placement.grants = evicted.grants
        self.volumes.assume(placement.picks)
        self._count(pod, slot)

    def _take_off(self, placement: Placement) -> list[tuple[Placement, tuple[ClaimGrant, ...]]]:
        """Free what a placement holds. Returns the placements that inherited grants, with their grants before."""
        slot, pod, shape, nodes = placement.slot, placement.pod, placement.shape, self.nodes
        uid = pod.uid
        del self.placements[uid]
        nodes.free[: shape.width, slot] += shape.need[:, 0]
        self.gpus.free(placement)
        if placement.entry is not None:
            self.kubelets.leave(slot, placement.entry)
        if placement.slices:
            self.slices.free(placement)
        heirs = self._give_back(placement)
        self._uncount(pod, slot)
        self.volumes.forget(placement.picks)
        nodes.amounts_journal.add(slot)
        self.changes.announce(ClusterChange.POD)
        del self.on_slot[slot][uid]
        if not self.on_slot[slot]:
            del self.on_slot[slot]
        return heirs

    def _give_back(self, placement: Placement) -> list[tuple[Placement, tuple[ClaimGrant, ...]]]:
        """Release what was allocated for the claims of a pod that leaves. A claim that other pods use stays allocated,
        and its grant goes to one of them. Returns these placements, with their grants before."""
        inherited = []
        for grant in placement.grants:
            heirs = (self.placements.get(uid) for uid in self.claims.users(grant.claim))
            heir = next((other for other in heirs if other is not None), None)
            if heir is None:
                self.claims.release((grant,))
            else:
                inherited.append((heir, heir.grants))
                heir.grants += (grant,)
        return inherited

    def recount(self, placement: Placement, pod: Pod) -> None:
        """A placed pod changed its labels or volumes, not its request: it keeps its place and its GPUs."""
        self._uncount(placement.pod, placement.slot)
        placement.pod = pod
        self._count(pod, placement.slot)
        self.changes.announce(ClusterChange.POD)

    def exchange(self, places: list[Placement], pods: list[Pod]) -> None:
        """Give these pods the places, which they have in another order. A place keeps its GPUs and its entry in the
        kubelet's books. They must be equal to all that counts pods by slot (see `placing.ranks`)."""
        for place in places:
            del self.on_slot[place.slot][place.uid]
        for place, pod in zip(places, pods, strict=True):
            place.pod, place.uid = pod, pod.uid
            self.placements[pod.uid] = place
            self.on_slot[place.slot][pod.uid] = None

    def unplace_if_bound(self, pod: Pod) -> None:
        """Take a bound pod off its node before its request is replaced; an assumed one keeps its place."""
        if pod.node:
            self.unplace(pod.uid)

    def _vacate_if_gone(self, slot: int) -> None:
        if self.nodes.records[slot] is None and slot not in self.on_slot and self.nodes.names[slot]:
            self.nodes.vacate(self.nodes.names[slot])

    def reverse(self, done: Placement | Evicted) -> None:
        if isinstance(done, Placement):
            self.unplace(done.uid)
        else:
            self._put_back(done)

    def _count(self, pod: Pod, slot: int) -> None:
        self.ports.add(pod.request, slot)
        if (self.peers.counts or pod.request.anti_affinity) and self.peers.add(pod, slot):
            self.changes.announce(ClusterChange.POD)
        if pod.claims:
            self.volumes.add(pod, slot)

    def _uncount(self, pod: Pod, slot: int) -> None:
        self.ports.remove(pod.request, slot)
        self.peers.remove(pod, slot)
        self.volumes.remove(pod.uid)

    def check(self) -> list[str]:
        """Recount everything from the placements; each difference in a sentence, none where the state is sound."""
        return differences(self.nodes, self.placements, self.on_slot, self.kubelets, self.slices, self.peers)
