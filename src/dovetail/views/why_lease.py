# SPDX-License-Identifier: Apache-2.0
"""Why a request for a lease waits, what it could have now and when it starts; and how long a lease lasts.

Rules
- What the scheduler wrote is shown as it is; everything else is the next step's and the look-ahead's, as for jobs.
- Each alternative is tried on its own: the next step on a copy in which the request has no other. An alternative that
  could start now is not granted for that: its turn in the queue, and an offer to the same plane, count as ever.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.bargaining.types import GpuLease, LeaseAlternative
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import enter
from dovetail.core.events import LeaseRequestChanged
from dovetail.core.policy import unhurried
from dovetail.core.state import State
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate import leases
from dovetail.kube.translate.lease_durations import text_of_ms
from dovetail.kube.translate.lease_records import LeaseObjects
from dovetail.kube.translate.lease_requests import lease_id
from dovetail.views.forecast_types import PLACED, Watch
from dovetail.views.lease_texts import alternative_text, devices_text, nodes_of
from dovetail.views.lease_types import LeaseRow
from dovetail.views.leased import is_placeholder
from dovetail.views.leases import lease_row, request_row
from dovetail.views.outlook import NextStep, Outlook, next_step
from dovetail.views.why import explain_request
from dovetail.views.why_types import AlternativeNow, WhyLease, WhyRequest

_RENEWED_PART = 1 / 3


class WhyLeases(Struct, frozen=True):
    """What has a name besides pods and jobs."""

    request: WhyRequest | None
    lease: WhyLease | None


def why_lease(
    state: State, objects: LeaseObjects, key: str, now_ms: int, watch: Watch = lambda started, waiting: None
) -> WhyLeases:
    """Explain the request and the lease "namespace/name". A request that led to the lease of its name is left out."""
    return explain_leases(Outlook(state, now_ms, watch), objects, key)


def explain_leases(outlook: Outlook, objects: LeaseObjects, key: str) -> WhyLeases:
    """The same, for the state of an outlook."""
    lease = next((one for one in objects.leases if lease_id(one.metadata) == key), None)
    request = next((one for one in objects.requests if lease_id(one.metadata) == key), None)
    if lease is not None and request is not None and lease.spec.request_uid == request.metadata.uid:
        request = None
    return WhyLeases(
        _request(outlook, request) if request is not None else None,
        _lease(outlook.state, lease, outlook.now_ms) if lease is not None else None,
    )


def _request(outlook: Outlook, obj: wire.LeaseRequest) -> WhyRequest:
    row = request_row(obj)
    one = outlook.state.requests.negotiations.get(row.request)
    if one is None:
        return WhyRequest(row, None, (), obj.status.lease if obj.status is not None else "")
    answer = explain_request(outlook, one)
    # A request that is invalid, or that does not wait in a queue, gets the same answer for each alternative.
    tried = one.alternatives if one.waiting else ()
    return WhyRequest(row, answer, tuple([_alone(outlook, one, alternative) for alternative in tried]))


def _alone(outlook: Outlook, one: Negotiation, alternative: LeaseAlternative) -> AlternativeNow:
    """The alternative, if it was the only one."""
    text, request = alternative_text(alternative), replace(one.request, alternatives=(alternative,), answer=None)
    copy = restore(unhurried(outlook.state.policy), outlook.checkpoint)
    enter(copy, [LeaseRequestChanged(request)], outlook.now_ms)
    after = next_step(take(copy), copy, outlook.now_ms)
    if granted := _granted(after, request.id):
        return AlternativeNow(text, PLACED, granted)
    reported = after.state.requests.negotiations[request.id].reported
    if reported is None:
        return AlternativeNow(text, "NotYet")
    return AlternativeNow(text, reported.when, "", reported.reason.code, str(reported))


def _granted(after: NextStep, request_id: str) -> str:
    """What the step grants or offers, in words; "" for nothing."""
    lease, offers = after.grants.get(request_id), after.offers.get(request_id)
    if lease is None and not offers:
        return ""
    holdings = lease.holdings if lease is not None else offers[0].holdings if offers else ()
    granted = lease.alternative if lease is not None else offers[0].alternative if offers else LeaseAlternative()
    term = text_of_ms(granted.duration_ms)
    return f"{devices_text(granted)} on {'; '.join(map(str, nodes_of(holdings)))}, for {term}"


def _lease(state: State, obj: wire.GPULease, now_ms: int) -> WhyLease:
    id_, pods = lease_id(obj.metadata), state.workloads.pods.values()
    row = lease_row(obj, [pod for pod in pods if pod.lease == id_ and not is_placeholder(pod)])
    record = leases.lease(obj)[0]
    plane = state.requests.planes.get(row.plane)
    renewable_ms, renewed_ms = _renewal(record, row, now_ms)
    return WhyLease(row, renewable_ms, renewed_ms, plane.idle_ms if plane is not None else 0)


def _renewal(record: GpuLease | None, row: LeaseRow, now_ms: int) -> tuple[int, int]:
    """From when on it can be renewed, and until when at most if it was renewed then; 0 and 0 where it cannot be."""
    if record is None or row.revocation is not None or row.cause or record.end_ms <= now_ms:
        return 0, 0
    term_ms = record.alternative.duration_ms
    from_ms = max(now_ms, record.end_ms - round(term_ms * _RENEWED_PART))
    return from_ms, from_ms + term_ms
