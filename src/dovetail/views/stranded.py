# SPDX-License-Identifier: Apache-2.0
"""Free GPUs that no pod of a shape can use: how many, where, and why.

Rules
- On a node with F free GPUs, where C pods with G GPUs each fit now one after another, F - C x G are stranded. Of these
  F mod G are `fragmented`: the rest is smaller than the pod, whatever else there is. The others, (F div G - C) x G,
  have the cause that refuses the next pod: the first resource of which C is all that there is room for (`cpu`,
  `memory`, another one), else `topology` (NVLink, or a NUMA policy of the kubelet), else the `rule` of the scheduler.
- With several shapes, as those of waiting pods, the one counts on each node that uses most of it, among equals the
  smallest: so a GPU is stranded only if none of them can use it. How many pods wait does not count.
- A node that a shape does not admit at all, by taint, selector or affinity, is none of its nodes; GPUs that no shape
  admits are free, and not stranded.
- GPUs in MIG mode count by compute slices, the GPUs of a node as the first of them: what pods do not hold, less what
  instances of a waiting profile can still get there, is `mig`.
- Nodes are the open ones of `probe`, and GPUs are whole: shared ones are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Mask
from dovetail.core.cluster.nodes import UNOFFERED
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.slices import slices
from dovetail.core.model import CPU, GPU, MEMORY, WHOLE_GPU_MILLI, Pod
from dovetail.core.placing import refusals
from dovetail.core.reasons import Reason
from dovetail.core.state import State
from dovetail.views.free_types import FRAGMENTED, MIG, RULE, TOPOLOGY, StrandedGpus, StrandedPart
from dovetail.views.priced_gpus import priced_node
from dovetail.views.priced_types import PricedNode
from dovetail.views.probe import Probe

_NAMES = {CPU: "cpu", MEMORY: "memory"}
_NOT_ADMITTED = {Reason.NODE_INVALID, Reason.UNSCHEDULABLE, Reason.TAINT, Reason.NODE_AFFINITY}
_OF_TOPOLOGY = {Reason.NVLINK, Reason.KUBELET}
_MOST_SHAPES = 32
"""Of waiting pods: each costs a pass over all nodes."""


class _Found(Struct, frozen=True):
    milli: int
    cause: str
    detail: str
    gpus: int


def of_shapes(ask: Probe, pods: Sequence[tuple[Pod, Mask]]) -> StrandedGpus:
    """What pods with whole GPUs leave, each on its nodes."""
    return _answer(ask, pods, 0)


def of_waiting(ask: Probe) -> StrandedGpus:
    """What the pods that wait leave."""
    by_shape: dict[Shape, list[Pod]] = {}
    for pod in _waiting(ask.state):
        by_shape.setdefault(ask.cluster.shape_of(pod), []).append(pod)
    some = sorted(by_shape.values(), key=lambda pods: (-len(pods), pods[0].key))
    everywhere = ask.there
    return _answer(ask, [(pods[0], everywhere) for pods in some[:_MOST_SHAPES]], max(0, len(some) - _MOST_SHAPES))


def _waiting(state: State) -> Iterator[Pod]:
    for pod in state.workloads.pods.values():
        if pod.managed and not pod.node and pod.uid not in state.cluster.placements:
            yield pod


class _Want(NamedTuple):
    """A shape: how many of its pods fit on each node, the nodes that admit it, and why a node refuses it now."""

    shape: Shape
    copies: NDArray[np.int64]
    admitted: Mask
    refused: dict[int, refusals.Verdict]


def _wanted(ask: Probe, pod: Pod, where: Mask) -> _Want:
    admitted, refused = where & ask.open, dict[int, refusals.Verdict]()
    for verdict in refusals.verdicts(ask.cluster, pod):
        refused |= dict.fromkeys(verdict.slots.tolist(), verdict)
        if verdict.reason in _NOT_ADMITTED:
            admitted[verdict.slots] = False
    return _Want(ask.cluster.shape_of(pod), ask.copies(pod, where), admitted, refused)


def _answer(ask: Probe, pods: Iterable[tuple[Pod, Mask]], left_out: int) -> StrandedGpus:
    wants = [_wanted(ask, pod, where) for pod, where in pods]
    whole = [one for one in wants if one.shape.gpus and not one.shape.shared and not one.shape.fraction]
    whole.sort(key=lambda one: one.shape.gpus)
    sliced = [one for one in wants if one.shape.slices]
    free: dict[str, int] = {}
    parts: dict[tuple[PricedNode, _Found], list[str]] = {}
    for found in (_whole(ask, whole), _sliced(ask, sliced)):
        for slot, (milli, some) in found.items():
            name = ask.nodes.names[slot]
            kind = priced_node(ask.state, name)
            if kind is not None:
                free[name] = free.get(name, 0) + milli
                for one in some:
                    parts.setdefault((kind, one), []).append(name)
    rows = [
        StrandedPart(kind, tuple(names), one.milli, one.cause, one.detail, one.gpus)
        for (kind, one), names in parts.items()
    ]
    return StrandedGpus(
        sum(free.values()), sum(one.gpus_milli * len(one.nodes) for one in rows),
        tuple(sorted({one.shape.gpus for one in whole})), tuple(rows), left_out,
    )  # fmt: skip


def _whole(ask: Probe, wants: Sequence[_Want]) -> dict[int, tuple[int, list[_Found]]]:
    """By slot, what is free of whole GPUs that one of the shapes may have, and what of that is stranded."""
    nodes = ask.nodes
    shared = np.array([sharing is not None and sharing.resource == GPU for sharing in nodes.sharings])
    amounts = np.where(~nodes.sliced & ~shared[nodes.sharing_ids], ask.free(GPU), 0)
    most = np.full(nodes.size, -1, dtype=np.int64)
    best = np.full(nodes.size, -1, dtype=np.int64)
    for number, one in enumerate(wants):
        used = np.where(one.admitted, np.minimum(one.copies * one.shape.gpus, amounts), -1)
        better = used > most
        most[better], best[better] = used[better], number
    found: dict[int, tuple[int, list[_Found]]] = {}
    for slot in np.flatnonzero((best >= 0) & (amounts > 0)).tolist():
        one, left = wants[best[slot]], int(amounts[slot])
        each, pods = one.shape.gpus, int(one.copies[slot])
        some = [(left % each, FRAGMENTED, ""), ((left // each - pods) * each, *_cause(ask, one, slot, pods))]
        found[slot] = (
            left * WHOLE_GPU_MILLI,
            [_Found(gpus * WHOLE_GPU_MILLI, why, detail, each) for gpus, why, detail in some if gpus > 0],
        )
    return found


def _cause(ask: Probe, want: _Want, slot: int, pods: int) -> tuple[str, str]:
    """Why not one pod more where the GPUs would do, with its detail."""
    nodes, need = ask.nodes, want.shape.need
    for name, column in sorted(nodes.resources.items(), key=lambda pair: (pair[0] not in _NAMES, pair[1])):
        each = int(need[column, 0]) if column < len(need) and name not in (GPU, UNOFFERED) else 0
        if each and max(0, int(nodes.free[column, slot])) // each == pods:
            return _NAMES.get(name, name), ""
    verdict = want.refused.get(slot)
    if verdict is None or verdict.reason in _OF_TOPOLOGY:
        return TOPOLOGY, ""
    return RULE, f"{verdict.reason.text} {verdict.detail}".rstrip()


def _sliced(ask: Probe, wants: Sequence[_Want]) -> dict[int, tuple[int, list[_Found]]]:
    """The same of GPUs in MIG mode."""
    found: dict[int, tuple[int, list[_Found]]] = {}
    for slot in np.flatnonzero(np.any([one.admitted for one in wants], axis=0)).tolist() if wants else ():
        known = ask.cluster.slices.cards(slot)
        if known is None:
            continue
        left = 0
        for card, used in zip(known.cards, ask.cluster.slices.used[slot], strict=True):
            geometry = card.geometry
            held = slices(geometry, [geometry.profiles[i] for i, _ in geometry.members(used)]).compute
            left += geometry.compute_slices - held
        geometries = list(dict.fromkeys(card.geometry for card in known.cards))
        usable = [
            min(left, int(one.copies[slot]) * each)
            for one in wants
            if one.admitted[slot] and (each := _compute_slices(one.shape, geometries))
        ]
        if usable:
            of_gpu = geometries[0].compute_slices
            rest = (left - max(usable)) * WHOLE_GPU_MILLI // of_gpu
            found[slot] = left * WHOLE_GPU_MILLI // of_gpu, [_Found(rest, MIG, "", 0)] if rest else []
    return found


def _compute_slices(shape: Shape, geometries: Sequence[Geometry]) -> int:
    """The compute slices of its instances; 0 where a GPU cannot have one of them."""
    total = 0
    for resource, count in shape.slices:
        profile = next((one.profiles[i] for one in geometries if (i := one.find(resource)) is not None), None)
        if profile is None:
            return 0
        total += count * profile.compute_slices
    return total
