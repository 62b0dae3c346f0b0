# SPDX-License-Identifier: Apache-2.0
"""The filters: kube-scheduler's filter rules as masks over node slots.

`suitable` holds for a shape whatever other pods do. `hindrances` are the peer filters: rules about other pods, volumes
and nominations. `placing.refusals` counts the same masks to explain why a pod is pending.
Source of the rules: kube-scheduler's in-tree plugins (nodeunschedulable, tainttoleration, nodeaffinity, nodeports,
noderesources, podtopologyspread, interpodaffinity, volumebinding, volumezone, nodevolumelimits).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster, shares
from dovetail.core.cluster.columns import ABSENT, Index, Mask
from dovetail.core.cluster.maintenances import tolerates
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.peers import matcher_of
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.cluster.selection import matches_affinity
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.labels import untolerated
from dovetail.core.model import GPU, SHARED_GPU, SPARE_TOLERATION, HostPort, LabelSelector, Pod, Request, Spread
from dovetail.core.placing import links
from dovetail.core.reasons import Reason

_ANY_IP = ("", "0.0.0.0", "::")
Hindrance = tuple[Reason, Mask]


def tolerated(nodes: Nodes, request: Request, index: Index) -> Mask:
    """Nodes of which the pod tolerates every NoSchedule and NoExecute taint, including a cordon."""
    answers = np.fromiter(
        (untolerated(taints, request.tolerations) is None for taints in nodes.taint_sets),
        dtype=np.bool_,
        count=len(nodes.taint_sets),
    )
    if answers.all():
        return np.ones_like(nodes.usable[index])
    return np.asarray(answers[nodes.taint_ids[index]])


def _untainted(nodes: Nodes, request: Request) -> Mask:
    """Nodes of which the pod tolerates every taint in their spec. A cordon is a taint there only once the node
    controller has added it."""
    taints = (node.taints if node is not None else () for node in nodes.records)
    answers = np.ones(nodes.size, dtype=np.bool_)
    answers[: nodes.used] = [untolerated(taint, request.tolerations) is None for taint in taints]
    return answers


def selected(nodes: Nodes, request: Request, index: Index) -> Mask:
    """Nodes that exist, are valid, whose taints are tolerated, and that selector and affinity admit."""
    return nodes.usable[index] & tolerated(nodes, request, index) & matches_affinity(nodes, request, index)


def suitable(nodes: Nodes, request: Request, index: Index, until_ms: int = FOR_EVER_MS) -> Mask:
    """Selected nodes that are not quarantined, that do not close before `until_ms`, and whose kubelet has the device
    plugins that the pod requests from."""
    found, gone = selected(nodes, request, index), nodes.plugin_gone[index]
    quarantined = nodes.quarantined[index]
    if quarantined.any():
        found &= ~quarantined
    if nodes.in_maintenance and not tolerates(request):
        found &= nodes.closes_ms[index] >= until_ms
    return found & ~gone if gone.any() and asks_plugin(request) else found


def takes(nodes: Nodes, shape: Shape, index: Index) -> Mask:
    """Suitable nodes that are no spares, or are open to the shape."""
    found = suitable(nodes, shape.request, index, shape.until_ms)
    if nodes.spare[index].any():
        found &= ~kept_from(nodes, shape, index)
    return found


def kept_from(nodes: Nodes, shape: Shape, index: Index) -> Mask:
    """Spares that pods of the shape may not use."""
    spare = nodes.spare[index].copy()
    if not minds_spares(shape):
        spare[:] = False
    elif shape.opened:
        spare &= ~np.isin(np.arange(nodes.size)[index], list(shape.opened))
    return spare


def minds_spares(shape: Shape) -> bool:
    """Whether pods of the shape are kept from spares: they ask for devices, and do not test nodes."""
    if any(one.key == SPARE_TOLERATION for one in shape.request.tolerations):
        return False
    return bool(shape.wants) or shape.stand_ins is not None or shape.request.asks_devices


def asks_plugin(request: Request) -> bool:
    """Whether the pod requests GPUs, replicas or MIG instances from a device plugin."""
    return any(name in (GPU, SHARED_GPU) or name.startswith(RESOURCE_PREFIX) for name, _ in request.resources)


def has_room(nodes: Nodes, shape: Shape, index: Index) -> Mask:
    """Nodes with all requested amounts free, including a share of one GPU and links between several."""
    fits = np.asarray((nodes.free[: shape.width, index] - shape.need >= shape.floor).all(axis=0))
    some = shares.parts(nodes, shape, index)
    if some is not None:
        fits &= shares.fits(nodes, shape, index, some, some.left(nodes, index))
    if shape.needs_links:
        fits &= links.closeness(nodes, index, nodes.gpu_free_bits[index], shape) != links.TOO_FAR
    return fits


def hindered(cluster: Cluster, shape: Shape, pods: Sequence[Pod], uniform: bool = False) -> bool:
    """Whether any of these pods of one shape (`uniform`: of one kind) needs `hindrances`. For most pods the answer is
    False, and then their row of scores is complete."""
    if shape.request.scattered or cluster.nominated:
        return True
    if cluster.peers.carriers and any(cluster.peers.repelling(pod) for pod in pods):
        return True
    claims, avoided, several = cluster.claims, cluster.avoided, shape.stand_ins is not None
    if uniform and len(pods) > 1 and not avoided and not cluster.rejections:
        # Pods of one kind differ only in the nodes that rejected them.
        pods = pods[:1]
    for pod in pods:
        if pod.claims or pod.nominated_node or pod.uid in avoided:
            return True
        claiming = several or pod.device_claims or pod.by_claim
        if claiming and (not claims.alone(pod) or claims.refusal(pod) is not None):
            return True
        if pod.owner and cluster.rejections.nodes(pod.owner, cluster.now_ms):
            return True
    return False


def hindrances(cluster: Cluster, pod: Pod, shape: Shape) -> list[Hindrance]:
    """The peer filters that apply to the pod: each reason, with the mask of nodes that pass."""
    found = _beside_placed(cluster, pod)
    if cluster.nominated:
        found.append((Reason.NOMINATED, _beside_nominated(cluster, pod, shape)))
    if pod.uid in cluster.avoided:
        found.append((Reason.BIND_BACKOFF, _without(cluster, cluster.avoided[pod.uid])))
    if pod.device_claims or pod.by_claim or shape.stand_ins is not None:
        found.append((Reason.CLAIM_NODE, cluster.claims.reach(pod)))
    if rejected := cluster.rejections.nodes(pod.owner, cluster.now_ms):
        found.append((Reason.REJECTED, _without(cluster, rejected)))
    return found


def _beside_placed(cluster: Cluster, pod: Pod) -> list[Hindrance]:
    """The filters on placed pods and on volumes. `Volumes.refusal` checks the state of the claims themselves."""
    found: list[Hindrance] = []
    if pod.request.ports:
        found.append((Reason.HOST_PORT, _ports_free(cluster, pod.request.ports)))
    if pod.claims and cluster.volumes.refusal(pod) is None:
        view = cluster.volumes.view(pod)
        found += [(Reason.VOLUME_NODE, view.reach), (Reason.VOLUME_LIMIT, view.attachable)]
    if pod.request.spread:
        found += _spread(cluster, pod)
    if pod.request.affinity:
        found.append((Reason.AFFINITY, _near_peers(cluster, pod)))
    if pod.request.anti_affinity:
        found.append((Reason.ANTI_AFFINITY, _away_from_peers(cluster, pod)))
    if cluster.peers.carriers:
        found.append((Reason.EXISTING_ANTI_AFFINITY, _not_repelled(cluster, pod)))
    return found


def preferred_peers(cluster: Cluster, pod: Pod) -> NDArray[np.int64]:
    """Points per slot from preferred pod affinity and from spread constraints that are only preferred."""
    points = np.zeros(cluster.nodes.size, dtype=np.int64)
    for preferred in pod.request.preferred_peers:
        present = _per_slot(cluster, preferred.term.topology_key, cluster.peers.counts[matcher_of(preferred.term)].pods)
        points += preferred.weight * np.minimum(present, 1)
    for spread in pod.request.spread:
        if not spread.required:
            counts = cluster.peers.counts[matcher_of(spread.peers)]
            points -= np.minimum(_per_slot(cluster, spread.peers.topology_key, counts.pods - counts.deleting), 100)
    return points


def _per_domain(cluster: Cluster, key: str, pods: Counter[int], within: Mask | None = None) -> NDArray[np.int64]:
    """The number of pods by value of a topology key, counting only slots of `within`."""
    column = cluster.nodes.columns[key]
    slots = np.fromiter(pods.keys(), dtype=np.int64, count=len(pods))
    counts = np.fromiter(pods.values(), dtype=np.int64, count=len(pods))
    ids = column.ids[slots]
    counted = ids != ABSENT if within is None else (ids != ABSENT) & within[slots]
    return np.bincount(ids[counted], weights=counts[counted], minlength=len(column.values)).astype(np.int64)


def _per_slot(cluster: Cluster, key: str, pods: Counter[int]) -> NDArray[np.int64]:
    """The number of pods in each slot's domain of the key; 0 where the node lacks the key."""
    totals = np.append(_per_domain(cluster, key, pods), 0)
    return np.asarray(totals[cluster.nodes.columns[key].ids])


