# SPDX-License-Identifier: Apache-2.0
"""The relocation of one unit in a trial: its pods are taken off, and placed as their owners create them again."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Pod
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached
from dovetail.core.placing.pods import Scope
from dovetail.core.preemption.dry_run import evict
from dovetail.core.preemption.units import Unit
from dovetail.core.preemption.victims import subgangs
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE


class Move(Struct, frozen=True):
    """A pod moves between two nodes. By then the GPUs `devices` of the target are free for it."""

    uid: str
    source: str
    target: str
    devices: tuple[int, ...]


class MoveStep(Struct, frozen=True):
    """Pods of one workload that move at the same time, and the work that is lost, in milli-GPU times ms."""

    workload: str
    moves: tuple[Move, ...]
    lost_milli_ms: int


def relocate(state: State, unit: Unit, where: Scope | None) -> MoveStep | None:
    """Place the unit elsewhere in the running trial; None, and nothing changed, where it finds no room in `where`."""
    cluster, names = state.cluster, state.cluster.nodes.names
    mark = cluster.mark()
    evict(cluster, [unit])
    try:
        search = GangSearch(cluster, state.score_cache, state.policy.search_limit)
        moved = search.place(_waiting_group(state, unit), where)
    except SearchLimitReached:
        moved = False
    if not moved:
        cluster.rewind(mark)
        return None
    there = [cluster.placements[uid] for uid in unit.uids]
    moves = (Move(p.pod.uid, names[slot], names[p.slot], p.devices) for p, slot in zip(there, unit.slots, strict=True))
    return MoveStep(unit.workload, tuple(moves), unit.lost_milli_ms)


def _waiting_group(state: State, unit: Unit) -> Group:
    """The pods of a unit as a waiting group, beside the rest of their gangs."""
    workload_index, placements = state.workloads, state.cluster.placements
    if unit.workload.startswith(LONE):
        return Group(pods=[_unbound(workload_index.pods[unit.uids[0]])])
    gone, below = set(unit.uids), subgangs(workload_index, unit.workload)
    members: dict[str, list[Pod]] = {}
    for pod in workload_index.members(unit.workload):
        members.setdefault(pod.gang, []).append(pod)

    def group(gang_id: str) -> Group:
        gang, own = workload_index.gangs.get(gang_id), members.get(gang_id, [])
        pods = [_unbound(pod) for pod in own if pod.uid in gone]
        held = [placements[pod.uid].slot for pod in own if pod.uid in placements and not pod.deleting]
        parts = [group(child) for child in below.get(gang_id, ())]
        for part in parts:
            held += part.all_held() if not any(part.all_pods()) else ()
        levels = (gang.required, gang.preferred) if gang is not None else ((), ())
        moving = [part for part in parts if any(part.all_pods())]
        return Group(pods, held, len(pods), len(pods), moving, 0, *levels)

    return group(unit.workload)


def _unbound(pod: Pod) -> Pod:
    """The pod as its owner creates it again."""
    return replace(pod, node="", nominated_node="", devices=None, instances=(), by_claim=())
