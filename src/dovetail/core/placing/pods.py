# SPDX-License-Identifier: Apache-2.0
"""Placing pods of one shape inside a set of nodes.

Rules: pods to which no peer filter applies are placed together (`arrangement`). Pods with rules about other pods,
volumes or nominations are placed one at a time, since each changes what the next one may do. Once a node is chosen, its
kubelet's admission is checked last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import Pod
from dovetail.core.placing import arrangement, filters, kernel, scores
from dovetail.core.placing.score_cache import ScoreCache, ScoreRow

Scope = NDArray[np.int64]
"""Node slots, ascending."""
Placed = tuple[tuple[str, int], ...]
"""Pods (uid) with their slots."""


def fill(
    cluster: Cluster, rows: ScoreCache, shape: Shape, pods: list[Pod], scope: Scope | None, uniform: bool = False
) -> int:
    """Place as many of the pods (all of this shape) as fit inside `scope` (None: anywhere), the first ones first.
    `uniform`: they are known to be of one kind. Returns their number. The caller holds the trial."""
    if filters.hindered(cluster, shape, pods, uniform):
        return sum(_place_hindered(cluster, rows, pod, scope) for pod in pods)
    row = rows.of(shape)
    if len(pods) == 1:
        while True:
            slot = rows.scoring.best(row.score, row.best(), pods[0]) if scope is None else _best(row.score, scope)
            if slot < 0 or row.score[slot] == scores.INFEASIBLE:
                return 0
            if cluster.kubelets.lets_in(slot, shape):
                cluster.place_equal(shape, pods, {slot: 1})
                return 1
            row.refuse(slot)
    if cluster.kubelets.books and shape.request.managed is not None:
        return _fill_asking(cluster, rows, shape, pods, scope)
    where = _arranged(cluster, row, len(pods), scope)
    cluster.place_equal(shape, pods, where)
    return sum(where.values())


def _fill_asking(cluster: Cluster, rows: ScoreCache, shape: Shape, pods: list[Pod], scope: Scope | None) -> int:
    """As `fill`, with a check by the kubelets before each pod: a refused pod is arranged again with the rest."""
    placed = 0
    while placed < len(pods) and (where := _arranged(cluster, rows.of(shape), len(pods) - placed, scope)):
        refused: list[int] = []
        while where:
            # One pod for each slot: whether a second one is admitted depends on the devices of the first.
            here = {slot: 1 for slot in where if cluster.kubelets.lets_in(slot, shape)}
            refused += [slot for slot in where if slot not in here]
            if here:
                cluster.place_equal(shape, pods[placed : placed + len(here)], here)
            placed += len(here)
            where = {slot: count - 1 for slot, count in where.items() if count > 1 and slot in here}
        for slot in sorted(refused):
            rows.of(shape).refuse(slot)
    return placed


def _best(score: scores.Scores, scope: Scope | None) -> int:
    """The slot with the highest score, the lowest slot of equals; -1 where nothing is feasible."""
    if scope is None:
        slot = int(score.argmax())
    elif len(scope):
        slot = int(scope[score[scope].argmax()])
    else:
        return -1
    return slot if score[slot] != scores.INFEASIBLE else -1


def _place_hindered(cluster: Cluster, rows: ScoreCache, pod: Pod, scope: Scope | None) -> bool:
    if cluster.volumes.refusal(pod) is not None or cluster.claims.refusal(pod) is not None:
        return False
    # A shared claim is no longer requested once the first of its pods is placed.
    shape = cluster.shape_of(pod)
    row = rows.of(shape)
    score = row.score
    allowed = score != scores.INFEASIBLE
    for _, satisfied in filters.hindrances(cluster, pod, shape):
        allowed &= satisfied
    if shape.request.preferred_peers or shape.request.spread:
        score = score + scores.further_preference(row.preference, filters.preferred_peers(cluster, pod))
    score = np.where(allowed, score, scores.INFEASIBLE)
    nominated = cluster.nodes.slots.get(pod.nominated_node, -1)
    if nominated >= 0 and allowed[nominated] and (scope is None or nominated in scope):
        score[nominated] = -scores.INFEASIBLE
    while (slot := _best(score, scope)) >= 0:
        picks = cluster.volumes.pick(pod, slot)
        if picks is not None and cluster.kubelets.lets_in(slot, shape):
            cluster.place(pod, slot, picks, shape)
            return True
        score[slot] = scores.INFEASIBLE
    return False


def _arranged(cluster: Cluster, row: ScoreRow, count: int, scope: Scope | None) -> dict[int, int]:
    """The number of pods for each slot that gets some, for up to `count` pods."""
    arrange = kernel.arrange if kernel.BUILT else arrangement.arrange
    return arrange(row.copies(), row.score, scope, count, cluster.fabric.domains_by_level())