def _ports_free(cluster: Cluster, ports: tuple[HostPort, ...]) -> Mask:
    free = np.ones(cluster.nodes.size, dtype=np.bool_)
    for port in ports:
        for slot, ips in cluster.ports.in_use.get((port.protocol, port.port), {}).items():
            if port.ip in _ANY_IP or port.ip in ips or any(ip in _ANY_IP for ip in ips):
                free[slot] = False
    return free


def _beside_nominated(cluster: Cluster, pod: Pod, shape: Shape) -> Mask:
    """Nodes where the pod fits even beside the pods of the same or a higher priority that are nominated there: their
    room, ports and affinity rules are kept for them (RunFilterPluginsWithNominatedPods)."""
    nodes = cluster.nodes
    passes = np.ones(nodes.size, dtype=np.bool_)
    expected: dict[int, list[Pod]] = {}
    for other in cluster.nominated.values():
        slot = nodes.slots.get(other.nominated_node)
        if slot is not None and other.uid != pod.uid and other.priority >= pod.priority:
            expected.setdefault(slot, []).append(other)
    for slot, others in expected.items():
        with cluster.trial():
            for other in others:
                if other.uid not in cluster.placements:
                    cluster.place(other, slot)
            there = cluster.shapes.at(shape, slot)
            passes[slot] = has_room(nodes, there, slice(slot, slot + 1))[0] and all(
                satisfied[slot] for _, satisfied in _beside_placed(cluster, pod)
            )
    return passes


