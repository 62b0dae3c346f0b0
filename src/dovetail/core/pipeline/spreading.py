# SPDX-License-Identifier: Apache-2.0
"""Where the next replica of an object goes, if its replicas are to be spread over failure domains.

Rules: replicas are the gangs that were made for one object of one namespace, as the groups of a LeaderWorkerSet. The
next one is placed within the domains that have the fewest of them, where it fits; else within those with one more, and
so on; in the end anywhere: a domain that is full, or a node without the label, keeps no replica from starting. Inside
these domains it is placed as any gang is. A gang of which pods run already stays where it is. What is tried for the
spread has a limit of its own: that search may end without an answer, and then the gang is placed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.core.cluster.columns import ABSENT
from dovetail.core.model import Gang
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached
from dovetail.core.placing.pods import Scope
from dovetail.core.state import State

MOST_TRIES = 4
"""How many numbers of replicas are tried before anywhere: each is a search."""


def place(state: State, workload: str, group: Group, scope: Scope | None, limit: int) -> bool:
    """Place the group of a workload inside the scope (None: anywhere), in the running trial. Returns False where it
    does not fit; the caller must then drop the trial. Raises SearchLimitReached."""
    gang = state.workloads.gangs.get(workload)
    if gang is not None and gang.spread and not group.all_held() and _spread(state, gang, group, scope, limit):
        return True
    return GangSearch(state.cluster, state.score_cache, limit).place(group, scope)


def _spread(state: State, gang: Gang, group: Group, scope: Scope | None, limit: int) -> bool:
    """Place the group in domains with few replicas."""
    search = GangSearch(state.cluster, state.score_cache, limit)
    for inside in _preferred(state, gang, scope):
        with state.cluster.trial() as trial:
            try:
                if search.place(group, inside):
                    trial.keep()
                    return True
            except SearchLimitReached:
                # It ended in the middle of a placement.
                group.unchoose()
                return False
    return False


def _preferred(state: State, gang: Gang, scope: Scope | None) -> Iterator[Scope]:
    """The domains with the fewest replicas; then also those with the next number, and so on, but not all domains."""
    fabric, nodes = state.cluster.fabric, state.cluster.nodes
    domains = fabric.domains(gang.spread)
    slots = np.arange(nodes.used) if scope is None else scope
    slots = slots[domains[slots] != ABSENT]
    if not len(slots):
        return
    replicas = np.zeros(fabric.count(gang.spread), dtype=np.int64)
    for there in _siblings(state, gang):
        held = np.unique(domains[there])
        replicas[held[held != ABSENT]] += 1
    counts = replicas[domains[slots]]
    for most in np.unique(counts)[:-1][:MOST_TRIES].tolist():
        yield slots[counts <= most]


def _siblings(state: State, gang: Gang) -> Iterator[list[int]]:
    """The slots of each other replica that has pods on nodes."""
    index, placements = state.workloads, state.cluster.placements
    made_for = index.made_for(gang.id)
    for other in index.gangs.values() if made_for else ():
        if other.spread == gang.spread and other.namespace == gang.namespace and other.id != gang.id:
            pods = index.members(other.id)
            if (slots := [placements[pod.uid].slot for pod in pods if pod.uid in placements]) and (
                index.made_for(other.id) == made_for
            ):
                yield slots
