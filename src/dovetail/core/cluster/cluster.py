# SPDX-License-Identifier: Apache-2.0
"""The cluster: nodes, who holds what on them, and everything a decision reads, behind apply, place, trial and check.

Rules: every change goes through `apply` (what the world told) or `place`/`unplace` (what was decided). Changes under
`trial()` are undone unless kept. `freed` grows when something that was refused may fit now. A pod holds its room
from the moment it is placed, whoever placed it, until it is told to be gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.fabric import Fabric
from dovetail.core.cluster.kubelets import Entry, Kubelets
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.peers import Peers
from dovetail.core.cluster.rejections import Rejections
from dovetail.core.cluster.shapes import Shape, Shapes
from dovetail.core.cluster.volumes import Volumes
from dovetail.core.decisions import VolumePick
from dovetail.core.devices.choose import choices
from dovetail.core.model import GPU, WHOLE_GPU_MILLI, Node, Pod

if TYPE_CHECKING:
    from dovetail.core.placing.scores import Scoring


@lru_cache(maxsize=4096)
def indices(bits: int) -> tuple[int, ...]:
    """The set bits, lowest first."""
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)


def written_bits(pod: Pod) -> int:
    """The GPUs that were written down for a pod, as bits; 0 for none."""
    return sum(1 << gpu for gpu in set(pod.devices)) if pod.devices else 0


@dataclass(slots=True)
class Placement:
    """A pod on a node slot. `gpu_bits` are the whole GPUs it holds, `gpu_share` the one that it has a part of (-1:
    none). `picks` are the volumes chosen with it. `entry` is its entry in the kubelet's books."""

    pod: Pod
    slot: int
    gpu_bits: int = 0
    gpu_share: int = -1
    picks: tuple[VolumePick, ...] = ()
    entry: Entry | None = None

    @property
    def devices(self) -> tuple[int, ...]:
        return (self.gpu_share,) if self.gpu_share >= 0 else indices(self.gpu_bits)


