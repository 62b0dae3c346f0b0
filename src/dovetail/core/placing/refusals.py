# SPDX-License-Identifier: Apache-2.0
"""The reasons why a pod or gang was not placed: the masks of the filters, counted node by node.

Each node counts once, for the first rule that refuses it, so the counts add up to the number of nodes. A refusal is
NEVER for a node where no ending pod would help: a taint, a selector, a request that exceeds the empty node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from operator import is_not

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dovetail.core import quantities
from dovetail.core.cluster import Cluster, shares
from dovetail.core.cluster.columns import ABSENT, Mask
from dovetail.core.cluster.maintenances import tolerates
from dovetail.core.cluster.nodes import UNOFFERED, UNSCHEDULABLE_TAINT, Nodes
from dovetail.core.cluster.selection import matches_affinity
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig import names as mig
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.core.labels import untolerated
from dovetail.core.model import GPU, PODS, WHOLE_GPU_MILLI, Pod, Taint
from dovetail.core.placing import filters, links
from dovetail.core.placing.gangs import GangSearch, Group, shapes_of
from dovetail.core.placing.pods import Scope
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.reasons import NodeCount, Reason, Refusal, When

_VERY_MANY = 2**31
_ALWAYS_NEVER = {Reason.NODE_INVALID, Reason.UNSCHEDULABLE, Reason.TAINT, Reason.NODE_AFFINITY, Reason.VOLUME_NODE,
                 Reason.SPREAD_LABEL}  # fmt: skip


class Verdict(Struct, frozen=True):
    """The nodes (slots) that one rule refuses, and whether that can change."""

    reason: Reason
    when: When
    slots: NDArray[np.int64]
    detail: str = ""
    nearest: str = ""


def for_pod(cluster: Cluster, pod: Pod, scope: Scope | None = None) -> Refusal:
    """The refusal of a pod that no node takes now; with `scope`, of one that none of these slots takes."""
    blocked = cluster.volumes.refusal(pod) or cluster.claims.refusal(pod)
    if blocked is not None:
        return blocked
    found = verdicts(cluster, pod, scope)
    total = int(np.count_nonzero(_known(cluster.nodes)))
    if not total:
        return Refusal(Reason.NO_NODES, When.NOT_YET)
    counts = tuple(
        NodeCount(v.reason, len(v.slots), v.when, v.detail, v.nearest)
        for v in sorted(found, key=lambda v: (-len(v.slots), v.reason.code, v.detail))
    )
    when = When.NEVER if found and all(v.when is When.NEVER for v in found) else When.NOT_YET
    return Refusal(Reason.NO_NODE_FITS, when, nodes=counts, total_nodes=total)


def verdicts(cluster: Cluster, pod: Pod, scope: Scope | None = None) -> list[Verdict]:
    """All nodes that refuse the pod, by the first rule that does. With `scope`, the nodes outside of it are refused
    last, as OUTSIDE_DOMAIN."""
    nodes = cluster.nodes
    remaining = _known(nodes)
    found: list[Verdict] = []
    left = int(np.count_nonzero(remaining))
    for reason, when, refused, detail, nearest in _rules(cluster, pod, remaining):
        (slots,) = (remaining & refused).nonzero()
        if len(slots):
            remaining[slots] = False
            found.append(Verdict(reason, when, slots, detail, nearest))
            left -= len(slots)
            if not left:
                # No node is left that a later rule could count.
                return found
    if scope is not None:
        outside = remaining.copy()
        outside[scope] = False
        if outside.any():
            found.append(Verdict(Reason.OUTSIDE_DOMAIN, When.NOT_YET, np.flatnonzero(outside)))
    return found


def _known(nodes: Nodes) -> Mask:
    """The slots that have a node."""
    known = np.zeros(nodes.size, dtype=np.bool_)
    known[: len(nodes.records)] = list(map(is_not, nodes.records, repeat(None)))
    return known


_Rule = tuple[Reason, When, Mask, str, str]


def _rules(cluster: Cluster, pod: Pod, remaining: Mask) -> Iterator[_Rule]:
    """The rules in order, each with the mask of nodes that it refuses. The caller shrinks `remaining` after each."""
    nodes, shape = cluster.nodes, cluster.shape_of(pod)
    everywhere = slice(0, nodes.size)
    yield Reason.NODE_INVALID, When.NEVER, ~nodes.usable, "", ""
    for taint, refused in _taints(cluster, pod):
        if taint == UNSCHEDULABLE_TAINT:
            yield Reason.UNSCHEDULABLE, When.NEVER, refused, "", ""
        else:
            value = f"={taint.value}" if taint.value else ""
            yield Reason.TAINT, When.NEVER, refused, f"{{{taint.key}{value}:{taint.effect}}}", ""
    if pod.request.node_selector or pod.request.node_terms is not None:
        yield Reason.NODE_AFFINITY, When.NEVER, ~matches_affinity(nodes, pod.request, everywhere), "", ""
    if filters.asks_plugin(pod.request):
        yield Reason.PLUGIN_GONE, When.NOT_YET, nodes.plugin_gone, "", ""
    yield Reason.QUARANTINED, When.NOT_YET, nodes.quarantined, "", ""
    if nodes.in_maintenance and not tolerates(pod.request):
        yield Reason.MAINTENANCE, When.NOT_YET, nodes.closes_ms < shape.until_ms, "", ""
    yield Reason.SPARE, When.NOT_YET, filters.kept_from(nodes, shape, everywhere), "", ""
    yield from _amounts(cluster, shape, remaining)
    never = _ALWAYS_NEVER if cluster.volumes.settled(pod) else _ALWAYS_NEVER - {Reason.VOLUME_NODE}
    for reason, satisfied in filters.hindrances(cluster, pod, shape):
        yield reason, When.NEVER if reason in never else When.NOT_YET, ~satisfied, "", ""
    yield from _devices(cluster, shape, remaining)
    yield from _kubelets(cluster, shape, remaining)
    if pod.claims and cluster.volumes.refusal(pod) is None:
        # Each claim alone may be usable on the node, and all of them together not.
        lacking = np.zeros(nodes.size, dtype=np.bool_)
        for slot in np.flatnonzero(remaining):
            lacking[slot] = cluster.volumes.pick(pod, int(slot)) is None
        yield Reason.VOLUME_NODE, When.NOT_YET, lacking, "", ""


def _taints(cluster: Cluster, pod: Pod) -> Iterator[tuple[Taint, Mask]]:
    nodes = cluster.nodes
    by_taint: dict[Taint, list[int]] = {}
    for number, taints in enumerate(nodes.taint_sets):
        taint = untolerated(taints, pod.request.tolerations)
        if taint is not None:
            by_taint.setdefault(taint, []).append(number)
    for taint, numbers in by_taint.items():
        refused = np.zeros(len(nodes.taint_sets), dtype=np.bool_)
        refused[numbers] = True
        yield taint, refused[nodes.taint_ids]


def _amounts(cluster: Cluster, shape: Shape, remaining: Mask) -> Iterator[_Rule]:
    """GPUs first, since users look for them; then the other resources in the order of their columns."""
    nodes = cluster.nodes
    names = {column: name for name, column in nodes.resources.items()}
    if shape.needs_links:
        # Before the free GPUs are counted: no number of free GPUs would help.
        enough = nodes.allocatable[nodes.resources[GPU]] >= shape.gpus
        apart = enough & _apart(nodes, shape, links.all_gpus(nodes))
        yield Reason.NVLINK, When.NEVER, apart, f"({shape.gpus} GPUs)", ""
    everywhere = slice(0, nodes.size)
    for reason, refused in shares.refusals(nodes, shape, everywhere):
        yield reason, When.NEVER, refused, *_why_never(nodes, shape, reason, remaining & refused)
    (columns,) = shape.need[:, 0].nonzero()
    asked = sorted(columns.tolist(), key=lambda column: (names[column] != GPU, column))
    wanted = [(column, names[column], int(shape.need[column, 0])) for column in asked if names[column] != UNOFFERED]
    amounts = dict(shape.request.resources)
    wanted += [(nodes.column(name), name, amounts[name]) for name in shape.unoffered]
    for column, name, need in wanted:
        short, too_small = nodes.free[column] < need, nodes.allocatable[column] < need
        if shape.stand_ins is not None:
            counted = _counted(nodes, shape, column, (name,))
            short, too_small = counted & short, counted & too_small
        reason = Reason.TOO_MANY_PODS if name == PODS else Reason.INSUFFICIENT
        detail = "" if name == PODS else name
        for when, refused in ((When.NEVER, too_small), (When.NOT_YET, short)):
            yield reason, when, refused, detail, _nearest(cluster, column, name, need, when, remaining & refused)
    some = shares.parts(nodes, shape, everywhere)
    if some is not None:
        taken = some.taken
        no_gpu = (nodes.sharing_ids == 0) & (nodes.allocatable[nodes.resources[GPU]] == 0)
        never = (taken == shares.NOWHERE) | ((taken > 0) & no_gpu)
        yield Reason.GPU_SHARE, When.NEVER, never, _asked_share(shape), ""
        room = shares.fits(nodes, shape, everywhere, some, some.left(nodes, everywhere))
        yield Reason.GPU_SHARE, When.NOT_YET, ~room, _asked_share(shape), ""
    if shape.needs_links:
        yield Reason.NVLINK, When.NOT_YET, _apart(nodes, shape, nodes.gpu_free_bits), f"({shape.gpus} GPUs)", ""


def _counted(nodes: Nodes, shape: Shape, column: int, names: tuple[str, ...]) -> Mask:
    """Nodes where the resources of a column count, because no devices by claim stand in for them."""
    counted: Mask = nodes.allocatable[column] > 0
    replaced = shape.stand_ins is not None and all(name in shape.stand_ins.resources for name in names)
    return counted if replaced else np.ones_like(counted)


def _asked_share(shape: Shape) -> str:
    request, count = shape.request, shape.shared or shape.gpus
    milli = f"{request.gpu_milli}/{WHOLE_GPU_MILLI}" if request.gpu_milli else "a replica's part"
    share = f"{request.gpu_memory_mib} MiB" if request.gpu_memory_mib else milli
    if request.gpu_asleep_mib:
        share = f"{share} while it is awake, {request.gpu_asleep_mib} MiB asleep,"
    return f"({share} of each of {count} GPUs)" if count > 1 else f"({share} of a GPU)"


def _why_never(nodes: Nodes, shape: Shape, reason: Reason, refused: Mask) -> tuple[str, str]:
    """The detail and the nearest node of a GPU rule that can never admit the shape."""
    if reason is Reason.GPU_ISOLATION:
        return f"(demands {shape.request.isolation})", ""
    if reason is not Reason.GPU_MEMORY or not refused.any():
        return "", ""
    largest = int(np.where(refused, nodes.gpu_memory_mib, -1).argmax())
    sharing, memory_mib = nodes.sharing(largest), int(nodes.gpu_memory_mib[largest])
    each = memory_mib // sharing.replicas if sharing is not None and sharing.isolation == "memory" else memory_mib
    has = f"has at most {each} MiB for one pod" if memory_mib else "does not report the memory of its GPUs"
    return _asked_share(shape), f"{nodes.names[largest]} {has}"


def _devices(cluster: Cluster, shape: Shape, remaining: Mask) -> Iterator[_Rule]:
    """Nodes that cannot allocate the devices of the pod's claims, by what they lack."""
    found: dict[tuple[When, str], list[int]] = {}
    for slot in np.flatnonzero(remaining) if shape.wants or shape.stand_ins is not None else ():
        there = cluster.shapes.at(shape, int(slot))
        answer = cluster.claims.answers.of(int(slot), there)
        if not answer.fits:
            never = not cluster.claims.answers.of_unused(int(slot), there).fits
            found.setdefault((When.NEVER if never else When.NOT_YET, f"({answer.detail})"), []).append(int(slot))
    for (when, detail), slots in found.items():
        refused = np.zeros(cluster.nodes.size, dtype=np.bool_)
        refused[slots] = True
        yield Reason.DEVICES, when, refused, detail, ""


