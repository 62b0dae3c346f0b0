# SPDX-License-Identifier: Apache-2.0
"""What an agent writes is what the scheduler reads."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core.bargaining.types import (
    Answer,
    EndCause,
    LeaseAction,
    LeaseAlternative,
    LeaseRequest,
    Offer,
    ServiceClass,
)
from dovetail.core.decisions import MakeOffers
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate import agent_documents, lease_documents, lease_requests, leases

START_MS = 1_769_860_800_250
times_ms = st.integers(START_MS, START_MS + 10**9)
spans_ms = st.integers(1, 24 * 3_600_000)


@st.composite
def alternatives(draw: st.DrawFn) -> LeaseAlternative:
    count = draw(st.integers(1, 62))
    per_node = draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    earliest_ms = draw(st.just(0) | times_ms)
    return LeaseAlternative(
        count=count,
        least=draw(st.sampled_from([0, per_node, count])),
        per_node=per_node,
        gpu_milli=draw(st.integers(0, 999)) if per_node == 1 else 0,
        models=tuple(draw(st.lists(st.sampled_from(["A100", "H100"]), unique=True))),
        nvlink=draw(st.booleans()) and per_node > 1,
        cpu_milli=draw(st.integers(0, 64_000)),
        memory_bytes=draw(st.integers(0, 2**40)),
        duration_ms=draw(st.integers(1000, 10**8)),
        earliest_ms=earliest_ms,
        latest_ms=draw(st.just(0) | st.integers(max(START_MS, earliest_ms), START_MS + 10**10)),
        service=draw(st.sampled_from([ServiceClass.BURST, ServiceClass.GUARANTEED])),
    )


answers = st.builds(Answer, st.just("ns/one.1.0"), st.sampled_from(["accept", "decline"])) | st.builds(
    Answer, st.just("ns/one.1.0"), st.just("counter"), alternatives()
)
requests = st.builds(
    LeaseRequest, st.just("ns/one"), st.just("ns/p"), st.just("one"),
    st.lists(alternatives(), min_size=1, max_size=8).map(tuple), st.booleans(), times_ms,
    *[st.just(0) | spans_ms] * 3, answer=st.none() | answers,
)  # fmt: skip


@pytest.mark.slow
@given(requests)
def test_a_request_is_read_as_it_was_meant(request: LeaseRequest) -> None:
    obj = msgspec.convert(agent_documents.request_document(request), wire.LeaseRequest)
    assert lease_requests.request(obj) == replace(request, created_ms=0)
    assert agent_documents.asks_for(request, obj)
    other = replace(request.alternatives[0], duration_ms=request.alternatives[0].duration_ms + 1)
    assert not agent_documents.asks_for(replace(request, alternatives=(other, *request.alternatives[1:])), obj)


@pytest.mark.parametrize(
    "action", [LeaseAction("ns/one", 3, 7, "renew", START_MS), LeaseAction("ns/one", 4, 7, "return")]
)
def test_an_action_is_read_as_it_was_meant(action: LeaseAction) -> None:
    spec = {"action": agent_documents.action_document(action)}
    obj = msgspec.convert({"metadata": {"name": "one", "namespace": "ns"}, "spec": spec}, wire.GPULease)
    assert leases.action(obj) == action


@given(st.lists(alternatives(), min_size=1, max_size=3))
@pytest.mark.slow
def test_offers_are_read_as_they_were_made_but_for_their_devices(offered: list[LeaseAlternative]) -> None:
    offers = tuple([Offer(f"ns/one.1.{n}", n == 0, one, START_MS, why="w" * n) for n, one in enumerate(offered)])
    document = lease_documents.offered(MakeOffers("ns/one", offers, START_MS + 15_000, 1), 1)
    assert agent_documents.offers_of(msgspec.convert(document, wire.LeaseRequestStatus)) == offers


def test_a_heartbeat_has_the_label_that_is_read_and_its_time_to_the_millisecond() -> None:
    document = agent_documents.heartbeat_document("ns/p", "me", 10_000, START_MS)
    assert document["metadata"] == {"name": "p", "namespace": "ns", "labels": {"dovetail.dev/heartbeat": "true"}}
    assert document["spec"] == {
        "holderIdentity": "me", "leaseDurationSeconds": 30, "renewTime": "2026-01-31T12:00:00.250000Z"
    }  # fmt: skip


def test_the_cause_of_an_end_is_that_of_the_status_or_of_the_revocation() -> None:
    status = wire.GPULeaseStatus(revocation=wire.LeaseRevocation("Idle"))
    assert agent_documents.cause_of(status) is EndCause.IDLE
    assert agent_documents.cause_of(replace(status, cause="Returned")) is EndCause.RETURNED
    assert agent_documents.cause_of(wire.GPULeaseStatus(cause="OfALaterRelease")) is EndCause.LOST
    assert agent_documents.cause_of(None) is EndCause.LOST
