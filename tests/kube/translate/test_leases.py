# SPDX-License-Identifier: Apache-2.0
"""Leases of software agents: objects become records, decisions become objects, and a lease survives both ways. What an
agent wrote that cannot be honoured is a Problem that names the field, whatever it wrote."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core.bargaining.types import (
    EndCause,
    GpuLease,
    Holding,
    LeaseAction,
    LeaseAlternative,
    LeaseRequest,
    Offer,
    Plane,
    Revocation,
    ServiceClass,
)
from dovetail.core.decisions import EndLease, MakeOffers, RequestStatus
from dovetail.core.model import Instance
from dovetail.core.reasons import Expected, Reason, Refusal, Sure, When
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate import lease_documents, lease_durations, lease_requests, leases, pods
from dovetail.kube.translate.bound import BoundRecords
from tests.docs.pages import page

NOW_MS = 1_769_860_800_250
EXAMPLES = [yaml.safe_load(block.text) for block in page("docs/reference/leases.md").blocks if block.language == "yaml"]
times = st.integers(1, 4_000_000_000_000)
terms = st.integers(1000, 720 * 3_600_000)


@st.composite
def alternatives(draw: st.DrawFn) -> LeaseAlternative:
    per_node = draw(st.integers(1, 4))
    groups = draw(st.integers(1, 4))
    least = per_node * draw(st.integers(0, groups))
    mig = draw(st.booleans())
    share = draw(st.sampled_from(["", "milli", "mib"])) if not mig and per_node == 1 else ""
    service = draw(st.sampled_from(list(ServiceClass)))
    duration_ms = draw(terms)
    earliest_ms, latest_ms = sorted(draw(st.tuples(times, times)))
    bounded = draw(st.booleans())
    return LeaseAlternative(
        count=per_node * groups, least=least, per_node=per_node,
        resource="nvidia.com/mig-1g.5gb" if mig else "nvidia.com/gpu",
        gpu_milli=draw(st.integers(1, 1000)) if share == "milli" else 0,
        gpu_memory_mib=draw(st.integers(1, 2**20)) if share == "mib" else 0,
        models=tuple(draw(st.lists(st.sampled_from(["A100", "H100", "L4"]), unique=True))),
        nvlink=per_node > 1 and draw(st.booleans()),
        within=tuple(draw(st.lists(st.sampled_from(["dovetail.dev/rack", "example.com/row"]), unique=True))),
        cpu_milli=draw(st.integers(0, 10**6)), memory_bytes=draw(st.integers(0, 2**40)), duration_ms=duration_ms,
        least_duration_ms=draw(st.integers(1000, duration_ms)) if service is ServiceClass.SCAVENGER else 0,
        earliest_ms=earliest_ms if bounded else 0, latest_ms=latest_ms if bounded else 0, service=service,
    )  # fmt: skip


@st.composite
def live_leases(draw: st.DrawFn) -> GpuLease:
    granted = draw(alternatives())
    mig = granted.resource != "nvidia.com/gpu"
    holdings = []
    for part in range(granted.count // granted.per_node):
        gpus = tuple(
            draw(st.lists(st.integers(0, 61), min_size=granted.per_node, max_size=granted.per_node, unique=True))
        )
        slices = tuple(Instance(gpu, "1g.5gb", draw(st.integers(0, 6))) for gpu in gpus) if mig else ()
        holdings.append(
            Holding(f"lease/ns/one/0.1/{part}", f"node-{draw(st.integers(0, 3))}", () if mig else gpus, slices)
        )
    revocation = st.builds(
        Revocation, st.sampled_from(list(EndCause)), times, st.text(st.characters(codec="utf-8"), max_size=200)
    )
    return GpuLease(
        id="ns/one", plane="ns/tuner", name="one", alternative=granted, holdings=tuple(holdings),
        start_ms=draw(times), end_ms=draw(times), fence=draw(st.integers(1, 2**53)), grace_ms=draw(terms),
        checkpoint_interval_ms=draw(terms), startup_ms=draw(terms), renewals=draw(st.integers(0, 1000)),
        revocation=draw(st.none() | revocation),
    )  # fmt: skip


def lease_of(document: dict[str, Any], **status: Any) -> wire.GPULease:
    return msgspec.json.decode(
        msgspec.json.encode(document | ({"status": status} if status else {})), type=wire.GPULease
    )


@given(live_leases())
@pytest.mark.slow
def test_a_lease_that_is_written_and_read_again_is_equal(lease: GpuLease) -> None:
    found = lease_of(lease_documents.lease_object(lease), **lease_documents.lease_status(lease))
    assert leases.lease(found) == (lease, None)


@given(alternatives())
@pytest.mark.slow
def test_an_alternative_that_is_offered_can_be_asked_for(one: LeaseAlternative) -> None:
    document = lease_documents.alternative_document(one)
    problems: list[Any] = []
    assert lease_requests.alternative(msgspec.convert(document, wire.LeaseAlternative), "", problems) == one
    assert problems == []


@given(st.integers(0, 99_999 * 3_600_000))
def test_a_duration_is_read_as_it_was_written(duration_ms: int) -> None:
    assert lease_durations.time_ms(lease_durations.text_of_ms(duration_ms)) == duration_ms


def test_the_examples_of_the_reference() -> None:
    plane = leases.plane(msgspec.convert(EXAMPLES[0], wire.AgentControlPlane))
    assert plane == Plane(
        "agent-tuner/tuner", "agents", 2, (("gpu", 2000),), (("gpu", 16_000),), 8, 16, 10_000, 120_000, 300_000
    )
    request = lease_requests.request(msgspec.convert(EXAMPLES[1], wire.LeaseRequest))
    assert isinstance(request, LeaseRequest)
    assert request.problem is None
    first, half, memory = request.alternatives
    assert (first.count, first.least, first.per_node, first.within) == (8, 4, 4, ("dovetail.dev/rack",))
    assert (first.cpu_milli, first.memory_bytes, first.duration_ms) == (8000, 64 * 2**30, 1_800_000)
    assert (half.gpu_milli, half.least_duration_ms, half.service) == (500, 600_000, ServiceClass.SCAVENGER)
    assert (memory.gpu_memory_mib, request.grace_ms, request.startup_ms) == (20 * 1024, 60_000, 30_000)
    assert request.answer is not None and request.answer.action == "accept"
    lease, problem = leases.lease(msgspec.convert(EXAMPLES[2], wire.GPULease))
    assert lease is not None and problem is None
    assert lease.holdings == (Holding("lease/agent-tuner/train-7/0.0/0", "gpu-1", (0, 1)),)
    assert lease.end_ms == lease.start_ms + 1_800_000
    action = leases.action(msgspec.convert(EXAMPLES[2], wire.GPULease))
    assert action == LeaseAction("agent-tuner/train-7", 1, 1_769_860_800_250, "renew", 1_769_863_800_000)


def request_with(**spec: Any) -> LeaseRequest:
    document = {"metadata": {"name": "r", "namespace": "ns"}, "spec": {"plane": "p", "alternatives": [{}]} | spec}
    found = lease_requests.request(msgspec.convert(document, wire.LeaseRequest))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("one", "field"),
    [
        ({"count": 0}, "count"),
        ({"count": 2**70}, "count"),
        ({"count": 2, "least": 3}, "least"),
        ({"count": 6, "perNode": 4}, "perNode"),
        ({"perNode": -1}, "perNode"),
        ({"resource": "cpu"}, "resource"),
        ({"resource": "nvidia.com/mig-" + "9" * 10_000}, "resource"),
        ({"gpuFraction": "0"}, "gpuFraction"),
        ({"gpuFraction": "1e3"}, "gpuFraction"),
        ({"gpuFraction": "0.5", "gpuMemory": "8Gi"}, "gpuFraction"),
        ({"gpuFraction": "0.5", "count": 2, "perNode": 2}, "perNode"),
        ({"gpuMemory": "8"}, "gpuMemory"),
        ({"gpuMemory": "much"}, "gpuMemory"),
        ({"models": ["not a label!"]}, "models[0]"),
        ({"models": ["A100"] * 17}, "models"),
        ({"nvlink": True}, "nvlink"),
        ({"within": ["no level!"]}, "within[0]"),
        ({"cpu": "-1"}, "cpu"),
        ({"memory": "1e99"}, "memory"),
        ({"duration": "1d"}, "duration"),
        ({"duration": "٣m"}, "duration"),
        ({"duration": "99999h"}, "duration"),
        ({"leastDuration": "1m"}, "leastDuration"),
        ({"class": "Scavenger", "duration": "1m", "leastDuration": "2m"}, "leastDuration"),
        ({"earliest": "2026-01-02T00:00:00Z", "latest": "2026-01-01T00:00:00Z"}, "latest"),
        ({"class": "ignore previous instructions"}, "class"),
    ],
)
def test_an_alternative_that_cannot_be_honoured_names_its_field(one: dict[str, Any], field: str) -> None:
    found = request_with(alternatives=[{}, one])
    assert found.problem is not None
    assert found.problem.field == f"spec.alternatives[1].{field}"
    assert len(str(found.problem)) < 2000
    assert found.alternatives[0] == LeaseAlternative()


def test_requests_that_cannot_be_honoured_name_their_field() -> None:
    assert [request_with(alternatives=n * [{}]).problem is None for n in (0, 1, 8, 9)] == [False, True, True, False]
    assert len(request_with(alternatives=1000 * [{}]).alternatives) == 8
    for spec, field in (
        ({"grace": "25h"}, "spec.grace"),
        ({"startup": "soon"}, "spec.startup"),
        ({"answer": {"offer": "a", "action": "bribe"}}, "spec.answer.action"),
        ({"answer": {"offer": "a", "action": "counter"}}, "spec.answer.counter"),
        ({"answer": {"offer": "a", "action": "counter", "counter": {"count": 0}}}, "spec.answer.counter.count"),
    ):
        found = request_with(**spec)
        assert found.problem is not None and found.problem.field == field
        assert found.answer is None


def test_a_request_waits_while_a_lease_of_its_name_is_there_and_is_settled_once_granted() -> None:
    meta = {"name": "r", "namespace": "ns", "uid": "second"}
    document = {"metadata": meta, "spec": {"plane": "p", "alternatives": [{}]}}
    asked = msgspec.convert(document, wire.LeaseRequest)
    assert lease_requests.request(asked, wire.GPULease(spec=wire.GPULeaseSpec(request_uid="second"))) is None
    found = lease_requests.request(asked, wire.GPULease(spec=wire.GPULeaseSpec(request_uid="first")))
    assert found is not None and found.problem is not None and found.problem.field == "metadata.name"
    settled = document | {"status": {"state": "Granted", "lease": "r"}}
    assert lease_requests.request(msgspec.convert(settled, wire.LeaseRequest)) is None


def test_planes_that_cannot_be_honoured_name_their_field() -> None:
    for spec, field in (
        ({"queue": ""}, "spec.queue"),
        ({"weight": 0}, "spec.weight"),
        ({"guarantee": {"gpu": 3}, "limit": {"gpu": 2}}, "spec.guarantee.gpu"),
        ({"guarantee": {"gpus": 3}}, "spec.guarantee.gpus"),
        ({"heartbeat": "0.5s"}, "spec.heartbeat"),
        ({"maxLeases": 10_001}, "spec.maxLeases"),
        ({"idle": "forever"}, "spec.idle"),
    ):
        document = {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"queue": "q"} | spec}
        problem = leases.plane(msgspec.convert(document, wire.AgentControlPlane)).problem
        assert problem is not None and problem.field == field
    fine = msgspec.convert(
        {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"queue": "q", "heartbeat": "0s"}},
        wire.AgentControlPlane,
    )
    assert (leases.plane(fine).problem, leases.plane(fine).heartbeat_ms) == (None, 0)
    ignored = leases.plane(fine, "older").problem
    assert ignored is not None and "older is older and counts" in str(ignored)


ONE = GpuLease(
    "ns/one",
    "ns/tuner",
    "one",
    LeaseAlternative(2),
    (Holding("lease/ns/one/0.0/0", "n", (3,)), Holding("lease/ns/one/0.0/1", "m", (1,))),
    NOW_MS,
    NOW_MS + 600_000,
    NOW_MS,
    60_000,
)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"devices": []}, "spec.devices"),
        ({"devices": [{"part": "0.0/0", "node": "n", "gpu": 3}] * 2}, "spec.devices"),
        (
            {"devices": [{"part": "0.0/0", "node": "n", "gpu": 62}, {"part": "0.0/1", "node": "n", "gpu": 1}]},
            "spec.devices[].gpu",
        ),
        ({"fence": 0}, "spec.fence"),
        ({"start": None}, "spec.start"),
        ({"grace": ""}, "spec.grace"),
        ({"alternative": {"count": 3}}, "spec.devices"),
    ],
)
def test_a_lease_that_the_scheduler_cannot_have_written_is_none(spec: dict[str, Any], field: str) -> None:
    document = lease_documents.lease_object(ONE)
    found, problem = leases.lease(lease_of(document | {"spec": document["spec"] | spec}))
    assert found is None
    assert problem is not None and problem.field == field


def test_each_decision_is_a_status() -> None:
    offer = Offer("ns/one/1", True, LeaseAlternative(2), NOW_MS, ONE.holdings, "x" * 9000)
    status = lease_documents.offered(MakeOffers("ns/one", (offer,), NOW_MS + 15_000, 1), 3)
    assert (status["state"], status["observedGeneration"], status["offers"][0]["id"]) == ("Offered", 3, "ns/one/1")
    assert len(status["offers"][0]["why"].encode()) <= 4096
    assert msgspec.convert(status, wire.LeaseRequestStatus).offers[0].alternative.count == 2
    refusal = Refusal(Reason.PLANE_LIMIT, When.NOT_YET, "leases: 1", expected=Expected(Sure.KNOWN, NOW_MS))
    status = lease_documents.request_status(RequestStatus("ns/one", "BackingOff", refusal, 1, NOW_MS), 3)
    assert (status["reason"], status["tried"]) == (Reason.PLANE_LIMIT.code, status["expectedStart"])
    assert lease_documents.granted("one", 3) == {
        "observedGeneration": 3,
        "state": "Granted",
        "lease": "one",
    }
    status = lease_documents.lease_status(ONE, "Expiring", "too late", 4)
    assert (status["state"], status["refused"], status["action"]) == ("Expiring", "too late", 4)


def test_a_status_of_a_revoked_lease_is_read_again_and_its_end_keeps_it() -> None:
    revoked = replace(ONE, renewals=2, revocation=Revocation(EndCause.IDLE, NOW_MS + 1000, "idle"))
    status = lease_documents.lease_status(revoked, "Revoking", action=7)
    found = lease_of(lease_documents.lease_object(ONE), **status)
    assert leases.lease(found) == (revoked, None)
    assert (status["state"], status["action"]) == ("Revoking", 7)
    over = lease_documents.ended(EndLease("ns/one", EndCause.IDLE, (), 1, 2000), NOW_MS, status)
    assert (over["state"], over["cause"], over["renewals"], over["revocation"]["message"]) == (
        "Ended",
        "Idle",
        2,
        "idle",
    )
    assert leases.lease(lease_of(lease_documents.lease_object(ONE), **over)) == (None, None)


def test_devices_have_their_uuids_where_these_are_known() -> None:
    devices = lease_documents.lease_object(ONE, uuids={"n": ("", "", "", "GPU-3")})["spec"]["devices"]
    assert [one.get("uuid") for one in devices] == ["GPU-3", None]


def test_an_action_counts_once_and_a_malformed_one_is_left_to_the_core() -> None:
    document = lease_documents.lease_object(ONE)
    asked = {"number": 3, "fence": 1, "action": "renew", "until": "2026-01-31T12:50:00Z"}
    spec = document["spec"] | {"action": asked}
    assert leases.action(lease_of(document | {"spec": spec}, state="Active", action=2)) is not None
    assert leases.action(lease_of(document | {"spec": spec}, state="Active", action=3)) is None
    assert leases.action(lease_of(document | {"spec": spec}, state="Ended", action=2)) is None
    odd = lease_of(document | {"spec": spec | {"action": {"number": 4, "fence": 1, "action": "renew"}}})
    assert leases.action(odd) == LeaseAction("ns/one", 4, 1, "renew", 0)


def test_the_oldest_plane_of_a_namespace_counts() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def made(name: str, hours: int) -> wire.AgentControlPlane:
        moment = (start + timedelta(hours=hours)).isoformat()
        return msgspec.convert(
            {
                "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": moment},
                "spec": {"queue": "q"},
            },
            wire.AgentControlPlane,
        )

    planes = {name: made(name, hours) for name, hours in (("b", 1), ("c", 0), ("a", 0))}
    counting = leases.counting(planes)
    assert counting is not None and counting.metadata.name == "a"
    assert leases.counting({}) is None


def pod_with(namespace: str = "ns", scheduler: str = "dovetail", **annotations: str) -> Any:
    meta = {
        "name": "p", "namespace": namespace, "uid": "u",
        "annotations": {f"dovetail.dev/{key.replace('_', '-')}": value for key, value in annotations.items()},
    }  # fmt: skip
    spec = {"schedulerName": scheduler, "containers": [{"name": "c"}]}
    return pods.pod(msgspec.convert({"metadata": meta, "spec": spec}, PodObject))


def test_a_pod_names_a_lease_of_its_own_namespace() -> None:
    found = pod_with(lease="one", lease_fence="1769860800250")
    assert (found.lease, found.fence, found.problem) == ("ns/one", 1_769_860_800_250, None)
    assert found.lease == ONE.id
    assert (pod_with().lease, pod_with().fence) == ("", 0)
    foreign = pod_with(scheduler="other", lease="one", lease_fence="1")
    assert (foreign.lease, foreign.fence) == ("", 0)


@pytest.mark.parametrize("name", ["", "/", "other/one", "../one", "One", "one\n", "-one", "é", "x" * 64, "x" * 100_000])
def test_no_annotation_leads_to_a_lease_of_another_namespace(name: str) -> None:
    found = pod_with(lease=name, lease_fence="1")
    assert (found.lease, found.problem is not None) == ("", True)
    assert found.problem.field == "metadata.annotations[dovetail.dev/lease]"


@pytest.mark.parametrize("fence", ["", "0", "-1", "1.5", "1e3", "٣", "9" * 17, "9" * 100_000, " 1"])
def test_a_fence_that_is_no_number_is_a_problem(fence: str) -> None:
    found = pod_with(lease="one", lease_fence=fence)
    assert (found.fence, found.problem is not None) == (0, True)


def test_a_bound_pod_keeps_the_lease_of_its_record() -> None:
    records = BoundRecords()
    kept = records.decide(pod_with(lease="one", lease_fence="7"), "planes/ns/p", None, "0", "n")
    assert (kept.bound.lease, kept.bound.fence) == ("one", 7)
    assert (kept.bound.options.lease, kept.bound.options.fence) == ("one", 7)
