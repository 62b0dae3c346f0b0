# SPDX-License-Identifier: Apache-2.0
"""A scoring that learns the mix of pods, and keeps the rest of the cluster worth most to the pods that are expected.

Rules: the score is the change of a node's worth (`worth.Worth`). Ties go to the node with the least GPU left, then the
least CPU, then the least memory. For pods of several GPUs their closeness weighs more, as under `Tightest`, and for
claims the kind of devices that a node would provide. The worth is learned again after every pod up to 64 pods, then
after each further eighth of the pods, at most 500. Until `learn_from` pods have come, `Tightest` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.gpu_choice import tightest_gpu
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.choose import PERMILLE
from dovetail.core.model import CPU, MEMORY, WHOLE_GPU_MILLI, Pod
from dovetail.core.placing import kernel
from dovetail.core.placing.layout import CHANGE_BITS, EXPECTED_FILL, FEWER_BITS, FILL_FIRST_BITS, MOST_CHANGE
from dovetail.core.placing.scores import ScoredOffer, Scores, Tightest
from dovetail.core.placing.worth import Worth, emptiest_first, gpu_counts, gpu_rooms, gpu_units

if TYPE_CHECKING:
    from dovetail.core.placing._kernel import Worth as NativeWorth

_EVERY_POD_UP_TO = 64
_MOST_BETWEEN = 500
_NODES_PER_LOOK = 32
"""Prices are checked again after one change for so many nodes."""
_UNIT_BITS, _LARGEST, _PLACE_BITS = np.array(EXPECTED_FILL, dtype=np.int64).T[:, :, None]


class _Learned:
    """What was learned about one cluster: the worth of idle room, and for each slot the kind of the node, its GPUs,
    their idle parts and its worth."""

    def __init__(self, cluster: Cluster, version: int) -> None:
        seen = cluster.mix.seen
        self.version = version
        self.due = seen + (min(seen // 8, _MOST_BETWEEN) if seen >= _EVERY_POD_UP_TO else 0)
        self.worth = Worth(cluster)
        nodes = cluster.nodes
        everywhere = slice(0, nodes.size)
        kinds = self.worth.kinds_of(nodes, everywhere)
        assert kinds is not None, "a kind of node that was not there at the time of learning"
        self.kinds = kinds
        self.gpus = gpu_counts(nodes, everywhere)
        self.resizes = nodes.resizes
        self._records_seen, self._priced_at = nodes.records_journal.end, -1
        self._changes_between = max(1, nodes.used // _NODES_PER_LOOK)
        self._with_prices(nodes)

    def _with_prices(self, nodes: Nodes) -> None:
        self.native = kernel.worth(nodes, self.worth.learned(self.kinds, self.gpus))
        self._amounts_seen = -1

    def follow(self, nodes: Nodes) -> bool:
        """Catch up with changed nodes. Returns False where a node is of a kind that was not learned."""
        changed = nodes.records_journal.since(self._records_seen)
        if changed is None or nodes.resizes != self.resizes:
            return False
        if len(changed):
            kinds = self.worth.kinds_of(nodes, changed)
            if kinds is None:
                return False
            self.kinds[changed] = kinds
            self.gpus[changed] = gpu_counts(nodes, changed)
            self._records_seen = nodes.records_journal.end
        return True

    def reprice(self, nodes: Nodes) -> None:
        """Count the places of the priced classes again, and compute new prices where they changed enough."""
        end = nodes.amounts_journal.end
        if end < self._priced_at + self._changes_between or not self.worth.prices.moving:
            return
        changed: Index | None = nodes.amounts_journal.since(self._priced_at) if self._priced_at >= 0 else None
        if changed is None:
            changed = slice(0, nodes.size)
            self._places = np.zeros((self.worth.prices.count, nodes.size), dtype=np.int64)
            self._idle_milli = np.zeros(nodes.size, dtype=np.int64)
        rooms, cpu_milli = gpu_rooms(nodes, changed), nodes.free[nodes.resources[CPU], changed]
        kinds = self.kinds[changed]
        self._places[:, changed] = self.worth.prices.places(kinds, cpu_milli, rooms)
        self._idle_milli[changed] = np.where(kinds < self.worth.kinds, rooms.sum(axis=1), 0)
        self._priced_at = end
        if self.worth.prices.reprice(self._places.sum(axis=1).tolist(), int(self._idle_milli.sum())):
            self.version += 1
            self._with_prices(nodes)

    def measure(self, nodes: Nodes) -> None:
        """Catch up with the idle amounts."""
        if self._amounts_seen == nodes.amounts_journal.end:
            return
        changed: Index | None = nodes.amounts_journal.since(self._amounts_seen) if self._amounts_seen >= 0 else None
        if changed is None:
            changed = slice(0, nodes.size)
            self.rooms = np.empty((nodes.size, len(nodes.gpu_parts)), dtype=np.int64)
            self.before = np.empty(nodes.size, dtype=np.int64)
        self.rooms[changed] = gpu_rooms(nodes, changed)
        cpu_milli = nodes.free[nodes.resources[CPU], changed]
        self.before[changed] = self.worth.of(self.kinds[changed], self.gpus[changed], cpu_milli, self.rooms[changed])
        self._amounts_seen = nodes.amounts_journal.end


@dataclass(frozen=True)
class ExpectedFill:
    """A scoring for any number of clusters: what it learns is kept in each cluster."""

    learn_from: int = 64

    def version(self, cluster: Cluster) -> int:
        seen = cluster.mix.seen
        if seen < self.learn_from:
            return 0
        learned = cluster.learned.get(self)
        if learned is None or seen > learned.due or not learned.follow(cluster.nodes):
            learned = cluster.learned[self] = _Learned(cluster, learned.version + 1 if learned is not None else 1)
        else:
            learned.reprice(cluster.nodes)
        return learned.version

    def native(self, cluster: Cluster) -> tuple[NativeWorth, ...] | None:
        learned = cluster.learned.get(self)
        if learned is None:
            return ()
        return (learned.native,) if learned.native is not None else None

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        learned, shape = cluster.learned.get(self), offer.shape
        if learned is None:
            return Tightest().scores(cluster, offer)
        change = np.clip(_change(cluster.nodes, learned, offer), -MOST_CHANGE, MOST_CHANGE)
        looseness = _looseness(cluster.nodes, offer)
        first = None if offer.close is None else PERMILLE - offer.close
        if first is None and not shape.fraction:
            first = offer.share
        score: Scores = (change << CHANGE_BITS) - looseness
        if first is not None:
            score = (change << CHANGE_BITS - FEWER_BITS) - (looseness >> FEWER_BITS) - (first << FILL_FIRST_BITS)
        return score

    def best(self, score: Scores, first: int, pod: Pod) -> int:
        return first

    def share_gpu(self, cluster: Cluster, slot: int, pod: Pod, share: int) -> int:
        nodes = cluster.nodes
        learned: _Learned | None = cluster.learned.get(self)
        if learned is None or slot >= len(learned.kinds):
            return tightest_gpu(nodes, slot, share)
        if learned.native is not None:
            return learned.native.share_gpu(slot, share)
        # The pod's CPU is taken already.
        here = np.array([slot])
        left = gpu_units(nodes, here)
        rooms, _, worth = _shared(nodes, learned, here, nodes.free[nodes.resources[CPU], here], np.array([share]))
        if not len(worth):
            return -1
        # Of equals the tightest, which comes last.
        chosen = rooms[len(worth) - 1 - int(worth[::-1].argmax())]
        return int((left[0] == chosen).argmax())


def _change(nodes: Nodes, learned: _Learned, offer: ScoredOffer) -> Scores:
    """The change of each node's worth, where the pod fits and the node has divisible GPUs."""
    learned.measure(nodes)
    shape, slots = offer.shape, np.arange(nodes.size)[offer.index]
    cpu_left = offer.left[nodes.resources[CPU]]
    fits = (offer.left >= shape.floor).all(axis=0) & (learned.kinds[slots] < learned.worth.kinds)
    change = np.zeros(len(slots), dtype=np.int64)
    here = np.flatnonzero(fits)
    if not len(here):
        return change
    slots, cpu_left = slots[here], cpu_left[here]
    if shape.fraction and not shape.gpus:
        rooms, where, worth = _shared(nodes, learned, slots, cpu_left, _asked(nodes, shape, slots))
        after = learned.before[slots] - MOST_CHANGE
        np.maximum.at(after, where, worth)
    else:
        idle = learned.rooms[slots]
        rooms = np.zeros_like(idle)
        rooms[:, : idle.shape[1] - shape.gpus] = idle[:, shape.gpus :]
        after = learned.worth.of(learned.kinds[slots], learned.gpus[slots], cpu_left, rooms)
    change[here] = after - learned.before[slots]
    return change


