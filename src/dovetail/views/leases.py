# SPDX-License-Identifier: Apache-2.0
"""Software agents and their leases: what each holds until when, what each negotiates for, and what each is due.

Rules
- States, offers and reasons are those that the scheduler wrote last; what it decided since is not known. A status that
  is about an older spec is marked. What planes hold, their credit and the pods inside of leases are those of the state.
- A request that is granted is not listed: its lease is. A lease that has ended is listed as long as its object exists.
- How long a lease has been without a pod is not written anywhere.
- What an agent wrote and cannot be honoured is shown as the nearest that can, with the problem as its message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from dovetail.core.bargaining.types import GpuLease, LeaseAlternative, Offer
from dovetail.core.model import Pod, Problem
from dovetail.core.queues.types import GPU
from dovetail.core.state import State
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate import lease_requests, leases
from dovetail.kube.translate.lease_records import LeaseObjects
from dovetail.kube.translate.lease_requests import lease_id
from dovetail.views.lease_texts import alternative_text, devices_text, nodes_of
from dovetail.views.lease_types import (
    LeaseEnd,
    LeaseRow,
    LeasesView,
    LeaseTotals,
    NodeDevices,
    OfferRow,
    PlaneRow,
    RequestRow,
)
from dovetail.views.leased import is_placeholder
from dovetail.views.names import JobNotFound, nearest
from dovetail.views.queue_shares import share
from dovetail.views.queue_types import QueueShare

_GRANTED = "Granted"


def all_leases(state: State, objects: LeaseObjects, now_ms: int, of: str = "") -> LeasesView:
    """The leases, requests and planes of the namespace or the plane `of`, or all. A plane is a name, or NAMESPACE/NAME.
    Raises JobNotFound."""
    shares = {one.queue: one for one in share(state, now_ms)}
    planes = [_plane(one, shares) for one in objects.planes]
    requests = [request_row(one) for one in objects.requests if not _settled(one)]
    named: dict[str, list[Pod]] = {}
    for pod in state.workloads.pods.values():
        if pod.lease and not is_placeholder(pod):
            named.setdefault(pod.lease, []).append(pod)
    rows = [lease_row(one, named.get(lease_id(one.metadata), ())) for one in objects.leases]
    known = [row.plane for row in planes] + [row.plane for row in requests] + [row.plane for row in rows]
    mine = _selected(known, of)
    return LeasesView(
        now_ms,
        tuple(sorted([row for row in planes if row.plane in mine], key=lambda row: row.plane)),
        tuple(sorted([row for row in requests if row.plane in mine], key=lambda row: row.request)),
        tuple(sorted([row for row in rows if row.plane in mine], key=lambda row: row.lease)),
    )


def leases_of_namespace(state: State, objects: LeaseObjects, now_ms: int, namespace: str, of: str = "") -> LeasesView:
    """What a user of one namespace sees: its rows as of `all_leases`, and totals of the others. Raises JobNotFound,
    with no name of another namespace."""
    own = LeaseObjects(
        tuple([one for one in objects.planes if one.metadata.namespace == namespace]),
        tuple([one for one in objects.requests if one.metadata.namespace == namespace]),
        tuple([one for one in objects.leases if one.metadata.namespace == namespace]),
    )
    shown, every = all_leases(state, own, now_ms, of), all_leases(state, objects, now_ms)
    mine = all_leases(state, own, now_ms) if of else shown
    totals = LeaseTotals(
        len(every.planes) - len(mine.planes), len(every.requests) - len(mine.requests),
        len(every.leases) - len(mine.leases), _held_milli(every.planes) - _held_milli(mine.planes),
    )  # fmt: skip
    return replace(shown, elsewhere=totals)


def _held_milli(planes: Iterable[PlaneRow]) -> int:
    return sum(dict(one.held).get(GPU, 0) for one in planes)


def _selected(planes: Iterable[str], of: str) -> set[str]:
    """The planes (NAMESPACE/NAME) that the argument names."""
    known = dict.fromkeys(planes)
    found = {one for one in known if not of or of in (one, *one.split("/"))}
    if of and not found:
        names = {name for one in known for name in (one, *one.split("/"))}
        raise JobNotFound(f"no namespace and no control plane is called {of}{nearest(of, sorted(names))}")
    return found


def _settled(obj: wire.LeaseRequest) -> bool:
    return obj.status is not None and obj.status.state == _GRANTED


def _plane(obj: wire.AgentControlPlane, shares: dict[str, QueueShare]) -> PlaneRow:
    record, status = leases.plane(obj), obj.status or wire.AgentControlPlaneStatus()
    own = shares.get(record.leaf)
    messages = [one.message for one in status.conditions if one.status == "False"]
    problem = str(record.problem) if record.problem is not None else next(iter(messages), "")
    return PlaneRow(
        record.id, record.queue, status.phase, problem, own.allocated if own is not None else (), record.guarantee,
        record.limit, own.credit_gpu_hours if own is not None else None, record.weight, status.leases,
        record.most_leases, status.requests, record.most_requests, record.heartbeat_ms,
        epoch_ms(status.last_heartbeat), obj.spec.backend,
    )  # fmt: skip


def offer_rows(offers: Iterable[Offer]) -> tuple[OfferRow, ...]:
    """The rows of offers of the core."""
    return tuple(
        [OfferRow(one.id, one.now, alternative_text(one.alternative), one.start_ms, one.why) for one in offers]
    )


def request_row(obj: wire.LeaseRequest) -> RequestRow:
    """The row of a request."""
    status, meta = obj.status or wire.LeaseRequestStatus(), obj.metadata
    offers = [
        OfferRow(one.id, bool(one.now), alternative_text(_alternative(one.alternative)), epoch_ms(one.start), one.why)
        for one in status.offers
    ]
    return RequestRow(
        lease_id(meta), f"{meta.namespace}/{obj.spec.plane}",
        tuple([alternative_text(_alternative(one)) for one in obj.spec.alternatives]),
        obj.spec.firm, epoch_ms(meta.creation_timestamp), status.state,
        not status.state or status.observed_generation == meta.generation, status.reason, status.message,
        epoch_ms(status.expected_start), epoch_ms(status.tried), tuple(offers), epoch_ms(status.offers_until),
    )  # fmt: skip


def lease_row(obj: wire.GPULease, named: Collection[Pod]) -> LeaseRow:
    """The row of a lease; `named` are the pods that name it."""
    status, meta, spec = obj.status or wire.GPULeaseStatus(), obj.metadata, obj.spec
    id_ = lease_id(meta)
    record, problem = leases.lease(obj)
    granted = record.alternative if record is not None else _alternative(spec.alternative)
    gone = status.revocation
    return LeaseRow(
        id_, f"{meta.namespace}/{spec.plane}", granted.service.value, devices_text(granted), _devices(record, spec),
        status.state, epoch_ms(spec.start), epoch_ms(status.end) or (record.end_ms if record is not None else 0),
        record.grace_ms if record is not None else 0, status.renewals, spec.fence,
        tuple(sorted(pod.key for pod in named if pod.node)), tuple(sorted(pod.key for pod in named if not pod.node)),
        LeaseEnd(gone.cause, epoch_ms(gone.deadline), gone.message) if gone is not None else None,
        status.refused, status.cause, epoch_ms(status.ended), str(problem) if problem is not None else "",
    )  # fmt: skip


def _devices(record: GpuLease | None, spec: wire.GPULeaseSpec) -> tuple[NodeDevices, ...]:
    if record is not None:
        return nodes_of(record.holdings)
    gpus: dict[str, list[int]] = {}
    for one in spec.devices:
        gpus.setdefault(one.node, []).append(one.gpu)
    return tuple([NodeDevices(node, tuple(sorted(set(found)))) for node, found in gpus.items()])


def _alternative(one: wire.LeaseAlternative) -> LeaseAlternative:
    return lease_requests.alternative(one, "", list[Problem]())