def _kubelets(cluster: Cluster, shape: Shape, remaining: Mask) -> Iterator[_Rule]:
    """Nodes whose kubelet would reject the pod, by its reason and message."""
    kubelets = cluster.kubelets
    found: dict[tuple[When, str], list[int]] = {}
    numbers = np.where(remaining, cluster.nodes.book_numbers, 0) if shape.request.managed is not None else ()
    for number, slot in zip(*np.unique(numbers, return_index=True), strict=True):
        # The kubelets of nodes with equal state give equal answers.
        answer = kubelets.ask(int(slot), shape) if number else None
        if answer is not None and answer.admitted is False:
            when = When.NEVER if kubelets.ask_empty(int(slot), shape).admitted is False else When.NOT_YET
            found.setdefault((when, f"({answer.reason}: {answer.message})"), []).append(int(number))
    for (when, detail), refusing in found.items():
        yield Reason.KUBELET, when, np.isin(numbers, refusing), detail, ""


def _apart(nodes: Nodes, shape: Shape, gpus: links.Free) -> Mask:
    """Nodes where these GPUs lack the NVLinks that the shape needs."""
    return np.asarray(links.closeness(nodes, slice(0, nodes.size), gpus, shape) == links.TOO_FAR)


def _nearest(cluster: Cluster, column: int, name: str, need: int, when: When, refused: Mask) -> str:
    if name == PODS:
        return ""
    (slots,) = refused.nonzero()
    if not len(slots):
        return ""
    nodes = cluster.nodes
    amounts = nodes.allocatable if when is When.NEVER else nodes.free
    best = int(slots[amounts[column, slots].argmax()])
    has = "has at most" if when is When.NEVER else "has free"
    record = nodes.records[best]
    owner = record.name if record is not None else "?"
    most = quantities.display(name, int(amounts[column, best]))
    text = f"needs {quantities.display(name, need)}, {owner} {has} {most}"
    total = int(amounts[column, slots].sum())
    if "/" in name and total >= need:
        # All devices of one pod are on one node, however many the others have.
        text += f"; all of these nodes together have {quantities.display(name, total)}, but a pod uses only one node's"
    fault = _misnamed(nodes, name) if when is When.NEVER and mig.is_like(name) else ""
    return f"{text}; {name} {fault}" if fault else text


