# SPDX-License-Identifier: Apache-2.0
"""Leases of software agents: from the core's decisions to the objects and their status.

Rules
- Pure: each function returns a document. A status is written as a whole, so what is absent in it is removed; the
  functions that take `before` keep the parts of the other decisions, as far as a status that was read has them.
- `lease_object` and `lease_status` together have all of a GpuLease: `leases.lease` reads the same record again.
- Messages are cut to the length that the schema admits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from dovetail.core.bargaining.placeholders import PREFIX
from dovetail.core.bargaining.states import GpuLeaseState, RequestState
from dovetail.core.bargaining.types import GpuLease, LeaseAlternative, Offer, Plane
from dovetail.core.decisions import EndLease, GrantLease, LeaseStatus, MakeOffers, RequestStatus, RevokeLease
from dovetail.core.queues.types import Amounts
from dovetail.kube.api.resources import GPU_LEASES
from dovetail.kube.api.texts import MESSAGE_BYTES, clipped
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate.leases import text_of_ms
from dovetail.kube.translate.queues import amounts_document, timestamp

Document = dict[str, Any]
_MOST_OFFERS = 4


def alternative_document(one: LeaseAlternative) -> Document:
    """An alternative with what differs from the defaults, and what it is always shown with."""
    found: Document = {"count": one.count, "perNode": one.per_node, "resource": one.resource}
    if one.least:
        found["least"] = one.least
    if one.gpu_milli:
        found["gpuFraction"] = f"{Decimal(one.gpu_milli) / 1000:f}"
    if one.gpu_memory_mib:
        found["gpuMemory"] = f"{one.gpu_memory_mib}Mi"
    if one.models:
        found["models"] = list(one.models)
    if one.nvlink:
        found["nvlink"] = True
    if one.within:
        found["within"] = list(one.within)
    if one.cpu_milli:
        found["cpu"] = f"{one.cpu_milli}m"
    if one.memory_bytes:
        found["memory"] = str(one.memory_bytes)
    found["duration"] = text_of_ms(one.duration_ms)
    if one.least_duration_ms:
        found["leastDuration"] = text_of_ms(one.least_duration_ms)
    if one.earliest_ms:
        found["earliest"] = timestamp(one.earliest_ms)
    if one.latest_ms:
        found["latest"] = timestamp(one.latest_ms)
    return found | {"class": one.service.value}


def offered(decision: MakeOffers, generation: int) -> Document:
    """The status of a request with offers."""
    return {
        "observedGeneration": generation,
        "state": RequestState.OFFERED.value,
        "offersUntil": timestamp(decision.until_ms),
        "offers": [_offer(one) for one in decision.offers[:_MOST_OFFERS]],
    }


def _offer(offer: Offer) -> Document:
    found = {
        "id": offer.id,
        "now": offer.now,
        "alternative": alternative_document(offer.alternative),
        "start": timestamp(offer.start_ms),
    }
    return found | ({"why": clipped(offer.why, MESSAGE_BYTES)} if offer.why else {})


def request_status(decision: RequestStatus, generation: int, before: wire.LeaseRequestStatus | None = None) -> Document:
    """The status of a request that waits or is denied. `before` is the status as it was last written: offers that are
    still outstanding stay, as where an answer named another one."""
    found: Document = {"observedGeneration": generation, "state": decision.state}
    if decision.state == RequestState.OFFERED.value and before is not None and before.offers:
        kept: Document = msgspec.to_builtins(before)
        found |= {"offersUntil": kept["offersUntil"], "offers": [_without_empty(one) for one in kept["offers"]]}
    refusal = decision.refusal
    if refusal is not None:
        found["reason"] = refusal.reason.code
        found["message"] = clipped(str(refusal), MESSAGE_BYTES)
        if refusal.expected is not None and refusal.expected.start_ms:
            found["expectedStart"] = timestamp(refusal.expected.start_ms)
    return found | ({"tried": timestamp(decision.until_ms)} if decision.until_ms else {})


def granted(decision: GrantLease, generation: int) -> Document:
    """The status of the request that led to the lease: the last one that it gets."""
    return {"observedGeneration": generation, "state": RequestState.GRANTED.value, "lease": decision.lease.name}


def lease_object(lease: GpuLease, uuids: Mapping[str, Sequence[str]] | None = None) -> Document:
    """The GPULease to create, without its status. `uuids` are those of the GPUs by node and index, where known."""
    namespace, _, plane = lease.plane.partition("/")
    devices: list[Document] = []
    for holding in lease.holdings:
        part = {"part": holding.uid.removeprefix(f"{PREFIX}{lease.id}/"), "node": holding.node}
        known = (uuids or {}).get(holding.node, ())
        shown = [(one.gpu, {"profile": one.profile, "slice": one.start}) for one in holding.instances]
        for gpu, instance in shown or [(gpu, {}) for gpu in holding.devices]:
            uuid = {"uuid": known[gpu]} if gpu < len(known) and known[gpu] else {}
            devices.append(part | {"gpu": gpu} | uuid | instance)
    return {
        "apiVersion": GPU_LEASES.api_version,
        "kind": GPU_LEASES.kind,
        "metadata": {"name": lease.name, "namespace": namespace},
        "spec": {
            "plane": plane,
            "alternative": alternative_document(lease.alternative),
            "devices": devices,
            "start": timestamp(lease.start_ms),
            "fence": lease.fence,
            "grace": text_of_ms(lease.grace_ms),
            "checkpointInterval": text_of_ms(lease.checkpoint_interval_ms),
            "startup": text_of_ms(lease.startup_ms),
        },
    }


def lease_status(
    lease: GpuLease, state: str = GpuLeaseState.ACTIVE.value, refused: str = "", action: int = 0
) -> Document:
    """The whole status of a live lease, for GrantLease and LeaseStatus. `action` is the number of the last action that
    was dealt with, `refused` why it was refused."""
    found: Document = {"state": state, "end": timestamp(lease.end_ms), "renewals": lease.renewals, "action": action}
    if refused:
        found["refused"] = clipped(refused, MESSAGE_BYTES)
    if lease.revocation is not None:
        found["revocation"] = _revocation(
            lease.revocation.cause, lease.revocation.deadline_ms, lease.revocation.message
        )
    return found


def status_of(decision: LeaseStatus, action: int) -> Document:
    """The status for a LeaseStatus."""
    return lease_status(decision.lease, decision.state, decision.refused, action)


def _revocation(cause: str, deadline_ms: int, message: str) -> Document:
    return {"cause": str(cause), "deadline": timestamp(deadline_ms), "message": clipped(message, MESSAGE_BYTES)}


def revoked(decision: RevokeLease, before: wire.GPULeaseStatus) -> Document:
    """The status of a lease that is taken back."""
    one = decision.revocation
    changed = {
        "state": GpuLeaseState.REVOKING.value,
        "revocation": _revocation(one.cause, one.deadline_ms, one.message),
    }
    return _kept(before) | changed


def ended(decision: EndLease, before: wire.GPULeaseStatus, now_ms: int) -> Document:
    """The status of a lease that is over."""
    over = {"state": GpuLeaseState.ENDED.value, "cause": decision.cause.value, "ended": timestamp(now_ms)}
    return _kept(before) | over


def _kept(before: wire.GPULeaseStatus) -> Document:
    """What a status that was read holds, as it is written."""
    return _without_empty(msgspec.to_builtins(before))


def _without_empty(document: Document) -> Document:
    """The document without texts and lists that are empty, in all its objects."""
    return {
        name: _without_empty(value) if isinstance(value, dict) else value
        for name, value in document.items()
        if value not in ("", None, [])
    }


def plane_status(plane: Plane, held: Amounts, counts: tuple[int, int], heard_ms: int, silent: bool) -> Document:
    """The status of a control plane, without its usage. `counts` are its live leases and its requests that are not
    settled, `heard_ms` when it was last heard (0: never)."""
    phase = "Invalid" if plane.problem is not None else "Silent" if silent else "Ready"
    found: Document = {"phase": phase, "leases": counts[0], "requests": counts[1], "held": amounts_document(held)}
    return found | ({"lastHeartbeat": timestamp(heard_ms)} if heard_ms else {})
