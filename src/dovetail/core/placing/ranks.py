# SPDX-License-Identifier: Apache-2.0
"""Which of equal pods of a gang goes to which of the places that were chosen: ranks follow the fabric.

Rules
- Controllers fix the ranks of pods, and a ring goes from each rank to the next. So equal pods get their places in the
  order of their ranks, and the places are in the order of a walk through the tree: domain by domain from the widest
  level down, node by node, GPU by GPU. Then each domain is entered once, and no order on these places crosses fewer
  borders. The order of siblings does not matter: the pods of a further sub-gang begin beside the last rank before them.
- Pods are exchanged only where nothing but their names differs for anybody: they are of one part of the gang, with one
  shape, queue, user and priority, and equal to the rules of all pods about their peers. A pod with volumes, claims or a
  nominated node, or that a node refused, keeps its place.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.placement import Placement
from dovetail.core.model import Pod
from dovetail.core.placing.gangs import Group

_DIGITS = "0123456789"
_RankKey = tuple[tuple[int, ...], str, int, str]


def _rank_key(pod: Pod) -> _RankKey:
    """Sorts pods by rank: by what their controller states, then by name, `worker-2` before `worker-10`."""
    stem = pod.name.rstrip(_DIGITS)
    return pod.ordinals, stem, len(pod.name), pod.name


def settle(cluster: Cluster, gang: Group) -> None:
    """Exchange pods of a gang that was placed in the running trial."""
    fabric, last = cluster.fabric, -1
    order = fabric.order()

    def along(place: Placement) -> tuple[int, int, int, int]:
        near = -fabric.shared(last, place.slot) if last >= 0 else 0
        return near, order[place.slot], place.gpu_bits, place.share_bits

    parts = [part.pods for part in gang.walk() if part.pods]
    if len(parts) > 1:
        parts.sort(key=lambda pods: min(map(_rank_key, pods)))
    for pods in parts:
        end = last
        for places in _exchangeable(cluster, pods):
            places.sort(key=along)
            ranked = sorted([place.pod for place in places], key=_rank_key)
            if any(place.pod is not pod for place, pod in zip(places, ranked, strict=True)):
                cluster.exchange(places, ranked)
            end = places[-1].slot
        last = end


def _exchangeable(cluster: Cluster, pods: Sequence[Pod]) -> list[list[Placement]]:
    """The places of the pods that may be exchanged, those of one kind together."""
    kinds: dict[Hashable, list[Placement]] = {}
    placements, peers, claims, avoided = cluster.placements, cluster.peers, cluster.claims, cluster.avoided
    watched, rejected, claimed = bool(peers.counts or peers.carriers), bool(cluster.rejections), bool(claims.claims)
    for pod in pods:
        place = placements.get(pod.uid)
        if place is None or pod.claims or pod.device_claims or pod.by_claim or place.grants or pod.nominated_node:
            continue
        if pod.uid in avoided or (claimed and claims.made(pod)):
            continue
        seen = (peers.about(pod) if watched else None), (pod.owner if rejected else "")
        kinds.setdefault((place.shape.id, pod.queue, pod.user, pod.priority, *seen), []).append(place)
    return list(kinds.values())
