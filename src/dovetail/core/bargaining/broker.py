# SPDX-License-Identifier: Apache-2.0
"""The broker's part of a step: what is new of planes, requests and leases, and what is due with time.

Rules: leases that were read come first, so that no workload gets their devices; then leases end; then requests are
read. A decision that evicts placeholders, or pods within a lease, revokes the whole lease instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining import inside, negotiating, terms
from dovetail.core.bargaining.leases import LiveLease
from dovetail.core.bargaining.negotiating import takes_planes
from dovetail.core.bargaining.types import LEAVES, EndCause, Plane
from dovetail.core.decisions import Decision, Drain, Evict, Release
from dovetail.core.event_handlers import apply
from dovetail.core.queues.types import Queue
from dovetail.core.state import State

_RECLAIMED = "another workload has a better right to the devices"


def active(state: State) -> bool:
    """Whether there is anything to negotiate about."""
    return bool(state.requests.planes or state.leases.live or state.requests or state.leases)


def due(state: State) -> list[Decision]:
    """What follows from events and from time, before the queues are served."""
    requests, leases, now_ms = state.requests, state.leases, state.now_ms
    decisions: list[Decision] = []
    moved, requests.moved = list(requests.moved), {}
    for plane_id in moved:
        _enter_queue(state, plane_id)
    ran, leases.ran = list(leases.ran.values()), {}
    for past in ran:
        terms.charge_past(state, past)
    recorded, leases.recorded = list(leases.recorded.values()), {}
    for lease in recorded:
        decisions += terms.resume(state, lease)
    removed, leases.removed = list(leases.removed.items()), {}
    for lease_id, made in removed:
        decisions += terms.end(state, leases.live[lease_id], EndCause.RETURNED, made=made)
    actions, leases.actions = list(leases.actions.values()), {}
    for action in actions:
        decisions += terms.act(state, action)
    for plane_id in requests.heartbeats.take(now_ms):
        requests.silent[plane_id] = None
        moved.append(plane_id)
    for lease_id in leases.timers.take(now_ms):
        decisions += terms.due(state, leases.live[lease_id])
    decisions += _lost_devices(state)
    gone, requests.gone = list(requests.gone), {}
    for request_id in gone:
        negotiating.drop(state, requests.negotiations[request_id])
    decisions += _admitted(state, ())
    news, requests.news = sorted(requests.news.values(), key=lambda request: (request.created_ms, request.id)), {}
    for request in news:
        decisions += negotiating.read(state, request)
    for plane_id in dict.fromkeys(moved):
        decisions += _moved(state, plane_id)
    for request_id in requests.timers.take(now_ms):
        decisions += negotiating.due(state, requests.negotiations[request_id])
    return decisions + _admitted(state, moved)


def _admitted(state: State, moved: Sequence[str]) -> list[Decision]:
    """Requests that were beyond what their planes may have, and get the places that are free; also of planes that have
    moved."""
    places, decisions = state.requests.places, list[Decision]()
    freed, places.freed = places.freed, {}
    for plane_id in dict.fromkeys([*moved, *freed]):
        decisions += negotiating.admit(state, plane_id)
    return decisions


def _enter_queue(state: State, plane_id: str) -> None:
    """The plane is a leaf below its queue, from the first heartbeat interval on."""
    plane = state.requests.planes.get(plane_id)
    if plane is None:
        return
    if takes_planes(state, plane):
        apply(state, ev.QueueChanged(_leaf(state, plane)))
    if plane.heartbeat_ms and plane_id not in state.requests.silent:
        state.requests.heartbeats.put(plane_id, state.now_ms + 3 * plane.heartbeat_ms)


def _leaf(state: State, plane: Plane) -> Queue:
    """Its usage decays as that of the queue which it is a leaf of."""
    return Queue(
        plane.leaf, plane.queue, plane.guarantee, plane.limit, plane.weight, namespaces=(plane.namespace,),
        half_life_ms=state.shares.tree.written[plane.queue].half_life_ms, created_ms=plane.created_ms,
        usage=plane.usage, uid=plane.uid,
    )  # fmt: skip


def _moved(state: State, plane_id: str) -> list[Decision]:
    """The plane is new, has changed, is silent, is heard again, or is gone."""
    requests, decisions = state.requests, list[Decision]()
    plane = requests.planes.get(plane_id)
    live = [state.leases.live[lease_id] for lease_id in state.leases.by_plane.get(plane_id, ())]
    if plane is None:
        for one in live:
            decisions += terms.revoke(state, one, EndCause.PLANE_GONE, f"the control plane {plane_id} was deleted")
    elif plane_id in requests.silent:
        seconds = 3 * plane.heartbeat_ms // 1000
        for one in live:
            decisions += terms.revoke(state, one, EndCause.LOST, f"no heartbeat of {plane_id} for {seconds} s")
    if plane is None:
        requests.places.close(plane_id)
    # Where it comes or goes this is about all of its requests; else those that are beyond wait for a place.
    known = plane is not None and not requests.places.open(plane_id)
    for negotiation in requests.placed(plane_id) if known else requests.by_age(plane_id):
        decisions += negotiating.plane_moved(state, negotiation)
    if plane is None and not live:
        apply(state, ev.QueueRemoved(LEAVES + plane_id))
    return decisions


def _lost_devices(state: State) -> list[Decision]:
    """Leases of which a node is gone, or a GPU is out."""
    changed, state.leases.nodes_changed = state.leases.nodes_changed, {}
    nodes, decisions = state.cluster.nodes, list[Decision]()
    if not changed:
        return []
    for live in list(state.leases.live.values()):
        for holding in live.lease.holdings:
            if holding.node not in changed:
                continue
            slot = nodes.slots.get(holding.node)
            record = nodes.records[slot] if slot is not None else None
            if record is None:
                what = f"the node {holding.node} is gone"
            elif out := [gpu for gpu in holding.devices if record.gpus_out >> gpu & 1 and not holding.instances]:
                what = f"GPU {out[0]} of {holding.node} cannot be used any more"
            else:
                continue
            decisions += terms.revoke(state, live, EndCause.HARDWARE, what)
            break
    return decisions


def attempt(state: State, workload: str) -> list[Decision] | None:
    """The attempt for a workload of a request, or of pods within a lease; None for any other workload."""
    one = state.requests.by_workload.get(workload)
    if one is not None:
        return negotiating.attempt(state, one)
    first = state.workloads.first(workload)
    if first is not None and inside.concerns(state, first):
        return inside.attempt(state, workload)
    return None


def revoking(state: State, decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions with leases revoked in place of the evictions of their parts."""
    found: list[Decision] = []
    for decision in decisions:
        if not isinstance(decision, Evict | Drain | Release) or not state.leases.live:
            found.append(decision)
            continue
        leases = {uid: live for uid in decision.uids if (live := _lease_of(state, uid)) is not None}
        left = tuple([uid for uid in decision.uids if uid not in leases])
        if leases and isinstance(decision, Evict) and decision.targets:
            kept = [n for n, uid in enumerate(decision.uids) if uid not in leases]
            found.append(replace(decision, uids=left, targets=tuple([decision.targets[n] for n in kept])))
        elif not leases or left or isinstance(decision, Evict):
            found.append(replace(decision, uids=left) if leases else decision)
        for live in {live.lease.id: live for live in leases.values()}.values():
            drained = isinstance(decision, Drain) and bool(decision.node)
            cause = EndCause.MAINTENANCE if drained else EndCause.RECLAIMED
            # That of an eviction has the names of the workload that starts instead, and of its queue.
            message = decision.message if isinstance(decision, Drain) else _RECLAIMED
            found += terms.revoke(state, live, cause, message)
    return found


def _lease_of(state: State, uid: str) -> LiveLease | None:
    pod = state.workloads.pods.get(uid)
    return state.leases.live.get(pod.lease) if pod is not None and pod.lease else None