def _misnamed(nodes: Nodes, name: str) -> str:
    """The fault in the name of a MIG resource that no node offers, with a name that some node does offer."""
    offered = {other for other, column in nodes.resources.items() if nodes.allocatable[column].any()}
    records = (record for record in nodes.records if record is not None)
    geometries = {card.geometry: None for record in records for card in record.mig}
    return mig.fault(name, tuple(geometries) or GEOMETRIES, offered)


def for_gang(cluster: Cluster, rows: ScoreCache, group: Group) -> Refusal:
    """The refusal of a whole gang: how many of its pods fit together, where, and what stops the first pod that does
    not fit."""
    pods = list(group.all_pods())
    if len(pods) == 1 and not group.required:
        return for_pod(cluster, pods[0])
    need = group.total_missing()
    wanted = shapes_of(cluster, group)
    search = GangSearch(cluster, rows, 1)
    level = group.required[-1] if group.required else ""
    pinned = _pinned(cluster, group, level)
    now, where = _most(cluster, search, level, wanted, pinned)
    empty = _most_when_empty(cluster, wanted, level, bool(group.all_held()))
    inside = f" in one {level}" if level else ""
    if empty < need:
        beside = " beside its spares" if cluster.spares.rules else ""
        detail = f"needs {need} pods{inside}, the cluster has room for {empty} even when empty{beside}"
        reason, when = Reason.GANG_TOO_LARGE, When.NEVER
    else:
        at = f" (in {where})" if where else ""
        detail = f"needs {need} pods{inside}, {now} fit now{at}"
        reason, when = Reason.GANG_DOES_NOT_FIT, When.NOT_YET
    hardest = max(pods, key=lambda pod: cluster.shape_of(pod).gpus)
    counts = for_pod(cluster, hardest, None if pinned is None else cluster.fabric.slots(level, pinned))
    return Refusal(reason, when, detail, counts.nodes, counts.total_nodes)


