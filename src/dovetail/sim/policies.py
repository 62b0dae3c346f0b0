# SPDX-License-Identifier: Apache-2.0
"""The placement policies of simulations: Dovetail's own, and the baselines of the FGD paper.

The baselines follow the published artifact (Weng et al., "Beware of Fragmentation", USENIX ATC'23;
hkust-adsl/kubernetes-scheduler-simulator, pkg/simulator/plugin): scores are integers from 0 to 100, and the first node
in the seeded order of the simulation wins a tie. The preferences of a pod still come first; the pods of the artifact's
traces have none. Unlike the artifact, scores are computed from integers, not from floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from operator import or_

import numpy as np

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.gpu_choice import tightest_gpu
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import CPU, GPU, WHOLE_GPU_MILLI, Pod, Request
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.placing.scores import ScoredOffer, Scores, Scoring, Tightest
from dovetail.sim.fgd import FragmentationGradientDescent

_LARGEST_CPU_MILLI = 128_000
_LARGEST_GPU_MILLI = 8_000
"""The largest node of the published cluster. The baselines divide amounts by it."""
_MOST_GPUS = 62
"""Pods with this many GPUs or more are of one kind, so that the kinds fit into the bits of an integer."""


class _Published:
    """The common part of the baselines: the first node wins a tie; a share goes to the tightest GPU."""

    def version(self, cluster: Cluster) -> int:
        return 0

    def native(self, cluster: Cluster) -> None:
        return None

    def best(self, score: Scores, first: int, pod: Pod) -> int:
        return first

    def share_gpu(self, cluster: Cluster, slot: int, pod: Pod, share: int) -> int:
        return tightest_gpu(cluster.nodes, slot, share)


class BestFit(_Published):
    """The node with the least cores and GPUs left, each as a fraction of the largest node."""

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        per_core = _LARGEST_CPU_MILLI // _LARGEST_GPU_MILLI
        unused = offer.left[cluster.nodes.resources[CPU]]
        unused = unused + per_core * (cluster.nodes.room_milli(offer.index).sum(axis=0) - asked_milli(offer.shape))
        best: Scores = (100 * 2 * _LARGEST_CPU_MILLI - 100 * unused) // (2 * _LARGEST_CPU_MILLI)
        return best


class DotProduct(_Published):
    """The node with the smallest dot product of idle cores and GPUs with the request (Tetris, SIGCOMM'14), which keeps
    nodes with much free capacity."""

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        nodes = cluster.nodes
        cpu_milli = int(offer.shape.need[nodes.resources[CPU], 0])
        per_core_squared = (_LARGEST_CPU_MILLI // _LARGEST_GPU_MILLI) ** 2
        product = nodes.free[nodes.resources[CPU], offer.index] * cpu_milli
        product += per_core_squared * asked_milli(offer.shape) * cluster.nodes.room_milli(offer.index).sum(axis=0)
        best: Scores = (100 * _LARGEST_CPU_MILLI**2 - 50 * product) // _LARGEST_CPU_MILLI**2
        return best


class Packing(_Published):
    """Shared GPUs first, then free GPUs of nodes in use, then empty nodes."""

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        nodes = cluster.nodes
        free = np.bitwise_count(nodes.gpu_free_bits[offer.index]).astype(np.int64)
        if not asked_milli(offer.shape):
            return np.zeros_like(free)
        untouched = np.maximum(33 - free, free)
        on_free = np.full_like(free, max(50 - max(1, offer.shape.gpus), 33))
        if offer.share is None:
            used = on_free
        else:
            # The room of the tightest GPU without this pod. With all of its room, the GPU is free, not shared.
            room = offer.share + offer.shape.request.gpu_milli
            used = np.where(room < WHOLE_GPU_MILLI, np.maximum(100 - room // 10 // 10, 50), on_free)
        total = nodes.allocatable[nodes.resources[GPU], offer.index]
        return np.where(free == total, untouched, used)


class Clustering(_Published):
    """Nodes that hold only pods of the same kind (shared, or the same number of GPUs), then mixed nodes, then empty
    nodes, then nodes with only other kinds; the fuller node wins a tie. The kinds are cached for one cluster."""

    def __init__(self) -> None:
        self._kinds = np.zeros(0, dtype=np.int64)
        """For each node slot, one bit for each kind of pod on the node."""
        self._seen = -1

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        idle_milli = cluster.nodes.room_milli(offer.index).sum(axis=0)
        fullness: Scores = 25 * (_LARGEST_GPU_MILLI - idle_milli) // _LARGEST_GPU_MILLI
        kind = _kind(offer.shape.request)
        if not kind:
            return np.zeros_like(fullness)
        self._catch_up(cluster)
        there = self._kinds[offer.index]
        same = np.where(there == kind, 75, 50)
        return fullness + np.where(there & kind, same, np.where(there, 0, 25))

    def _catch_up(self, cluster: Cluster) -> None:
        nodes, placements = cluster.nodes, cluster.placements
        changed = nodes.amounts_journal.since(self._seen) if self._seen >= 0 else None
        if changed is None or len(self._kinds) != nodes.size:
            self._kinds = np.zeros(nodes.size, dtype=np.int64)
            changed = np.arange(nodes.size)
        for slot in changed.tolist():
            kinds = (_kind(placements[uid].pod.request) for uid in cluster.on_slot.get(slot, ()))
            self._kinds[slot] = reduce(or_, kinds, 0)
        self._seen = nodes.amounts_journal.end


@dataclass(frozen=True)
class Random:
    """A random node among those that the pod prefers most, a random GPU with room, drawn from the seed and the pod's
    uid. Members of a gang go to the first nodes that fit."""

    seed: int

    def version(self, cluster: Cluster) -> int:
        return 0

    def native(self, cluster: Cluster) -> None:
        return None

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        return np.zeros(offer.left.shape[1], dtype=np.int64)

    def best(self, score: Scores, first: int, pod: Pod) -> int:
        slots = np.flatnonzero(score == score[first])
        return int(slots[self._draw("node", pod, len(slots))])

    def share_gpu(self, cluster: Cluster, slot: int, pod: Pod, share: int) -> int:
        gpus = np.flatnonzero(cluster.nodes.room_milli(slice(slot, slot + 1))[:, 0] >= pod.request.gpu_milli)
        return int(gpus[self._draw("gpu", pod, len(gpus))]) if len(gpus) else -1

    def _draw(self, what: str, pod: Pod, count: int) -> int:
        digest = blake2b(f"{what}/{self.seed}/{pod.uid}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % count


def asked_milli(shape: Shape) -> int:
    return shape.gpus * WHOLE_GPU_MILLI + shape.request.gpu_milli


def _kind(request: Request) -> int:
    """One bit: bit 0 for a share, bit n for n whole GPUs. 0 if the pod requests no GPU."""
    gpus = 0 if request.gpu_milli else dict(request.resources).get(GPU, 0)
    return 1 << min(gpus, _MOST_GPUS) if gpus or request.gpu_milli else 0


POLICIES: dict[str, Callable[[int, Iterable[Request]], Scoring]] = {
    "dovetail": lambda seed, requests: ExpectedFill(),
    "tightest": lambda seed, requests: Tightest(),
    "expected-fill": lambda seed, requests: ExpectedFill(learn_from=1),
    "fgd": lambda seed, requests: FragmentationGradientDescent(requests),
    "bestfit": lambda seed, requests: BestFit(),
    "packing": lambda seed, requests: Packing(),
    "clustering": lambda seed, requests: Clustering(),
    "dotprod": lambda seed, requests: DotProduct(),
    "random": lambda seed, requests: Random(seed),
}
"""The factory of each policy, by name. Its arguments are the seed and the requests of all pods of the workload."""
