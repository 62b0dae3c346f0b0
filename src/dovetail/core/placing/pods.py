# SPDX-License-Identifier: Apache-2.0
"""Placing pods of one shape inside a set of nodes.

Rules: pods that nothing hinders are placed in one go: the tightest fabric domains first, and in them the best nodes,
each filled before the next. Pods that look at other pods, volumes or nominations are placed one at a time, since each
changes what the next one may do. The kubelet of a node is asked last, when the node is chosen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import Pod
from dovetail.core.placing import feasibility, scores
from dovetail.core.placing.rows import Row, Rows

Scope = NDArray[np.int64]
"""Node slots, ascending."""


def fill(cluster: Cluster, rows: Rows, shape: Shape, pods: list[Pod], scope: Scope | None, alike: bool = False) -> int:
    """Place as many of the pods (all of this shape) as fit inside `scope` (None: anywhere), first ones first. `alike`
    says that they are known to be of one kind. Returns how many; the caller holds the trial."""
    if feasibility.hindered(cluster, shape, pods, alike):
        return sum(_place_hindered(cluster, rows, pod, scope) for pod in pods)
    row = rows.of(shape)
    if len(pods) == 1:
        while True:
            slot = rows.scoring.best(row, pods[0]) if scope is None else _best(row.score, scope)
            if slot < 0 or row.score[slot] == scores.INFEASIBLE:
                return 0
            if cluster.kubelets.lets_in(slot, shape):
                cluster.place_alike(shape, pods, {slot: 1})
                return 1
            row.refuse(slot)
    if cluster.kubelets.books and shape.request.managed is not None:
        return _fill_asking(cluster, rows, shape, pods, scope)
    where = _arrange(cluster, row, len(pods), scope)
    cluster.place_alike(shape, pods, where)
    return sum(where.values())


def _fill_asking(cluster: Cluster, rows: Rows, shape: Shape, pods: list[Pod], scope: Scope | None) -> int:
    """As `fill`, asking the kubelets before each pod: who is refused somewhere is arranged anew with the others."""
    placed = 0
    while placed < len(pods) and (where := _arrange(cluster, rows.of(shape), len(pods) - placed, scope)):
        refused: list[int] = []
        for slot, count in where.items():
            # Whether a second pod is let in depends on what the first one was given.
            for _ in range(count):
                if not cluster.kubelets.lets_in(slot, shape):
                    refused.append(slot)
                    break
                cluster.place_alike(shape, [pods[placed]], {slot: 1})
                placed += 1
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


def _place_hindered(cluster: Cluster, rows: Rows, pod: Pod, scope: Scope | None) -> bool:
    if cluster.volumes.refusal(pod) is not None or cluster.claims.refusal(pod) is not None:
        return False
    # A claim that pods share is wanted no more once the first of them is placed.
    shape = cluster.shape_of(pod)
    row = rows.of(shape)
    score = row.score
    allowed = score != scores.INFEASIBLE
    for _, satisfied in feasibility.hindrances(cluster, pod, shape):
        allowed &= satisfied
    if shape.request.preferred_peers or shape.request.spread:
        score = score + scores.further_preference(row.preference, feasibility.preferred_peers(cluster, pod))
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


def _arrange(cluster: Cluster, row: Row, count: int, scope: Scope | None) -> dict[int, int]:
    """Slots for up to `count` pods, and how many of them go to each."""
    copies = row.copies()
    candidates = copies.nonzero()[0] if scope is None else scope[copies[scope] > 0]
    chosen = _gather(cluster, row, copies, candidates, count, cluster.fabric.levels)
    times = copies[chosen]
    if len(times):
        # All but the last are filled.
        times[-1] -= max(0, int(times.sum()) - count)
    return dict(zip(chosen.tolist(), times.tolist(), strict=True))


def _gather(
    cluster: Cluster, row: Row, copies: NDArray[np.int64], candidates: Scope, count: int, levels: tuple[str, ...]
) -> Scope:
    """Slots that together take `count` pods (all candidates where they do not suffice), in as few and as tight domains
    as can be: whole domains from the largest down while they are needed whole, then the tightest for the rest."""
    if not levels:
        order = candidates[(-row.score[candidates]).argsort(kind="stable")]
        enough = int(copies[order].cumsum().searchsorted(count)) + 1
        return order[:enough]
    domains = cluster.fabric.domains(levels[0])[candidates]
    # Nodes without the key count as one more domain, the last.
    known = np.where(domains == ABSENT, cluster.fabric.count(levels[0]), domains)
    sums = np.bincount(known, weights=copies[candidates]).astype(np.int64)
    if np.count_nonzero(sums) <= 1:
        return _gather(cluster, row, copies, candidates, count, levels[1:])
    order = (-sums).argsort(kind="stable")
    sums = sums[order]
    lacking = count - sums.cumsum() + sums
    suffices = sums >= lacking
    if not suffices.any():
        return candidates
    whole = int(suffices.argmax())
    left, count = sums[whole:], int(lacking[whole])
    last = order[whole + int((left == left[left >= count].min()).argmax())]
    rest = _gather(cluster, row, copies, candidates[known == last], count, levels[1:])
    if not whole:
        return rest
    taken = np.zeros(len(sums), dtype=np.bool_)
    taken[order[:whole]] = True
    return np.concatenate((candidates[taken[known]], rest))