class Trial:
    """What happened since the trial began; undone at the end of the `with` block unless `keep()` was called."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = False

    def keep(self) -> None:
        self.kept = True


class Cluster:
    """`placements` by pod uid; `on_slot[slot]` the uids there; `ports[(protocol, port)][slot]` the host IPs in use;
    `nominated` the pending pods with a nominated node; `avoided[uid]` the nodes that refused the pod, with the time
    until when ("" stands for every node). `now_ms` is the time of the step."""

    def __init__(self, scoring: Scoring, fabric: tuple[str, ...] = ()) -> None:
        self._scoring = scoring
        self.nodes = Nodes()
        self.shapes = Shapes(self.nodes)
        self.fabric = Fabric(self.nodes, fabric)
        self.peers = Peers()
        self.volumes = Volumes(self.nodes)
        self.kubelets = Kubelets(self.nodes)
        self.rejections = Rejections()
        self.now_ms = 0
        self.placements: dict[str, Placement] = {}
        self.on_slot: dict[int, dict[str, None]] = {}
        self.ports: dict[tuple[str, int], dict[int, Counter[str]]] = {}
        self.nominated: dict[str, Pod] = {}
        self.avoided: dict[str, dict[str, int]] = {}
        self.freed = 0
        self._undo: list[str] | None = None

    def put_node(self, node: Node) -> None:
        slot = self.nodes.slot_of(node.name)
        before = self.nodes.gpu_count(slot), self.nodes.layout(slot), self.nodes.inventory(slot)
        if self.nodes.put(node):
            self.freed += 1
            self.rejections.forget_node(node.name)
            if (self.nodes.gpu_count(slot), self.nodes.layout(slot), self.nodes.inventory(slot)) != before:
                self._hold_again(slot)

    def remove_node(self, name: str) -> None:
        """Pods that are still told to be there keep their place in the books until they are told to be gone."""
        slot = self.nodes.slots.get(name)
        if slot is not None and self.nodes.remove(name):
            self.rejections.forget_node(name)
            self._hold_again(slot)
            self.vacate_if_gone(slot)

    def placed(self) -> Iterator[tuple[Pod, int]]:
        return ((p.pod, p.slot) for p in self.placements.values())

    def place(self, pod: Pod, slot: int, picks: tuple[VolumePick, ...] = ()) -> Placement:
        """Put one pod on a slot, whether it fits or not (the world may have decided so)."""
        self.place_alike(self.shapes.of(pod.request), [(pod, slot)])
        placement = self.placements[pod.uid]
        if picks:
            placement.picks = picks
            self.volumes.assume(picks)
        return placement

    def place_alike(self, shape: Shape, where: Sequence[tuple[Pod, int]]) -> None:
        """Put pods of one shape on slots. The arrays are updated once per slot, not once per pod."""
        nodes = self.nodes
        if len(where) == 1:
            slot = where[0][1]
            nodes.free[: shape.width, slot] -= shape.need[:, 0]
            nodes.amounts_journal.add(slot)
        else:
            counts = Counter([slot for _, slot in where])
            nodes.free[: shape.width, list(counts)] -= shape.need * np.array(list(counts.values()), dtype=np.int64)
            nodes.amounts_journal.extend(counts)
        for pod, slot in where:
            placement = self.placements[pod.uid] = Placement(pod, slot)
            self.on_slot.setdefault(slot, {})[pod.uid] = None
            self._hold_devices(placement, shape, written_bits(pod))
            self._count(pod, slot)
            if self._undo is not None:
                self._undo.append(pod.uid)

    def unplace(self, uid: str) -> None:
        """Take a pod off its node; nothing happens if it is on none."""
        placement = self.placements.pop(uid, None)
        if placement is None:
            return
        slot, pod, nodes = placement.slot, placement.pod, self.nodes
        shape = self.shapes.of(pod.request)
        nodes.free[: shape.width, slot] += shape.need[:, 0]
        self._free_gpus(placement, shape)
        if placement.entry is not None:
            self.kubelets.leave(slot, uid, placement.entry)
        self._uncount(pod, slot)
        self.volumes.forget(placement.picks)
        nodes.amounts_journal.add(slot)
        self.freed += 1
        del self.on_slot[slot][uid]
        if not self.on_slot[slot]:
            del self.on_slot[slot]

    def recount(self, placement: Placement, pod: Pod) -> None:
        """A placed pod changed in what others see of it, not in what it asks for: it stays, with the same GPUs."""
        self._uncount(placement.pod, placement.slot)
        placement.pod = pod
        self._count(pod, placement.slot)
        self.freed += 1

    def unplace_if_bound(self, pod: Pod) -> None:
        """Take a bound pod off its node before its request is replaced; an assumed one keeps its place."""
        if pod.node:
            self.unplace(pod.uid)

    def vacate_if_gone(self, slot: int) -> None:
        """A pod left: if its node is gone too and nobody is on it, the slot can be used again."""
        if self.nodes.records[slot] is None and slot not in self.on_slot and self.nodes.names[slot]:
            self.nodes.vacate(self.nodes.names[slot])

    @contextmanager
    def trial(self) -> Iterator[Trial]:
        """A change to the state that is undone unless kept. Trials nest; a kept inner one belongs to the outer."""
        outer, freed = self._undo, self.freed
        log: list[str] = []
        self._undo = log
        trial = Trial()
        try:
            yield trial
        finally:
            self._undo = outer
            if trial.kept:
                if outer is not None:
                    outer.extend(log)
            else:
                for uid in reversed(log):
                    self.unplace(uid)
                self.freed = freed

    def mark(self) -> int:
        """A point inside the running trial to `rewind` to."""
        assert self._undo is not None, "mark() outside of a trial"
        return len(self._undo)

    def rewind(self, mark: int) -> None:
        """Undo what the running trial did since `mark`."""
        assert self._undo is not None, "rewind() outside of a trial"
        freed = self.freed
        while len(self._undo) > mark:
            self.unplace(self._undo.pop())
        self.freed = freed

    def _count(self, pod: Pod, slot: int) -> None:
        for port in pod.request.ports:
            self.ports.setdefault((port.protocol, port.port), {}).setdefault(slot, Counter())[port.ip] += 1
        if (self.peers.counts or pod.request.anti_affinity) and self.peers.add(pod, slot):
            self.freed += 1
        if pod.claims:
            self.volumes.add(pod, slot)

    def _uncount(self, pod: Pod, slot: int) -> None:
        for port in pod.request.ports:
            used = self.ports[port.protocol, port.port]
            used[slot][port.ip] -= 1
            used[slot] = +used[slot]
            if not used[slot]:
                del used[slot]
        self.peers.remove(pod, slot)
        self.volumes.remove(pod.uid)

    def _hold_devices(self, placement: Placement, shape: Shape, written: int) -> None:
        """Give a pod its GPUs: those that were written down for it if they are free, else those that the kubelet will
        give it, else the best; fewer than it wants where the node has fewer."""
        slot, free = placement.slot, int(self.nodes.gpu_free_bits[placement.slot])
        if written.bit_count() != shape.gpus or written & ~free:
            written = 0
        if self.kubelets.decides(slot, shape):
            given = written or self.kubelets.ask(slot, shape).gpu_bits
            if given.bit_count() == shape.gpus and not given & ~free:
                placement.entry = self.kubelets.enter(slot, shape, placement.pod.uid, given)
                written = given
        if shape.request.gpu_milli:
            self._hold_share(placement, shape.request.gpu_milli)
        elif shape.gpus:
            placement.gpu_bits = written or self._best_gpus(slot, free, shape)
            self.nodes.gpu_free_bits[slot] = free & ~placement.gpu_bits

    def _best_gpus(self, slot: int, free: int, shape: Shape) -> int:
        """By the node's layout; the lowest ones where it is not known, or where the world gave what we would not."""
        layout = self.nodes.layout(slot)
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
        nodes, slot, written = self.nodes, placement.slot, written_bits(placement.pod)
        gpu = written.bit_length() - 1
        if written.bit_count() == 1 and gpu < len(nodes.gpu_part_milli):
            room = int(nodes.gpu_part_milli[gpu, slot]) or WHOLE_GPU_MILLI * (int(nodes.gpu_free_bits[slot]) >> gpu & 1)
            if room >= milli:
                self._take_share(placement, gpu, milli)
                return
        gpu = self._scoring.share_gpu(self, slot, placement.pod)
        if gpu >= 0:
            self._take_share(placement, gpu, milli)

    def _take_share(self, placement: Placement, gpu: int, milli: int) -> None:
        """A part of one GPU; one that was whole counts as whole no more."""
        nodes, slot = self.nodes, placement.slot
        placement.gpu_share = gpu
        free = int(nodes.gpu_free_bits[slot])
        if free >> gpu & 1:
            nodes.gpu_free_bits[slot] = free & ~(1 << gpu)
            nodes.gpu_part_milli[gpu, slot] = WHOLE_GPU_MILLI - milli
            nodes.free[nodes.resources[GPU], slot] -= 1
        else:
            nodes.gpu_part_milli[gpu, slot] -= milli

    def _free_gpus(self, placement: Placement, shape: Shape) -> None:
        nodes, slot = self.nodes, placement.slot
        nodes.gpu_free_bits[slot] |= placement.gpu_bits
        if placement.gpu_share >= 0:
            parts = nodes.gpu_part_milli[:, slot]
            parts[placement.gpu_share] += shape.request.gpu_milli
            if parts[placement.gpu_share] == WHOLE_GPU_MILLI:
                parts[placement.gpu_share] = 0
                nodes.gpu_free_bits[slot] |= 1 << placement.gpu_share
                nodes.free[nodes.resources[GPU], slot] += 1

    def _hold_again(self, slot: int) -> None:
        """The node has other devices now: hand them out anew to the pods on it, in the order they came."""
        for placement in self._let_go(slot):
            shape = self.shapes.of(placement.pod.request)
            self._hold_devices(placement, shape, written_bits(placement.pod))

    def hold_exactly(self, devices: Mapping[str, tuple[int, ...]]) -> None:
        """Give every placed pod the GPUs of its node that it is told to hold, by index."""
        for slot in self.on_slot:
            for placement in self._let_go(slot):
                held, shape = devices[placement.pod.uid], self.shapes.of(placement.pod.request)
                if shape.request.gpu_milli:
                    for gpu in held:
                        self._take_share(placement, gpu, shape.request.gpu_milli)
                    continue
                placement.gpu_bits = sum(1 << gpu for gpu in held)
                self.nodes.gpu_free_bits[slot] &= ~placement.gpu_bits
                if self.kubelets.decides(slot, shape):
                    placement.entry = self.kubelets.enter(slot, shape, placement.pod.uid, placement.gpu_bits)

    def _let_go(self, slot: int) -> list[Placement]:
        """Make every GPU of the slot wholly free. Returns the pods there, in the order they came."""
        nodes = self.nodes
        placements = [self.placements[uid] for uid in self.on_slot.get(slot, ())]
        shared = {placement.gpu_share for placement in placements if placement.gpu_share >= 0}
        nodes.free[nodes.resources[GPU], slot] += len(shared)
        nodes.reset_gpus(slot)
        nodes.amounts_journal.add(slot)
        for placement in placements:
            placement.gpu_bits, placement.gpu_share, placement.entry = 0, -1, None
        self.kubelets.open(slot)
        return placements

    def check(self) -> list[str]:
        """Recount everything from the placements; each difference in a sentence, none where the state is sound."""
        nodes = self.nodes
        free = nodes.allocatable.copy()
        bits = np.zeros_like(nodes.gpu_free_bits)
        shared: Counter[tuple[int, int]] = Counter()
        wrong: list[str] = []
        for slot in range(len(nodes.records)):
            bits[slot] = (1 << nodes.gpu_count(slot)) - 1
        for uid, placement in self.placements.items():
            slot, shape = placement.slot, self.shapes.of(placement.pod.request)
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
        for slot, books in self.kubelets.books.items():
            entered = {uid for uid in self.on_slot.get(slot, ()) if self.placements[uid].entry is not None}
            gpus = sum(self.placements[uid].gpu_bits for uid in entered)
            if entered != books.held.pods.keys() or gpus != books.held.devices.get(GPU, 0):
                wrong.append(
                    f"books of slot {slot}: {sorted(books.held.pods)} with GPUs {gpus:b}, but {sorted(entered)} is true"
                )
        listed = {uid: slot for slot, uids in self.on_slot.items() for uid in uids}
        if listed != {uid: p.slot for uid, p in self.placements.items()}:
            wrong.append("the list of pods by slot differs from the placements")
        for matcher, count in self.peers.counts.items():
            real = Counter(slot for pod, slot in self.placed() if self.peers.picks(matcher, pod))
            if real != count.pods:
                wrong.append(f"peer counts of {matcher}: {dict(count.pods)} but {dict(real)} is true")
        return wrong


def _differences(what: str, true: NDArray[np.integer], kept: NDArray[np.integer]) -> list[str]:
    slots = np.flatnonzero((true != kept).reshape(-1, true.shape[-1]).any(axis=0))
    return [f"{what} of slot {slot}: {kept[..., slot]} but {true[..., slot]} is true" for slot in slots]