def _spread(cluster: Cluster, pod: Pod) -> list[Hindrance]:
    """DoNotSchedule constraints: skew = pods in the domain (+1 if the pod matches itself) - the least of any domain."""
    nodes, request = cluster.nodes, pod.request
    everywhere = slice(0, nodes.size)
    required = [spread for spread in request.spread if spread.required]
    labelled = nodes.usable.copy()
    for spread in required:
        labelled &= nodes.columns[spread.peers.topology_key].ids != ABSENT
    found: list[Hindrance] = [(Reason.SPREAD_LABEL, labelled)] if required else []
    for spread in required:
        if spread.peers.selector == LabelSelector():
            continue  # As upstream (countPodsMatchSelector): an empty selector counts no pods.
        eligible = labelled.copy()
        if spread.honor_affinity:
            eligible &= matches_affinity(nodes, request, everywhere)
        if spread.honor_taints:
            eligible &= _untainted(nodes, request)
        found.append((Reason.SPREAD, _within_skew(cluster, pod, spread, eligible)))
    return found


def _within_skew(cluster: Cluster, pod: Pod, spread: Spread, eligible: Mask) -> Mask:
    key, matcher = spread.peers.topology_key, matcher_of(spread.peers)
    count = cluster.peers.counts[matcher]
    ids = cluster.nodes.columns[key].ids
    totals = _per_domain(cluster, key, count.pods - count.deleting, eligible)
    domains = np.unique(ids[eligible])
    least = int(totals[domains].min()) if len(domains) >= max(1, spread.min_domains) else 0
    skew = totals + int(cluster.peers.picks(matcher, pod)) - least
    return np.append(skew <= spread.max_skew, False)[ids]


def _near_peers(cluster: Cluster, pod: Pod) -> Mask:
    """Nodes whose domain has a peer for every term; all labelled nodes if no pod matches but this one."""
    terms = pod.request.affinity
    matcher = matcher_of(*terms)
    pods = cluster.peers.counts[matcher].pods
    nodes = cluster.nodes
    near = np.ones(nodes.size, dtype=np.bool_)
    labelled = np.ones(nodes.size, dtype=np.bool_)
    no_peers = True
    for term in terms:
        totals = _per_domain(cluster, term.topology_key, pods)
        no_peers &= not bool(totals.any())
        near &= np.append(totals > 0, False)[nodes.columns[term.topology_key].ids]
        labelled &= nodes.columns[term.topology_key].ids != ABSENT
    return labelled if no_peers and cluster.peers.picks(matcher, pod) else near


def _away_from_peers(cluster: Cluster, pod: Pod) -> Mask:
    away = np.ones(cluster.nodes.size, dtype=np.bool_)
    for term in pod.request.anti_affinity:
        away &= _per_slot(cluster, term.topology_key, cluster.peers.counts[matcher_of(term)].pods) == 0
    return away


def _not_repelled(cluster: Cluster, pod: Pod) -> Mask:
    free = np.ones(cluster.nodes.size, dtype=np.bool_)
    for key, carriers in cluster.peers.repelling(pod).items():
        if cluster.nodes.columns[key].values:
            free &= _per_slot(cluster, key, carriers) == 0
    return free


def _without(cluster: Cluster, names: Iterable[str]) -> Mask:
    free = np.ones(cluster.nodes.size, dtype=np.bool_)
    for name in names:
        slot = cluster.nodes.slots.get(name)
        if slot is not None:
            free[slot] = False
    return free
