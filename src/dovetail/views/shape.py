# SPDX-License-Identifier: Apache-2.0
"""The largest gang of one shape of pod that can start now, by GPU model and fabric level, and what blocks one more pod.

Rules
- The scheduler's own search places the gang, in a trial. As in `probe`, its pods request only GPUs, and CPU and memory
  for each; closed nodes, waiting pods, queues and reservations do not count.
- The models are all values of nvidia.com/gpu.product that contain the text, in upper or lower case; without a text, all
  nodes with GPUs count together.
- At a level, the gang is inside one domain: the one that holds most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster.columns import ABSENT, Mask
from dovetail.core.model import GPU, Pod
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached
from dovetail.core.state import State
from dovetail.kube.nodes.layouts import PRODUCT
from dovetail.views.free_types import Beside
from dovetail.views.names import nearest
from dovetail.views.probe import Probe
from dovetail.views.shape_types import ANYWHERE, Largest, ShapeAnswer, ShapeError, ShapeLevel, ShapeView
from dovetail.views.stranded import of_shapes

_MOST_PODS = 100_000


def largest(state: State, shape: ShapeView, beside: Beside) -> ShapeAnswer:
    """The largest gangs of a shape. Raises ShapeError if no node has GPUs of the model."""
    ask = Probe(state, beside)
    known = models_of(ask, shape)
    models = tuple(Largest(model or "", tuple(_levels(ask, shape, model, where))) for model, where in known)
    pods = [(ask.pod(model, shape.gpus, (GPU, shape.gpus)), where) for model, where in known]
    starts = any(one.levels[0].pods >= shape.pods for one in models)
    return ShapeAnswer(shape, starts, models, of_shapes(ask, pods))


def models_of(ask: Probe, shape: ShapeView) -> list[tuple[str | None, Mask]]:
    """The models of the shape, with their nodes; None is any model. Raises ShapeError if no node has GPUs of it."""
    offering = ask.there & (ask.allocatable(GPU) > 0)
    if not shape.model:
        return [(None, offering)]
    known = list(ask.by_model(offering))
    found: list[tuple[str | None, Mask]] = [
        (label, where) for label, where in known if shape.model.lower() in label.lower()
    ]
    if not found:
        labels = [label for label, _ in known if label]
        there = f"there are {', '.join(labels)}" if labels else f"no node has the label {PRODUCT}"
        raise ShapeError(f"no node has GPUs of the model {shape.model!r}{nearest(shape.model, labels)}: {there}")
    return found


def _levels(ask: Probe, shape: ShapeView, model: str | None, where: Mask) -> Iterator[ShapeLevel]:
    pod = ask.pod(model, shape.gpus, (GPU, shape.gpus))
    copies, fabric = ask.copies(pod, where), ask.cluster.fabric
    yield _level(ask, pod, ANYWHERE, where, int(copies.sum()))
    for key in fabric.levels:
        domains = fabric.domains(key)
        inside = (domains != ABSENT) & where
        if inside.any():
            pods = np.bincount(domains[inside], weights=copies[inside])
            free = np.bincount(domains[inside], weights=ask.free(GPU)[inside])
            best = max(np.unique(domains[inside]).tolist(), key=lambda domain: (pods[domain], free[domain]))
            yield _level(ask, pod, key, inside & (domains == best), int(pods[best]))


def _level(ask: Probe, pod: Pod, key: str, where: Mask, most: int) -> ShapeLevel:
    """The largest gang at a level. `where` is the domain with room for `most` pods by count, which is an upper bound of
    what the search finds."""
    most = min(most, _MOST_PODS)
    fabric = ask.cluster.fabric
    if not _fits(ask, pod, most, key):
        most = bisect_left(range(1, most), True, key=lambda count: not _fits(ask, pod, count, key))
    with ask.cluster.trial():
        placed = _place(ask, pod, most, key)
        if key and placed:
            domains = fabric.domains(key)
            where = domains == domains[placed[0]]
        name = fabric.name(key, int(fabric.domains(key)[np.flatnonzero(where)[0]])) if key else ""
        nodes = tuple(ask.nodes.names[slot] for slot in sorted(set(placed)))
        blocked = ask.blocked(pod, where, dict(pod.request.resources)[GPU])
        others = tuple(holder for holder in blocked.holders if holder.pod != pod.key)
        return ShapeLevel(key, name, most, nodes, replace(blocked, holders=others))


def _fits(ask: Probe, pod: Pod, count: int, key: str) -> bool:
    with ask.cluster.trial():
        return len(_place(ask, pod, count, key)) == count


def _place(ask: Probe, pod: Pod, count: int, key: str) -> list[int]:
    """Place a gang of `count` pods inside one domain of the level, in the running trial. Returns the slots of its pods;
    empty if it does not fit."""
    pods = [replace(pod, uid=f"{pod.name}-{i}") for i in range(count)]
    group = Group(pods=pods, missing=count, required=(key,) if key else ())
    try:
        fits = bool(count) and GangSearch(ask.cluster, ask.state.score_cache, ask.state.policy.search_limit).place(
            group
        )
    except SearchLimitReached:
        fits = False
    return [ask.cluster.placements[one.uid].slot for one in pods] if fits else []
