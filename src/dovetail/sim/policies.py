# SPDX-License-Identifier: Apache-2.0
"""The placement policies that a simulation can be run with: Dovetail's own, and the baselines of the FGD paper.

The baselines follow the published artifact (Weng et al., "Beware of Fragmentation", USENIX ATC'23;
hkust-adsl/kubernetes-scheduler-simulator, pkg/simulator/plugin): scores are whole numbers from 0 to 100, and of equals
the first node in the simulation's seeded order wins, as there. What a pod prefers itself still comes first; the
artifact's traces prefer nothing. Differences: scores are computed from integers, not from floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import CPU, GPU, WHOLE_GPU_MILLI, Pod, Request
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.placing.rows import Row
from dovetail.core.placing.scores import Offer, Scores, Scoring, Tightest, tightest_gpu
from dovetail.sim.fgd import FragmentationGradientDescent

_LARGEST_CPU_MILLI = 128_000
_LARGEST_GPU_MILLI = 8_000
"""The largest node of the published cluster, which the baselines measure amounts against."""


class _Published:
    """What the baselines have in common: the first node of equals, the tightest GPU."""

    def version(self, cluster: Cluster) -> int:
        return 0

    def native(self, cluster: Cluster) -> None:
        return None

    def best(self, row: Row, pod: Pod) -> int:
        return row.best()

    def share_gpu(self, cluster: Cluster, slot: int, pod: Pod, share: int) -> int:
        return tightest_gpu(cluster.nodes, slot, share)


class BestFit(_Published):
    """The node that has the least left of cores and GPUs, each measured against the largest node."""

    def scores(self, cluster: Cluster, offer: Offer) -> Scores:
        per_core = _LARGEST_CPU_MILLI // _LARGEST_GPU_MILLI
        unused = offer.left[cluster.nodes.resources[CPU]]
        unused = unused + per_core * (cluster.nodes.room_milli(offer.index).sum(axis=0) - asked_milli(offer.shape))
        best: Scores = (100 * 2 * _LARGEST_CPU_MILLI - 100 * unused) // (2 * _LARGEST_CPU_MILLI)
        return best


class DotProduct(_Published):
    """The node whose idle cores and GPUs are least aligned with the request (Tetris, SIGCOMM'14), so that plentiful
    nodes are kept."""

    def scores(self, cluster: Cluster, offer: Offer) -> Scores:
        nodes = cluster.nodes
        cpu_milli = int(offer.shape.need[nodes.resources[CPU], 0])
        per_core_squared = (_LARGEST_CPU_MILLI // _LARGEST_GPU_MILLI) ** 2
        product = nodes.free[nodes.resources[CPU], offer.index] * cpu_milli
        product += per_core_squared * asked_milli(offer.shape) * cluster.nodes.room_milli(offer.index).sum(axis=0)
        best: Scores = (100 * _LARGEST_CPU_MILLI**2 - 50 * product) // _LARGEST_CPU_MILLI**2
        return best


class Packing(_Published):
    """Opened GPUs before free GPUs of a node in use, before nodes that nobody uses."""

    def scores(self, cluster: Cluster, offer: Offer) -> Scores:
        nodes = cluster.nodes
        free = np.bitwise_count(nodes.gpu_free_bits[offer.index]).astype(np.int64)
        if not asked_milli(offer.shape):
            return np.zeros_like(free)
        untouched = np.maximum(33 - free, free)
        on_free = np.full_like(free, max(50 - max(1, offer.shape.gpus), 33))
        if offer.share is None:
            used = on_free
        else:
            # What the tightest GPU has before it is shared; one that is whole is no shared GPU.
            room = offer.share + offer.shape.request.gpu_milli
            used = np.where(room < WHOLE_GPU_MILLI, np.maximum(100 - room // 10 // 10, 50), on_free)
        total = nodes.allocatable[nodes.resources[GPU], offer.index]
        return np.where(free == total, untouched, used)


class Clustering(_Published):
    """Nodes that hold only pods of the same kind (shared, or as many GPUs), then mixed ones, then empty ones, then
    nodes with other kinds; of equals the fuller one."""

    def scores(self, cluster: Cluster, offer: Offer) -> Scores:
        idle_milli = cluster.nodes.room_milli(offer.index).sum(axis=0)
        fullness: Scores = 25 * (_LARGEST_GPU_MILLI - idle_milli) // _LARGEST_GPU_MILLI
        kind = _kind(offer.shape.request)
        if kind is None:
            return np.zeros_like(fullness)
        slots = np.arange(cluster.nodes.size)[offer.index]
        return fullness + np.fromiter((self._band(cluster, int(slot), kind) for slot in slots), np.int64, len(slots))

    def _band(self, cluster: Cluster, slot: int, kind: int) -> int:
        # Every row that is redone asks, but who is there has mostly not changed since the last one did.
        known, uids = cluster.learned.setdefault(self, {}), tuple(cluster.on_slot.get(slot, ()))
        there, kinds = known.get(slot, (None, None))
        if there != uids:
            kinds = {_kind(cluster.placements[uid].pod.request) for uid in uids} - {None}
            known[slot] = uids, kinds
        if kind in kinds:
            return 75 if len(kinds) == 1 else 50
        return 0 if kinds else 25


@dataclass(frozen=True)
class Random:
    """Any node that fits and that the pod prefers most, any GPU with room, drawn by the seed and the pod's uid. (The
    members of a gang fill a drawn order of nothing: they go to the first nodes that fit.)"""

    seed: int

    def version(self, cluster: Cluster) -> int:
        return 0

    def native(self, cluster: Cluster) -> None:
        return None

    def scores(self, cluster: Cluster, offer: Offer) -> Scores:
        return np.zeros(offer.left.shape[1], dtype=np.int64)

    def best(self, row: Row, pod: Pod) -> int:
        slots = np.flatnonzero(row.score == row.score[row.best()])
        return int(slots[self._draw("node", pod, len(slots))])

    def share_gpu(self, cluster: Cluster, slot: int, pod: Pod, share: int) -> int:
        gpus = np.flatnonzero(cluster.nodes.room_milli(slice(slot, slot + 1))[:, 0] >= pod.request.gpu_milli)
        return int(gpus[self._draw("gpu", pod, len(gpus))]) if len(gpus) else -1

    def _draw(self, what: str, pod: Pod, count: int) -> int:
        digest = blake2b(f"{what}/{self.seed}/{pod.uid}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % count


def asked_milli(shape: Shape) -> int:
    return shape.gpus * WHOLE_GPU_MILLI + shape.request.gpu_milli


def _kind(request: Request) -> int | None:
    """0 for a share, the number of GPUs for whole ones, None for neither."""
    if request.gpu_milli:
        return 0
    return dict(request.resources).get(GPU)


POLICIES: dict[str, Callable[[int, Iterable[Request]], Scoring]] = {
    "dovetail": lambda seed, requests: Tightest(),
    "expected-fill": lambda seed, requests: ExpectedFill(learn_from=1),
    "fgd": lambda seed, requests: FragmentationGradientDescent(requests),
    "bestfit": lambda seed, requests: BestFit(),
    "packing": lambda seed, requests: Packing(),
    "clustering": lambda seed, requests: Clustering(),
    "dotprod": lambda seed, requests: DotProduct(),
    "random": lambda seed, requests: Random(seed),
}
"""Policies by name, made of the seed and the requests of all pods of the workload."""
