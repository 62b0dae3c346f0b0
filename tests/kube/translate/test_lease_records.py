# SPDX-License-Identifier: Apache-2.0
"""Changes of planes, requests, leases and heartbeats become events of the core, once each."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs

from dovetail.core import events as ev
from dovetail.core.bargaining.types import GpuLease, Holding, LeaseAlternative
from dovetail.kube.api.decoding import Reader
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import LEASE_REQUESTS
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate import lease_documents, lease_records
from dovetail.kube.translate.lease_records import LeaseRecords

ONE = GpuLease(
    "ns/one", "ns/p", "one", LeaseAlternative(), (Holding("lease/ns/one/0.0/0", "n", (3,)),), 1000, 601_000, 7, 0
)


def records() -> tuple[LeaseRecords, list[str]]:
    found: list[str] = []
    return LeaseRecords(lambda name, findings: found.extend(f"{name}: {one}" for one in findings)), found


def plane(name: str, hour: int, kind: str = "added", uid: str = "", **spec: Any) -> Any:
    meta = {"name": name, "namespace": "ns", "uid": uid or name, "creationTimestamp": f"2026-01-01T{hour:02}:00:00Z"}
    return Change(kind, msgspec.convert({"metadata": meta, "spec": {"queue": "q"} | spec}, wire.AgentControlPlane))  # type: ignore[arg-type]


def request(kind: str = "added", state: str = "", uid: str = "", **spec: Any) -> Any:
    meta = {"name": "one", "namespace": "ns", "uid": uid}
    document = {"metadata": meta, "spec": {"plane": "p", "alternatives": [{}]} | spec}
    return Change(kind, msgspec.convert(document | {"status": {"state": state}}, wire.LeaseRequest))  # type: ignore[arg-type]


def lease(kind: str = "added", asked: dict[str, Any] | None = None, request_uid: str = "", **status: Any) -> Any:
    document = lease_documents.lease_object(ONE, request_uid)
    document["metadata"]["uid"] = "u"
    if asked:
        document["spec"]["action"] = asked
    document["status"] = lease_documents.lease_status(ONE) | status
    return Change(kind, msgspec.json.decode(msgspec.json.encode(document), type=wire.GPULease))  # type: ignore[arg-type]


def beat(second: int, name: str = "p", kind: str = "added") -> Any:
    document = {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"renewTime": f"2026-01-01T00:00:{second:02}.000000Z"},
    }
    return Change(kind, msgspec.convert(document, wire.Heartbeat))  # type: ignore[arg-type]


def test_the_oldest_plane_counts_and_the_next_takes_its_place() -> None:
    feed, _ = records()
    (first,) = feed.planes([plane("b", 2)])
    assert isinstance(first, ev.PlaneChanged)
    older = feed.planes([plane("a", 1), plane("c", 3)])
    assert [type(one) for one in older] == [ev.PlaneRemoved, ev.PlaneChanged]
    assert older[0] == ev.PlaneRemoved("ns/b")
    assert feed.planes([plane("a", 1, "modified"), plane("c", 3, "deleted")]) == []
    gone = feed.planes([plane("a", 1, "deleted")])
    assert gone == [ev.PlaneRemoved("ns/a"), first]
    assert feed.planes([plane("b", 2, "deleted")]) == [ev.PlaneRemoved("ns/b")]


def test_a_plane_that_was_made_again_is_another_one() -> None:
    feed, _ = records()
    feed.planes([plane("a", 1)])
    assert [type(one) for one in feed.planes([plane("a", 1, uid="second")])] == [ev.PlaneRemoved, ev.PlaneChanged]
    changed = feed.planes([plane("a", 1, "modified", "second", weight=3)])
    assert [type(one) for one in changed] == [ev.PlaneChanged]


def test_a_request_is_reported_when_it_changes_and_settled_when_it_is_granted() -> None:
    feed, _ = records()
    (first,) = feed.requests([request()])
    assert isinstance(first, ev.LeaseRequestChanged) and first.request.id == "ns/one"
    assert feed.requests([request("modified", "Pending")]) == []
    (answered,) = feed.requests([request("modified", "Offered", answer={"offer": "o", "action": "accept"})])
    assert isinstance(answered, ev.LeaseRequestChanged) and answered.request.answer is not None
    assert feed.requests([request("modified", "Granted")]) == [ev.LeaseRequestRemoved("ns/one")]
    assert feed.requests([request("deleted", "Granted")]) == []


def test_a_request_of_the_name_of_a_lease_waits_until_that_is_gone() -> None:
    feed, _ = records()
    feed.leases([lease()])
    (first,) = feed.requests([request()])
    assert isinstance(first, ev.LeaseRequestChanged) and first.request.problem is not None
    ended = feed.leases([lease("modified", state="Ended")])
    assert ended == [ev.LeaseRemoved("ns/one", ONE.fence)]
    (free,) = feed.leases([lease("deleted")])
    assert isinstance(free, ev.LeaseRequestChanged) and free.request.problem is None


def test_a_request_whose_lease_came_and_went_is_settled_before_its_own_status_is_read() -> None:
    feed, _ = records()
    feed.requests([request(uid="a")])
    assert feed.leases([lease(request_uid="a")])[1:] == [ev.LeaseRequestRemoved("ns/one")]
    assert feed.leases([lease("deleted", request_uid="a")]) == [ev.LeaseRemoved("ns/one", ONE.fence)]
    assert feed.requests([request("modified", "Offered", "a"), request("modified", "Granted", "a")]) == []
    (again,) = feed.requests([request("deleted", "Granted", "a"), request(uid="b")])
    assert isinstance(again, ev.LeaseRequestChanged) and again.request.problem is None, "another one of the name"


def test_of_settled_requests_those_are_kept_that_are_there_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_records, "_MOST_SETTLED", 2)
    feed, _ = records()
    for uid in ("a", "b", "c"):
        feed.leases([lease(request_uid=uid), lease("deleted", request_uid=uid)])
    assert list(feed._settled) == [("ns/one", "b"), ("ns/one", "c")]
    feed.requests([request(uid="c"), request("deleted", uid="c")])
    assert list(feed._settled) == [("ns/one", "b")]


def test_a_lease_is_reported_once_and_each_action_once() -> None:
    feed, _ = records()
    assert feed.leases([lease()]) == [ev.LeaseChanged(ONE)]
    action = {"number": 1, "fence": 7, "action": "return"}
    (acted,) = feed.leases([lease("modified", action)])
    assert isinstance(acted, ev.LeaseActed) and (acted.action.number, acted.action.action) == (1, "return")
    assert feed.leases([lease("modified", action, renewals=1)]) == []
    assert feed.leases([lease("modified", action | {"number": 2}, action=2)]) == []
    assert feed.leases([lease("deleted", action)]) == [ev.LeaseRemoved("ns/one", ONE.fence)]


def test_a_lease_that_was_ended_before_is_not_reported_and_a_damaged_one_is_a_finding() -> None:
    feed, found = records()
    assert feed.leases([lease(state="Ended")]) == []
    damaged = lease_documents.lease_object(ONE)
    damaged["spec"]["fence"] = -1
    damaged["metadata"]["name"] = "bad"
    assert feed.leases([Change("added", msgspec.convert(damaged, wire.GPULease))]) == []
    assert len(found) == 1 and "spec.fence" in found[0]


def test_heartbeats_are_those_of_the_plane_of_the_namespace_when_their_time_moves() -> None:
    feed, _ = records()
    assert feed.heartbeats([beat(0)]) == []
    feed.planes([plane("p", 1)])
    assert feed.heartbeats([beat(1), beat(1, kind="modified"), beat(2, "other")]) == [ev.PlaneHeartbeat("ns/p")]
    assert feed.heartbeats([beat(3)]) == [ev.PlaneHeartbeat("ns/p")]


def test_a_request_as_long_as_the_schema_admits_is_read_and_a_longer_one_is_not() -> None:
    one = {"models": ["m" * 63] * 16, "within": [f"{'w' * 253}/{'l' * 63}"] * 4}
    document = {"metadata": {"name": "one", "namespace": "ns", "annotations": {}}, "spec": {"alternatives": [one] * 8}}
    reader = Reader(LEASE_REQUESTS, wire.LeaseRequest)
    page, left_out = reader.page(msgspec.json.encode({"metadata": {}, "items": [document]}))
    assert (len(page.items), len(left_out)) == (1, 0)
    document["metadata"]["annotations"] = {"long": "x" * 65_536}
    page, left_out = reader.page(msgspec.json.encode({"metadata": {}, "items": [document]}))
    assert (len(page.items), len(left_out)) == (0, 1)


def test_where_no_heartbeats_are_read_none_are_expected_and_the_status_has_which_planes_are_silent() -> None:
    feed, _ = records()
    feed.follows = False
    (heard,) = feed.planes([plane("p", 1)])
    assert heard.plane.heartbeat_ms == 0
    change = plane("p", 1)
    status = wire.AgentControlPlaneStatus(phase="Silent")
    changed, silent = feed.planes([Change("modified", structs.replace(change.object, status=status))])
    assert changed.plane.heartbeat_ms == 10_000 and silent == ev.PlaneSilent("ns/p")


def test_the_objects_are_there_as_they_were_last_read() -> None:
    feed, _ = records()
    feed.planes([plane("p", 1)])
    feed.requests([request(), request("modified", state="Granted")])
    feed.leases([lease(), lease("modified", renewals=1)])
    found = feed.objects
    assert [one.metadata.name for one in found.planes] == ["p"]
    assert [one.status.state for one in found.requests if one.status is not None] == ["Granted"]
    assert [one.status.renewals for one in found.leases if one.status is not None] == [1]
    feed.leases([lease("deleted")])
    assert feed.objects.leases == ()


def test_a_lease_that_had_ended_when_it_was_first_read_is_reported_with_its_charge_once() -> None:
    feed, _ = records()
    over = {"state": "Ended", "cause": "Returned", "ended": "1970-01-01T00:01:01.500Z", "rate": 2000}
    assert feed.leases([lease(**over)]) == [ev.LeaseRan("ns/one", "ns/p", 2000, 1000, 61_500)]
    assert feed.leases([lease("modified", **over), lease("deleted", **over)]) == []
    assert feed.leases([lease()]) == [ev.LeaseChanged(ONE)]
    assert feed.leases([lease("modified", **over)]) == [ev.LeaseRemoved("ns/one", ONE.fence)]
    for wrong in ({"ended": None}, {"ended": "1970-01-01T00:00:00Z"}, {"rate": -1}):
        assert records()[0].leases([lease(**over | wrong)]) == []


def test_of_a_lease_that_the_core_has_ended_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_records, "_MOST_OVER", 2)
    over = {"state": "Ended", "cause": "Returned", "ended": "1970-01-01T00:01:01.500Z", "rate": 2000}
    for status in ({}, over):
        feed, _ = records()
        feed.over("ns/one", ONE.fence)
        assert feed.leases([lease(**status), lease("modified", **over), lease("deleted", **over)]) == []
    feed.over("ns/one", ONE.fence)
    feed.over("ns/one", 8)
    assert feed.leases([lease()]) == []
    feed.over("ns/two", 9)
    assert feed.leases([lease("deleted"), lease()]) == [ev.LeaseChanged(ONE)], "so many are kept"


def test_a_lease_that_is_read_when_the_core_has_ended_it_is_removed_once() -> None:
    feed, _ = records()
    feed.leases([lease()])
    feed.over("ns/one", ONE.fence)
    assert feed.leases([lease("modified")]) == [ev.LeaseRemoved("ns/one", ONE.fence)]
    assert feed.leases([lease("modified"), lease("deleted")]) == []
