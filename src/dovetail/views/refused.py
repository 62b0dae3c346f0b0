# SPDX-License-Identifier: Apache-2.0
"""The GPUs and devices that do not fit a pod: the rule that refuses each, and the pods or claims that hold it.

Rules: only nodes count that refuse the pod for lack of MIG instances, of a share of a GPU, or of devices for its
claims. The closest nodes come first; of nodes with equal answers only the first is kept. A GPU in MIG mode is closer
the less of it is in use, a shared GPU the more of it is left, a node with devices the more of them the claims can get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.core.cluster import Cluster, shares
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.devices.mig.instances import states
from dovetail.core.devices.mig.slices import taken
from dovetail.core.devices.mig.static import Card
from dovetail.core.model import WHOLE_GPU_MILLI, Pod
from dovetail.core.placing.refusals import Verdict
from dovetail.core.reasons import Reason, When
from dovetail.views.claimed import Claimed, ClaimedView
from dovetail.views.held_types import HolderRefused
from dovetail.views.leased import key_of

SHOWN_NODES = 8
_MOST_EXAMINED = 64


def refused(cluster: Cluster, pod: Pod, found: Iterable[Verdict]) -> tuple[HolderRefused, ...]:
    """The refused GPUs and devices for the verdicts about a pod, the closest nodes first."""
    answers: list[HolderRefused] = []
    for verdict in found:
        if verdict.reason is Reason.INSUFFICIENT and verdict.detail.startswith(RESOURCE_PREFIX):
            answers += _slices(cluster, verdict)
        elif verdict.reason is Reason.GPU_SHARE and verdict.when is When.NOT_YET:
            answers += _shares(cluster, pod, verdict)
        elif verdict.reason is Reason.DEVICES:
            answers += _devices(cluster, pod, verdict)
    nearest: dict[str, int] = {}
    for one in answers:
        nearest[one.node] = min(one.lacks, nearest.get(one.node, one.lacks))
    shown = sorted(nearest, key=lambda node: nearest[node])[:SHOWN_NODES]
    kept = (one for one in answers if one.node in shown)
    return tuple(sorted(kept, key=lambda one: (shown.index(one.node), one.lacks)))


def _slices(cluster: Cluster, verdict: Verdict) -> Iterator[HolderRefused]:
    profile = verdict.detail
    seen: set[object] = set()
    for slot in verdict.slots.tolist():
        cards, used_here = cluster.slices.cards(slot), cluster.slices.used.get(slot)
        if cards is None or used_here is None or (cards, used_here) in seen:
            continue
        seen.add((cards, used_here))
        pods = [cluster.placements[uid] for uid in cluster.on_slot.get(slot, ())]
        for i, (card, used) in enumerate(zip(cards.cards, used_here, strict=True)):
            own = tuple(key_of(one.pod) for one in pods if one.slices and one.slices[i])
            rule, lacks = slice_rule(card, used, profile), taken(card.geometry, used).milli
            yield HolderRefused(cluster.nodes.names[slot], (f"GPU {card.gpu}",), rule, own, lacks)


def slice_rule(card: Card, used: int, name: str) -> str:
    """Why a GPU in MIG mode has no free instance, or too few, of a profile or resource. `used` is what is in use."""
    geometry = card.geometry
    profile = geometry.find(name)
    if profile is None:
        return f"{geometry.key} has no such profile"
    wanted, known = geometry.profiles[profile].name, states(geometry)
    own = known.of_profile[profile] & card.instances
    if own:
        free = (own & ~used).bit_count()
        return f"{free} of its {own.bit_count()} {wanted} are free" if free else f"all its {wanted} are in use"
    has = ", ".join(f"{geometry.profiles[i].name}@{start}" for i, start in geometry.members(card.instances))
    rule = f"no {wanted} among its instances {has}" if has else "it has no instances"
    refusal = known.refusal(used, profile)
    if refusal:
        return f"{rule}; beside those in use: {refusal}"
    return f"{rule}; their placements are assumed, so it is not repartitioned" if card.assumed else rule


def _shares(cluster: Cluster, pod: Pod, verdict: Verdict) -> Iterator[HolderRefused]:
    """The closest shared GPU of each node; for a pod with several replicas, the last of as many GPUs."""
    nodes = cluster.nodes
    shape = cluster.shape_of(pod)
    for slot in verdict.slots.tolist():
        sharing = nodes.sharing(slot)
        if sharing is None or not sharing.cards:
            continue
        parts, whole = shares.left(nodes, shape, slot), int(nodes.gpu_whole[slot])
        first = nodes.gpu_count(slot)
        cards = sorted(range(first, first + sharing.cards), key=lambda gpu: -parts[gpu])
        card = cards[min(shape.replicas(sharing), len(cards)) - 1]
        taken_of_one = shares.take(nodes, shape, slice(slot, slot + 1))
        need = int(taken_of_one[0]) if taken_of_one is not None else 0
        # Of an instance that can sleep also the room that its group has not yet.
        more = int(nodes.gpu_parts[card, slot]) - parts[card]
        need, parts[card] = need + more, parts[card] + more
        memory_mib = int(nodes.gpu_memory_mib[slot])
        rule = f"needs {_share(need, whole, memory_mib)}, {_share(parts[card], whole, memory_mib)} is left"
        pods = [cluster.placements[uid] for uid in cluster.on_slot.get(slot, ())]
        own = tuple(f"{key_of(p.pod)} ({p.share_milli}/{WHOLE_GPU_MILLI})" for p in pods if p.share_bits >> card & 1)
        lacks = -((parts[card] - need) * WHOLE_GPU_MILLI // whole)
        yield HolderRefused(nodes.names[slot], (f"GPU {card}",), rule, own, lacks)


def _share(part: int, whole: int, memory_mib: int) -> str:
    share = f"{part * WHOLE_GPU_MILLI // whole}/{WHOLE_GPU_MILLI}"
    return f"{share} ({part * memory_mib // whole} MiB)" if memory_mib else share


def _devices(cluster: Cluster, pod: Pod, verdict: Verdict) -> Iterator[HolderRefused]:
    shape = cluster.shape_of(pod)
    seen: set[int] = set()
    claimed = Claimed(cluster)
    for slot in verdict.slots.tolist():
        number = int(cluster.nodes.device_numbers[slot])
        if number in seen or len(seen) >= _MOST_EXAMINED:
            continue
        seen.add(number)
        wants = cluster.shapes.at(shape, slot).wants
        wanted = sum(min(one.count for one in alternatives) for spec in wants for alternatives in spec.requests)
        yield from _grouped(cluster.nodes.names[slot], claimed.seen(slot, wants), wanted)


def _grouped(node: str, seen: list[ClaimedView], wanted: int) -> Iterator[HolderRefused]:
    """Devices grouped by their rule and users; free devices without a rule are left out."""
    requests = {one.request for one in seen if one.request}
    free = len({one.device for one in seen if one.free})
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in seen:
        if one.rule:
            where = f"request {one.request}: " if one.request and len(requests) > 1 else ""
            groups.setdefault((where + one.rule, one.users), []).append(one.device)
    for (rule, users), devices in groups.items():
        yield HolderRefused(node, tuple(devices), rule, users, max(wanted - free, 0))
