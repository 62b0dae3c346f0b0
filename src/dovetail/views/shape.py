# SPDX-License-Identifier: Apache-2.0
"""The largest gang of one shape of pod that can start now: by GPU model and fabric level, and what blocks the next pod.

Rules
- It is the scheduler's own search that places the gang, in a trial. The rules of `probe` hold: it asks for nothing but
  GPUs and what goes with each, closed nodes count for nothing, and so do pods that wait, queues, and room that is held.
- A model is each value of nvidia.com/gpu.product that the text is part of, whatever its case; without one all nodes
  with GPUs are asked for at once.
- At a level the gang is inside one domain of it: the one that holds most.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.cluster.columns import ABSENT, Mask
from dovetail.core.model import GPU, MAX_GPUS, Pod
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached
from dovetail.core.state import State
from dovetail.kube.nodes.layouts import PRODUCT
from dovetail.views.jobs import nearest
from dovetail.views.probe import Beside, Blocked, Probe

_SHAPE = re.compile(r"(?:(?P<pods>[1-9]\d{0,5})x)?(?P<gpus>[1-9]\d?)(?:x(?P<model>\D.*))?")
ANYWHERE = ""
_MOST_PODS = 100_000


class ShapeError(ValueError):
    """The text is no shape, or nothing in the cluster is of it; the message says what would be."""


class ShapeView(Struct, frozen=True):
    """`pods` of `gpus` GPUs each; `model` is part of the model's label, "" for any."""

    gpus: int
    pods: int = 1
    model: str = ""


class ShapeLevel(Struct, frozen=True):
    """`pods` is the largest gang inside one domain of the fabric `level` ("": anywhere), which is `name` then; `nodes`
    are where its pods go. `blocked` says what keeps one pod more from it."""

    level: str
    name: str
    pods: int
    nodes: tuple[str, ...]
    blocked: Blocked | None


class Largest(Struct, frozen=True):
    """`model` is the label, "" for all models at once."""

    model: str
    levels: tuple[ShapeLevel, ...]


class ShapeAnswer(Struct, frozen=True):
    """`starts` is whether a gang of as many pods as are asked for can start now, anywhere."""

    shape: ShapeView
    starts: bool
    models: tuple[Largest, ...]


def parse(text: str) -> ShapeView:
    """`8`, `8xH100`, `4x8xH100` (four pods of eight GPUs), `4x8`. Raises ShapeError."""
    match = _SHAPE.fullmatch(text)
    if match is None or int(match["gpus"]) > MAX_GPUS:
        raise ShapeError(
            f"{text!r} is no shape: 8 GPUs of one pod are 8, of a model 8xH100, four such pods 4x8xH100 or 4x8; "
            f"a pod has at most {MAX_GPUS}"
        )
    return ShapeView(int(match["gpus"]), int(match["pods"] or 1), match["model"] or "")


def largest(state: State, shape: ShapeView, beside: Beside) -> ShapeAnswer:
    """Raises ShapeError where no node has GPUs of the model."""
    ask = Probe(state, beside)
    models = tuple(
        Largest(model or "", tuple(_levels(ask, shape, model, where))) for model, where in models_of(ask, shape)
    )
    return ShapeAnswer(shape, any(one.levels[0].pods >= shape.pods for one in models), models)


def models_of(ask: Probe, shape: ShapeView) -> list[tuple[str | None, Mask]]:
    """The models that the shape means, with their nodes; None is any. Raises ShapeError where there are none."""
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
    """`where` is the domain that holds most by count, which is an upper bound: the search has the last word."""
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
    """The slots of a gang of so many pods, inside one domain of the level, in the running trial; none where it does not
    fit."""
    pods = [replace(pod, uid=f"{pod.name}-{i}") for i in range(count)]
    group = Group(pods=pods, missing=count, required=(key,) if key else ())
    try:
        fits = bool(count) and GangSearch(ask.cluster, ask.state.score_cache, ask.state.policy.search_limit).place(
            group
        )
    except SearchLimitReached:
        fits = False
    return [ask.cluster.placements[one.uid].slot for one in pods] if fits else []
