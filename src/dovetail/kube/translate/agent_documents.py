# SPDX-License-Identifier: Apache-2.0
"""The agent's half of the objects of leases: what it writes, and what it reads of the scheduler's answers.

Rules: pure. `lease_requests.request` reads a request that was written here as the same record, but for the time of its
creation. What a later scheduler writes and this release does not know is left out, never an error.
"""

from __future__ import annotations

from typing import Any

from dovetail.core.bargaining.types import Answer, EndCause, LeaseAction, LeaseRequest, Offer
from dovetail.core.model import Problem
from dovetail.kube.api.resources import LEASE_REQUESTS, LEASES
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import epoch_ms, micro_time_text, milli_time_text
from dovetail.kube.translate.lease_documents import alternative_document
from dovetail.kube.translate.lease_durations import text_of_ms
from dovetail.kube.translate.lease_records import HEARTBEAT
from dovetail.kube.translate.lease_requests import alternative

Document = dict[str, Any]
_MISSING = 3
"""Heartbeats that may be missing."""


def request_document(request: LeaseRequest) -> Document:
    """The LeaseRequest to create."""
    namespace, _, plane = request.plane.partition("/")
    spec: Document = {
        "plane": plane,
        "alternatives": [alternative_document(one) for one in request.alternatives],
        "firm": request.firm,
    }
    if request.grace_ms:
        spec["grace"] = text_of_ms(request.grace_ms)
    if request.checkpoint_interval_ms:
        spec["checkpointInterval"] = text_of_ms(request.checkpoint_interval_ms)
    if request.startup_ms:
        spec["startup"] = text_of_ms(request.startup_ms)
    if request.answer is not None:
        spec["answer"] = answer_document(request.answer)
    return {
        "apiVersion": LEASE_REQUESTS.api_version,
        "kind": LEASE_REQUESTS.kind,
        "metadata": {"name": request.name, "namespace": namespace},
        "spec": spec,
    }


def answer_document(answer: Answer) -> Document:
    """`spec.answer` of a LeaseRequest."""
    found: Document = {"offer": answer.offer, "action": answer.action}
    return found | ({"counter": alternative_document(answer.counter)} if answer.counter is not None else {})


def action_document(action: LeaseAction) -> Document:
    """`spec.action` of a GPULease."""
    found: Document = {"number": action.number, "fence": action.fence, "action": action.action}
    return found | ({"until": milli_time_text(action.until_ms)} if action.action == "renew" else {})


def heartbeat_document(plane: str, holder: str, period_ms: int, renew_ms: int) -> Document:
    """The Lease (coordination.k8s.io) of a plane, whole. `renew_ms` differs from that of every earlier heartbeat."""
    namespace, _, name = plane.partition("/")
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {HEARTBEAT: "true"}},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, _MISSING * period_ms // 1000),
            "renewTime": micro_time_text(renew_ms),
        },
    }


def asks_for(request: LeaseRequest, obj: wire.LeaseRequest) -> bool:
    """Whether the object asks for what the request does, whatever it answers."""
    problems: list[Problem] = []
    alternatives = [alternative(one, "", problems) for one in obj.spec.alternatives]
    return (obj.spec.plane, tuple(alternatives)) == (request.plane.partition("/")[2], request.alternatives)


def offers_of(status: wire.LeaseRequestStatus) -> tuple[Offer, ...]:
    """The offers of a request, without the devices, which are the scheduler's."""
    problems: list[Problem] = []
    return tuple([
        Offer(
            one.id, bool(one.now), alternative(one.alternative, "", problems), epoch_ms(one.start), why=one.why
        )
        for one in status.offers
    ])  # fmt: skip


def cause_of(status: wire.GPULeaseStatus | None) -> EndCause:
    """Why a lease is over that ended, or is gone."""
    status = status or wire.GPULeaseStatus()
    for cause in (status.cause, status.revocation.cause if status.revocation is not None else ""):
        if cause in _CAUSES:
            return _CAUSES[cause]
    return EndCause.LOST


_CAUSES = {one.value: one for one in EndCause}
