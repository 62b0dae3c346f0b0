# SPDX-License-Identifier: Apache-2.0
"""Fragmentation gradient descent, as published (Weng et al., "Beware of Fragmentation", USENIX ATC'23).

The fragmentation F of a node is the idle GPU, in milli-GPU, that pods of the typical mix could not use, weighted by the
frequency of each class of the mix. If a class does not fit the node now (model, cores, or too few GPUs with room), all
idle GPU of the node counts; otherwise the remainders smaller than the request of the class count. A pod goes where F
falls most or rises least. As in the artifact, the score is the sigmoid of the decrease, scaled to 0-100 and truncated.

The classes are the most frequent requests (cores, GPUs, models; not memory) that cover 95 % of all pods of the
workload, so the policy has the mix in advance. For classes without GPUs, all idle GPU counts as fragmented.

Computation: let `usable_k` be the idle GPU of a node on GPUs with room for k milli-GPU. A class that fits the node
contributes idle - usable_k, any other class contributes idle. So F = idle - sum_k W_k usable_k, where W_k is the weight
of the fitting classes with k milli per GPU: a table by model set, idle cores and number of GPUs with room for k.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.selection import matches_affinity
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import CPU, GPU, WHOLE_GPU_MILLI, Pod, Request
from dovetail.core.placing.scores import ScoredOffer, Scores

_COVERED_PERCENT = 95
_STEPS_MILLI = [1000 * math.log(score / (100 - score)) for score in range(1, 100)]
"""The least decrease of F for a score of 1, 2 ... 99: the inverse of the sigmoid."""


def typical(requests: Iterable[Request]) -> list[tuple[Request, int]]:
    """The most frequent classes with their counts."""
    classes: Counter[Request] = Counter()
    for request, count in Counter(requests).items():
        amounts = tuple((name, amount) for name, amount in request.resources if name in (CPU, GPU))
        kept = Request(amounts, request.gpu_milli, node_selector=request.node_selector, node_terms=request.node_terms)
        classes[kept] += count
    total = classes.total()
    covered, chosen = 0, []
    for request, count in classes.most_common():
        if 100 * covered >= _COVERED_PERCENT * total:
            break
        chosen.append((request, count))
        covered += count
    return chosen


class FragmentationGradientDescent:
    """Scores for one cluster. The table of weights is cached until a node changes."""

    def __init__(self, requests: Iterable[Request]) -> None:
        mix = typical(requests)
        self._all = sum(count for _, count in mix)
        self._mix = [(request, count) for request, count in mix if _gpus(request)]
        self._steps = np.array([math.ceil(step * self._all) for step in _STEPS_MILLI], dtype=np.int64)
        self._sizes = np.array(sorted({_per_gpu(request) for request, _ in self._mix}), dtype=np.int32)
        self._cores = np.array(sorted({_cpu_milli(request) for request, _ in self._mix}), dtype=np.int64)
        self._seen = (-1, -1)
        self._weights: NDArray[np.int64]
        """Flat table, by node kind, size, number of core thresholds that the idle cores reach, number of GPUs."""
        self._places: NDArray[np.int64]
        """The offset in `_weights` of the kind of each node slot, for each size."""
        self._counts = 0

    def version(self, cluster: Cluster) -> int:
        return 0

    def native(self, cluster: Cluster) -> None:
        return None

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        falls = self._falls(cluster, offer.shape, offer.index, offer.left)
        best: Scores = np.searchsorted(self._steps, falls.max(axis=0), side="right")
        return best

    def best(self, score: Scores, first: int, pod: Pod) -> int:
        return first

    def share_gpu(self, cluster: Cluster, slot: int, pod: Pod, share: int) -> int:
        nodes, shape = cluster.nodes, cluster.shapes.of(pod.request)
        index = slice(slot, slot + 1)
        # The pod's cores are already subtracted.
        falls = self._falls(cluster, shape, index, nodes.free[: shape.width, index], taken=shape.need)
        fits = falls[:, 0] > _NEVER
        scores = np.where(fits, np.searchsorted(self._steps, falls[:, 0], side="right"), -1)
        return int(scores.argmax()) if fits.any() else -1

    def _falls(
        self, cluster: Cluster, shape: Shape, index: Index, left: NDArray[np.int64], taken: NDArray[np.int64] | int = 0
    ) -> NDArray[np.int64]:
        """The decrease of F, times the number of typical pods, by GPU that holds the share, and slot.

        `left` is what the nodes would have left with the pod; `taken` is the part of its request that is already
        subtracted from the free amounts."""
        nodes = cluster.nodes
        self._catch_up(cluster)
        row = nodes.resources[CPU]
        cpu_left, cpu_free = left[row], nodes.free[row, index] + (taken[row] if isinstance(taken, np.ndarray) else 0)
        room = nodes.room_milli(index)
        roomy = room >= self._sizes[:, None, None]
        count, usable = roomy.sum(axis=1, dtype=np.int32), (room * roomy).sum(axis=1, dtype=np.int32)
        places = self._places[:, index]
        before = self._usable(places, cpu_free, count, usable)
        milli = shape.request.gpu_milli
        if not milli:
            # A free GPU has room for every size.
            count, usable = np.maximum(count - shape.gpus, 0), usable - WHOLE_GPU_MILLI * shape.gpus
            after = self._usable(places, cpu_left, count, usable)
            return np.asarray(after - before + self._all * WHOLE_GPU_MILLI * shape.gpus)[None]
        rest = room - np.int32(milli)
        still = rest >= self._sizes[:, None, None]
        count = count[:, None] - roomy + still
        usable = usable[:, None] - room * roomy + rest * still
        after = self._usable(places[:, None], cpu_left, count, usable)
        return np.where(rest >= 0, after - before + self._all * milli, _NEVER)

    def _usable(
        self,
        places: NDArray[np.int64],
        cpu_milli: NDArray[np.int64],
        count: NDArray[np.int32],
        usable: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """Idle GPU that the typical pods could use, weighted and summed over the sizes."""
        reached = self._cores.searchsorted(cpu_milli, side="right") * self._counts
        weights = self._weights.take(places + reached + count)
        total: NDArray[np.int64] = (weights * usable).sum(axis=0)
        return total

    def _catch_up(self, cluster: Cluster) -> None:
        """Rebuild the table of weights if a node has changed."""
        nodes = cluster.nodes
        now = (nodes.records_journal.end, nodes.resizes)
        if now == self._seen:
            return
        self._seen = now
        everywhere = slice(0, nodes.size)
        selections = list(dict.fromkeys(_selection(request) for request, _ in self._mix))
        allowed = np.array([matches_affinity(nodes, selection, everywhere) for selection in selections])
        kinds, of_slot = np.unique(allowed.reshape(len(selections), -1), axis=1, return_inverse=True)
        self._counts = len(nodes.gpu_parts) + 1
        sizes, reached, counts = len(self._sizes), len(self._cores) + 1, self._counts
        weights = np.zeros((kinds.shape[1], sizes, reached, counts), dtype=np.int64)
        for request, weight in self._mix:
            size = int(self._sizes.searchsorted(_per_gpu(request)))
            enough = int(self._cores.searchsorted(_cpu_milli(request))) + 1
            weights[kinds[selections.index(_selection(request))], size, enough:, _gpus(request) :] += weight
        self._weights = weights.reshape(-1)
        self._places = (of_slot.reshape(-1) * sizes + np.arange(sizes)[:, None]) * (reached * counts)


_NEVER = -(2**60)


def _gpus(request: Request) -> int:
    """The number of GPUs on which the request needs room."""
    return 1 if request.gpu_milli else dict(request.resources).get(GPU, 0)


def _per_gpu(request: Request) -> int:
    return request.gpu_milli or WHOLE_GPU_MILLI


def _cpu_milli(request: Request) -> int:
    return dict(request.resources).get(CPU, 0)


def _selection(request: Request) -> Request:
    """The part of a class that selects GPU models."""
    return Request(node_selector=request.node_selector, node_terms=request.node_terms)
