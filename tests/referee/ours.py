# SPDX-License-Identifier: Apache-2.0
"""Our side of a case: its objects through the tables and translations of the live scheduler into the core."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec
import numpy as np
from msgspec import Struct, field

from dovetail.core.cluster.columns import Mask
from dovetail.core.cluster.selection import matches_affinity
from dovetail.core.event_handlers import apply
from dovetail.core.events import Event
from dovetail.core.model import Pod
from dovetail.core.placing import filters, refusals, scores
from dovetail.core.reasons import Reason
from dovetail.core.state import State
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.decoding import Reader
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import Resource
from dovetail.kube.translate.sources import sources
from dovetail.kube.translate.translator import Translator
from tests.referee.handmade import Case
from tests.referee.manifests import SCHEDULER

OBJECTS: dict[Resource, str] = {
    kinds.NODES: "nodes",
    kinds.CSI_NODES: "csiNodes",
    kinds.NAMESPACES: "namespaces",
    kinds.PVCS: "persistentVolumeClaims",
    kinds.PVS: "persistentVolumes",
    kinds.STORAGE_CLASSES: "storageClasses",
    kinds.PODS: "pods",
}
"""The fields of a case by their kind. The pod to place comes with the other pods."""

_SERVED = Served(frozenset((kind.api_version, kind.plural) for kind in OBJECTS))
_reader = lru_cache(Reader)


class Verdicts(Struct):
    """What the core answers: the nodes that it accepts, those that each rule refuses whatever the others answer, why it
    asks no node at all (`blocked`), and each refused node's first reason, as `dovetail why` counts it."""

    accepted: set[str]
    refused: dict[Reason, set[str]]
    blocked: Reason | None
    gated: bool
    first: dict[str, Reason] = field(default_factory=dict)


def reported(feed: Translator, case: Case) -> Iterator[Event]:
    """What the live scheduler's first lists report to the core, the pod to place with the other pods."""
    everything = case | {"pods": [*case["pods"], case["pod"]]}
    for source in sources(feed, _SERVED):
        if source.resource not in OBJECTS:
            continue
        body = msgspec.json.encode({"metadata": {}, "items": everything[OBJECTS[source.resource]]})
        page, bad = _reader(source.resource, source.kind).page(body)
        assert not bad, bad
        yield from source.translate([Change("added", item) for item in page.items or ()])


def read(case: Case) -> tuple[State, Pod]:
    """The state after the live scheduler's first lists, and the pod to place."""
    state = State()
    for event in reported(Translator(SCHEDULER), case):
        apply(state, event)
    return state, state.workloads.pods[case["pod"]["metadata"]["uid"]]


def ask(case: Case) -> Verdicts:
    state, pod = read(case)
    cluster, names = state.cluster, state.cluster.nodes.names
    blocked = cluster.volumes.refusal(pod)
    found = Verdicts(set(), {}, blocked.reason if blocked else None, pod.gated)
    for reason, satisfied in _rules(state, pod):
        refused = np.flatnonzero(~satisfied[: len(names)])
        found.refused.setdefault(reason, set()).update(names[slot] for slot in refused if cluster.nodes.records[slot])
    if blocked is None:
        found.accepted = _accepted(state, pod)
        for verdict in refusals.verdicts(cluster, pod):
            found.first |= {names[slot]: verdict.reason for slot in verdict.slots}
    return found


def _accepted(state: State, pod: Pod) -> set[str]:
    """The nodes that the core would put the pod on, as a step finds them."""
    cluster, shape = state.cluster, state.cluster.shapes.of(pod.request)
    mask = state.score_cache.of(shape).score != scores.INFEASIBLE
    for _, satisfied in filters.hindrances(cluster, pod, shape):
        mask &= satisfied
    names = cluster.nodes.names
    return {names[slot] for slot in np.flatnonzero(mask) if cluster.volumes.pick(pod, int(slot)) is not None}


def _rules(state: State, pod: Pod) -> Iterator[tuple[Reason, Mask]]:
    cluster = state.cluster
    nodes, shape = cluster.nodes, cluster.shapes.of(pod.request)
    everywhere = slice(0, nodes.size)
    yield Reason.NODE_INVALID, nodes.usable
    yield Reason.TAINT, filters.tolerated(nodes, pod.request, everywhere)
    yield Reason.NODE_AFFINITY, matches_affinity(nodes, pod.request, everywhere)
    yield Reason.INSUFFICIENT, filters.has_room(nodes, shape, everywhere)
    yield from filters.hindrances(cluster, pod, shape)
    if cluster.volumes.refusal(pod) is None:
        served = [cluster.volumes.pick(pod, slot) is not None for slot in range(len(nodes.names))]
        yield Reason.VOLUME_NODE, np.array(served)
