# SPDX-License-Identifier: Apache-2.0
"""Reserve and bind: the Binds for pods that were placed, with all that the driver and the node need to know."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.cluster.fabric import Fabric
from dovetail.core.cluster.placement import Placement, indices
from dovetail.core.decisions import Bind, Decision
from dovetail.core.model import Pod
from dovetail.core.placing import links
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE


def binds_of(state: State, workload: str, members: Sequence[Pod], placed: Sequence[Placement]) -> list[Decision]:
    """A Bind for each placement, in their order. `members` are all pods of the workload."""
    cluster = state.cluster
    gang = "" if workload.startswith(LONE) else workload
    there = placed
    if gang and len(placed) != len(members):
        there = [cluster.placements[pod.uid] for pod in members if pod.uid in cluster.placements]
    level = cluster.fabric.narrowest([p.slot for p in there]) if gang else ""
    names, nominated = cluster.nodes.names, cluster.nominated
    for p in placed if nominated else ():
        nominated.pop(p.uid, None)
    # Pods that join a running gang get no rank: its ranks are assigned already.
    ranks = _ranks(cluster.fabric, placed) if gang and there is placed else []
    wired, books = len(cluster.nodes.layouts) > 1, bool(cluster.kubelets.books)
    binds: list[Decision] = []
    bits, devices = 0, tuple[int, ...]()
    for number, p in enumerate(placed):
        pod, rank = p.pod, ranks[number] if ranks else -1
        if p.gpu_bits | p.share_bits != bits:
            bits = p.gpu_bits | p.share_bits
            devices = indices(bits)
        mbps, ideal_mbps = links.bandwidth(cluster, p) if wired else (0, 0)
        unsure = _unsure(state, p) if books else ""
        instances = cluster.slices.instances(p) if p.slices else ()
        made = cluster.claims.to_make(pod, p.by_claim) if p.by_claim else None
        binds.append(
            Bind(
                p.uid, names[p.slot], state.steps, gang, devices, p.picks, level, rank, mbps, ideal_mbps,
                unsure, p.grants, instances, pod.device_claims, made,
            )
        )  # fmt: skip
    return binds


def _unsure(state: State, placement: Placement) -> str:
    """Why it is not sure that the kubelet admits the pod, "" where it is."""
    if placement.entry is not None or placement.pod.request.managed is None:
        return ""
    answer = state.cluster.kubelets.ask(placement.slot, placement.shape)
    return "" if answer is None else answer.message


def _ranks(fabric: Fabric, placed: Sequence[Placement]) -> list[int]:
    """The rank of each pod of a gang that starts. Where controllers state different numbers for all of them, it is the
    last of these where the pods differ in no other, as in a Job, else their order by all. Other pods are numbered as
    they lie in the fabric: domain by domain from the widest level down, node by node, GPU by GPU."""
    stated = [p.pod.ordinals for p in placed]
    if len(set(stated)) < len(placed):
        order = fabric.order()
        return _numbered([(order[p.slot], p.gpu_bits, p.share_bits) for p in placed])
    if all(stated) and len({numbers[:-1] for numbers in stated}) == 1:
        return [numbers[-1] for numbers in stated]
    return _numbered(stated)


def _numbered(keys: Sequence[tuple[int, ...]]) -> list[int]:
    """Of each key its place in their order."""
    ranks = [0] * len(keys)
    for rank, number in enumerate(sorted(range(len(keys)), key=keys.__getitem__)):
        ranks[number] = rank
    return ranks