def _pinned(cluster: Cluster, group: Group, level: str) -> int | None:
    """The domain to which placed members fix the gang; None where there is none."""
    domains = cluster.fabric.domains(level) if level else None
    held = () if domains is None else (int(domains[slot]) for slot in group.all_held())
    return next((domain for domain in held if domain != ABSENT), None)


def _most(
    cluster: Cluster, search: GangSearch, level: str, wanted: list[tuple[Shape, int]], pinned: int | None
) -> tuple[int, str]:
    if not level:
        return search.room(None, wanted), ""
    capacity, _ = search.potential(level, None, wanted)
    if not len(capacity):
        return 0, ""
    best = int(capacity.argmax()) if pinned is None else pinned
    return int(capacity[best]), cluster.fabric.name(level, best)


def _most_when_empty(cluster: Cluster, wanted: list[tuple[Shape, int]], level: str, held: bool) -> int:
    """`held`: the gang has pods already, so that spares may be open to it."""
    nodes = cluster.nodes
    spares = [] if held else cluster.spares.when_empty()
    everywhere = slice(0, nodes.size)
    sums: Counter[int] = Counter()
    names = {column: name for name, column in nodes.resources.items()}
    for shape, count in wanted:
        asked = np.flatnonzero(shape.need)
        rates = nodes.allocatable[asked] // shape.need[asked]
        counted = [
            _counted(nodes, shape, column, shape.unoffered if names[column] == UNOFFERED else (names[column],))
            for column in asked.tolist()
        ]
        copies = np.where(counted, rates, _VERY_MANY).min(axis=0)
        copies = np.minimum(copies, shares.copies_when_empty(nodes, shape))
        if shape.needs_links:
            copies = np.minimum(copies, links.times(nodes, everywhere, links.all_gpus(nodes), shape))
        copies = np.where(filters.selected(nodes, shape.request, everywhere), copies, 0)
        if filters.minds_spares(shape):
            copies[spares] = 0
        domains = cluster.fabric.domains(level) if level else np.zeros(nodes.size, dtype=np.int64)
        inside = domains >= 0
        for domain, copied in enumerate(np.bincount(domains[inside], weights=copies[inside]).astype(np.int64)):
            sums[domain] += min(int(copied), count)
    return max(sums.values(), default=0)
