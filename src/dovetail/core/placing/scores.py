# SPDX-License-Identifier: Apache-2.0
"""The score of a node for a shape, as one integer. The highest score wins, and of equals the lowest slot.

Rules: the user's preferences (node affinity weights, PreferNoSchedule taints) weigh more than everything else. The rest
is the `Scoring` of the policy. `Tightest`, the default, prefers in this order: for several GPUs the best bandwidth
between them (in thousandths of the best that the node can provide), for a share of a GPU the least left of that GPU;
then the fewest whole GPUs left on the node, then the least CPU, then the least memory. So a pod without GPUs goes to
nodes without GPUs, and whole nodes stay free for large jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster, GpuChoice
from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.gpu_choice import tightest_gpu
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.selection import matches_term
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.choose import PERMILLE
from dovetail.core.labels import tolerates
from dovetail.core.model import Pod
from dovetail.core.placing import layout

if TYPE_CHECKING:
    from dovetail.core.placing._kernel import Worth

INFEASIBLE = layout.INFEASIBLE
_PREFERENCE_BITS = 53
_UNIT_BITS, _LARGEST, _PLACE_BITS = np.array(layout.TIGHTEST, dtype=np.int64).T[:, :, None]
Scores = NDArray[np.int64]


class ScoredOffer(Struct, frozen=True):
    """The nodes to be scored for a shape. `left[r]` is what one pod would leave of resource r on each slot of `index`.
    `share`: for a shape that may take a part of a GPU, the rank of that GPU (`GpuFractions.rank`: where it must take a
    part, what it would leave of the tightest one); for a shape with MIG instances, the number of idle GPUs that it
    would partition. `close`: for several GPUs, how close they would be (`links.closeness`). `spare`: for devices by
    claim, how many that match would be left."""

    shape: Shape
    index: Index
    left: NDArray[np.int64]
    share: Scores | None = None
    close: Scores | None = None
    spare: Scores | None = None


class Scoring(GpuChoice, Protocol):
    """Chooses among the nodes that fit, and among the GPUs of a node, by its arguments alone."""

    def version(self, cluster: Cluster) -> int:
        """A number that changes when earlier scores are out of date, because another mix of pods was learned."""

    def native(self, cluster: Cluster) -> tuple[Worth, ...] | None:
        """What the native kernel needs for this version: nothing for scores as `Tightest`, a worth for scores as
        `ExpectedFill`; None where the kernel cannot compute them."""

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        """A score of at most 52 bits for each slot of the offer. Those where the shape does not fit are not used."""

    def best(self, score: Scores, first: int, pod: Pod) -> int:
        """The slot for one pod. `score` has the score of every slot, `first` is the lowest slot with the best score;
        any slot where none fits."""


@dataclass(frozen=True)
class Tightest:
    """The default scoring."""

    def version(self, cluster: Cluster) -> int:
        return 0

    def native(self, cluster: Cluster) -> tuple[Worth, ...] | None:
        return ()

    def scores(self, cluster: Cluster, offer: ScoredOffer) -> Scores:
        units = np.maximum(offer.left[: len(_UNIT_BITS)] >> _UNIT_BITS, 0)
        if offer.spare is not None:
            units[layout.GPU_ROW] += offer.spare
        looseness: Scores = np.add.reduce(np.minimum(units, _LARGEST) << _PLACE_BITS)
        first = offer.share if offer.close is None else PERMILLE - offer.close
        return -looseness if first is None else -looseness - (first << layout.FIRST_BITS)

    def best(self, score: Scores, first: int, pod: Pod) -> int:
        return first

    def share_gpu(self, cluster: Cluster, slot: int, pod: Pod, share: int) -> int:
        return tightest_gpu(cluster.nodes, slot, share)


def preference(nodes: Nodes, shape: Shape, index: Index) -> Scores:
    """The weights of the matching preferred node terms, less the PreferNoSchedule taints that the pod does not
    tolerate."""
    request = shape.request
    points = np.zeros(len(nodes.usable[index]), dtype=np.int64)
    for preferred in request.preferred_nodes:
        points[matches_term(nodes, preferred.term, index)] += preferred.weight
    avoided = np.array(
        [
            sum(
                taint.effect == "PreferNoSchedule" and not any(tolerates(t, taint) for t in request.tolerations)
                for taint in taints
            )
            for taints in nodes.taint_sets
        ],
        dtype=np.int64,
    )
    if not request.preferred_nodes and not avoided.any():
        return points
    points -= 100 * avoided[nodes.taint_ids[index]]
    return weigh_preference(points)


def weigh_preference(points: Scores) -> Scores:
    return np.clip(points, -511, 511) << _PREFERENCE_BITS


def further_preference(preference: Scores, points: Scores) -> Scores:
    """The change of a weighed preference by more points. The sum stays within the same bounds."""
    return weigh_preference((preference >> _PREFERENCE_BITS) + points) - preference
