# SPDX-License-Identifier: Apache-2.0
"""Leases of software agents: from the core's decisions to the objects and their status.

Rules
- Pure: each function returns a document. A status is written as a whole, so what is absent in it is removed.
- `lease_object` and `lease_status` together have all of a GpuLease: `leases.lease` reads the same record again.
- Messages are cut to the length that the schema admits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.bargaining.states import GpuLeaseState, RequestState
from dovetail.core.bargaining.types import PREFIX, GpuLease, LeaseAlternative, Offer
from dovetail.core.decisions import EndLease, MakeOffers, RequestStatus
from dovetail.core.reasons import Reason
from dovetail.kube.api.resources import GPU_LEASES
from dovetail.kube.api.texts import MESSAGE_BYTES, clipped
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import epoch_ms, milli_time_text
from dovetail.kube.translate.lease_durations import text_of_ms
from dovetail.kube.translate.queue_amounts import amounts_document
from dovetail.kube.translate.queue_documents import READY, ready_condition, usage_document

if TYPE_CHECKING:
    from dovetail.core.queues.status import QueueSnapshot

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
        found["earliest"] = milli_time_text(one.earliest_ms)
    if one.latest_ms:
        found["latest"] = milli_time_text(one.latest_ms)
    return found | {"class": one.service.value}


def offered(decision: MakeOffers, generation: int) -> Document:
    """The status of a request with offers."""
    return {
        "observedGeneration": generation,
        "state": RequestState.OFFERED.value,
        "offersUntil": milli_time_text(decision.until_ms),
        "offers": [_offer(one) for one in decision.offers[:_MOST_OFFERS]],
    }


def _offer(offer: Offer) -> Document:
    found = {
        "id": offer.id,
        "now": offer.now,
        "alternative": alternative_document(offer.alternative),
        "start": milli_time_text(offer.start_ms),
    }
    return found | ({"why": clipped(offer.why, MESSAGE_BYTES)} if offer.why else {})


def request_status(decision: RequestStatus, generation: int, before: Document | None = None) -> Document:
    """The status of a request that waits or is denied. `before` is the status as it was last written: offers that are
    still outstanding stay, as where an answer named another one."""
    found: Document = {"observedGeneration": generation, "state": decision.state}
    if decision.state == RequestState.OFFERED.value and before is not None:
        found |= {name: before[name] for name in ("offersUntil", "offers") if name in before}
    refusal = decision.refusal
    if refusal is not None and refusal.reason is Reason.RESERVED:
        # The detail has the name of another workload.
        refusal = replace(refusal, detail="")
    if refusal is not None:
        found["reason"] = refusal.reason.code
        found["message"] = clipped(str(refusal), MESSAGE_BYTES)
        if refusal.expected is not None and refusal.expected.start_ms:
            found["expectedStart"] = milli_time_text(refusal.expected.start_ms)
    return found | ({"tried": milli_time_text(decision.until_ms)} if decision.until_ms else {})


def granted(lease: str, generation: int) -> Document:
    """The status of the request that led to the lease of this name: the last one that it gets."""
    return {"observedGeneration": generation, "state": RequestState.GRANTED.value, "lease": lease}


def lease_object(
    lease: GpuLease, request_uid: str = "", uuids: Mapping[str, Sequence[str]] | None = None
) -> Document:  # fmt: skip
    """The GPULease to create, without its status. `request_uid` is the uid of the LeaseRequest that led to it, `uuids`
    are those of the GPUs by node and index, where known."""
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
            "requestUid": request_uid,
            "alternative": alternative_document(lease.alternative),
            "devices": devices,
            "start": milli_time_text(lease.start_ms),
            "fence": lease.fence,
            "grace": text_of_ms(lease.grace_ms),
            "checkpointInterval": text_of_ms(lease.checkpoint_interval_ms),
            "startup": text_of_ms(lease.startup_ms),
        },
    }


def lease_status(
    lease: GpuLease, state: str = GpuLeaseState.ACTIVE.value, refused: str = "", action: int = 0
) -> Document:
    """The whole status of a live lease. `action` is the number of the last action that was dealt with, `refused` why it
    was refused."""
    end = milli_time_text(lease.end_ms)
    found: Document = {"state": state, "end": end, "renewals": lease.renewals, "action": action}
    if refused:
        found["refused"] = clipped(refused, MESSAGE_BYTES)
    if lease.revocation is not None:
        one = lease.revocation
        found["revocation"] = {
            "cause": one.cause.value,
            "deadline": milli_time_text(one.deadline_ms),
            "message": clipped(one.message, MESSAGE_BYTES),
        }
    return found


def ended(decision: EndLease, now_ms: int, before: Document) -> Document:
    """The status of a lease that is over since `now_ms`; `before` is the status as it was last written."""
    over = {"state": GpuLeaseState.ENDED.value, "cause": decision.cause.value, "ended": milli_time_text(now_ms)}
    return before | over | {"rate": decision.rate_milli}


class Acknowledged(Struct, frozen=True):
    """A heartbeat: the time that its agent wrote into it, and when it was acknowledged, by the scheduler's clock."""

    renewed_ms: int
    at_ms: int


def acknowledged(status: wire.AgentControlPlaneStatus | None) -> Acknowledged | None:
    """The heartbeat in a status that was read."""
    if status is None or status.last_heartbeat is None or status.renew_time is None:
        return None
    return Acknowledged(epoch_ms(status.renew_time), epoch_ms(status.last_heartbeat))


class PlaneReport(Struct, frozen=True):
    """What is reported of a control plane. `message` is why it is not Ready, `heard` its last heartbeat, `snapshot`
    that of its queue; None where it has none."""

    phase: str
    message: str = ""
    leases: int = 0
    requests: int = 0
    heard: Acknowledged | None = None
    snapshot: QueueSnapshot | None = None


def plane_status(report: PlaneReport, now_ms: int, before: wire.AgentControlPlaneStatus | None = None) -> Document:
    """The whole status of a control plane. `before` is the status that was read, for the time of the condition."""
    found: Document = {"phase": report.phase, "leases": report.leases, "requests": report.requests}
    if report.heard is not None:
        found["lastHeartbeat"] = milli_time_text(report.heard.at_ms)
        found["renewTime"] = milli_time_text(report.heard.renewed_ms)
    snapshot = report.snapshot
    found["held"] = amounts_document(snapshot.allocated if snapshot is not None else ())
    if snapshot is not None:
        usage = usage_document(snapshot)
        found["usage"] = {name: usage[name] for name in ("asOf", "used", "rate", "share", "credit", "days")}
    conditions = before.conditions if before is not None else ()
    ready = ready_condition(report.phase == READY, report.phase, report.message, now_ms, conditions)
    return found | {"conditions": [ready]}
