# SPDX-License-Identifier: Apache-2.0
"""The tables of the broker written down as values, for a checkpoint of the state."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.bargaining.leases import LiveLease
from dovetail.core.bargaining.negotiation import Negotiation, PlacesRecord
from dovetail.core.bargaining.states import GpuLeaseState
from dovetail.core.bargaining.types import GpuLease, Holding, LeaseAction, LeaseRequest, Plane
from dovetail.core.events import LeaseRan
from dovetail.core.model import Pod
from dovetail.core.state import State

Times = tuple[tuple[str, int], ...]


class PodInside(Struct, frozen=True):
    """A pod (uid) within a lease, with what it took of which placeholder."""

    uid: str
    parts: tuple[Holding, ...]


class LiveLeaseRecord(Struct, frozen=True):
    """See `leases.LiveLease`."""

    lease: GpuLease
    workload: str
    whole: tuple[Pod, ...]
    state: GpuLeaseState
    inside: tuple[PodInside, ...]
    action: int
    idle_ms: int


class Bargaining(Struct, frozen=True):
    """See `requests.Requests`, `leases.Leases` and `Shares.since_ms`; what is derived from these is left out. Each
    table is in its order."""

    planes: tuple[Plane, ...] = ()
    negotiations: tuple[Negotiation, ...] = ()
    offered: tuple[tuple[str, str], ...] = ()
    silent: tuple[str, ...] = ()
    request_times: Times = ()
    heartbeat_times: Times = ()
    news: tuple[LeaseRequest, ...] = ()
    gone: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    leases: tuple[LiveLeaseRecord, ...] = ()
    lease_times: Times = ()
    recorded: tuple[GpuLease, ...] = ()
    removed: tuple[tuple[str, bool], ...] = ()
    actions: tuple[LeaseAction, ...] = ()
    nodes_changed: tuple[str, ...] = ()
    fence: int = 0
    ran: tuple[LeaseRan, ...] = ()
    since: Times = ()
    freed: tuple[str, ...] = ()
    places: tuple[PlacesRecord, ...] = ()


def take(state: State) -> Bargaining | None:
    """None where there is nothing."""
    requests, leases = state.requests, state.leases
    found = Bargaining(
        tuple(requests.planes.values()), tuple([replace(one) for one in requests.negotiations.values()]),
        tuple(requests.offered.items()), tuple(requests.silent), requests.timers.records(),
        requests.heartbeats.records(), tuple(requests.news.values()), tuple(requests.gone), tuple(requests.moved),
        tuple([_record(one) for one in leases.live.values()]),
        leases.timers.records(), tuple(leases.recorded.values()), tuple(leases.removed.items()),
        tuple(leases.actions.values()), tuple(leases.nodes_changed), leases.fence, tuple(leases.ran.values()),
        tuple(state.shares.since_ms.items()), tuple(requests.places.freed), requests.places.records(),
    )  # fmt: skip
    return found if found != Bargaining() else None


def _record(live: LiveLease) -> LiveLeaseRecord:
    inside = tuple([PodInside(uid, parts) for uid, parts in live.inside.items()])
    whole = tuple(live.whole.values())
    return LiveLeaseRecord(live.lease, live.workload, whole, live.state, inside, live.action, live.idle_ms)


def restore(state: State, record: Bargaining) -> None:
    """Enter the tables; the pods, placeholders among them, are there already."""
    requests, leases = state.requests, state.leases
    for plane in record.planes:
        requests.put_plane(plane)
    for negotiation in record.negotiations:
        requests.restore(replace(negotiation))
    requests.offered, requests.silent = dict(record.offered), dict.fromkeys(record.silent)
    requests.timers.restore(record.request_times)
    requests.heartbeats.restore(record.heartbeat_times)
    requests.news = {request.id: request for request in record.news}
    requests.gone, requests.moved = dict.fromkeys(record.gone), dict.fromkeys(record.moved)
    for one in record.leases:
        whole, inside = {pod.uid: pod for pod in one.whole}, {pod.uid: pod.parts for pod in one.inside}
        leases.add(LiveLease(one.lease, one.workload, whole, one.state, inside, one.action, one.idle_ms))
    leases.timers.restore(record.lease_times)
    leases.recorded = {lease.id: lease for lease in record.recorded}
    leases.removed = dict(record.removed)
    leases.actions = {action.lease: action for action in record.actions}
    leases.nodes_changed = dict.fromkeys(record.nodes_changed)
    leases.fence = record.fence
    leases.ran = {lease.id: lease for lease in record.ran}
    state.shares.since_ms = dict(record.since)
    requests.places.restore(record.places)
    requests.places.freed = dict.fromkeys(record.freed)