def _shared(
    nodes: Nodes, learned: _Learned, slots: NDArray[np.int64], cpu_milli: Scores, share: Scores
) -> tuple[NDArray[np.int64], NDArray[np.intp], Scores]:
    """Each way to take a share of a GPU on these nodes: what was left of the GPU, the index of the node, and the node's
    worth afterwards. The emptiest GPU of each node comes first; of GPUs with equal amounts left there is one."""
    left = emptiest_first(gpu_units(nodes, slots))
    last = np.ones(left.shape, dtype=np.bool_)
    last[:, :-1] = left[:, :-1] != left[:, 1:]
    where, gpu = np.nonzero(last & (left >= share[:, None]))
    after, ways = left[where], np.arange(len(where))
    rooms = after[ways, gpu]
    after[ways, gpu] -= share[where]
    after = emptiest_first(after // (nodes.gpu_whole[slots] // WHOLE_GPU_MILLI)[where, None])
    slots = slots[where]
    return rooms, where, learned.worth.of(learned.kinds[slots], learned.gpus[slots], cpu_milli[where], after)


def _asked(nodes: Nodes, shape: Shape, slots: NDArray[np.int64]) -> Scores:
    """The share that a pod of the shape takes of a GPU, in the units of `Nodes.gpu_whole`."""
    request = shape.request
    if request.gpu_memory_mib:
        return np.full(len(slots), request.gpu_memory_mib * WHOLE_GPU_MILLI, dtype=np.int64)
    asked: Scores = nodes.gpu_whole[slots] // WHOLE_GPU_MILLI * np.int64(request.gpu_milli)
    return asked


def _looseness(nodes: Nodes, offer: ScoredOffer) -> Scores:
    left = offer.left
    idle_milli = nodes.room_milli(offer.index).sum(axis=0)
    amounts = np.stack([idle_milli, left[nodes.resources[CPU]], left[nodes.resources[MEMORY]]])
    units = np.minimum(np.maximum(amounts >> _UNIT_BITS, 0), _LARGEST)
    looseness: Scores = (units << _PLACE_BITS).sum(axis=0)
    return looseness
