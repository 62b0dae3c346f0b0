# SPDX-License-Identifier: Apache-2.0
"""What an agent makes of changes that come by watches and by lists, in whatever order: the server is the oracle."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core.bargaining.types import EndCause, GpuLease, Holding, LeaseAlternative
from dovetail.kube.api.decoding import BadObject, WatchEvent
from dovetail.kube.api.listing import Listing
from dovetail.kube.api.resources import GPU_LEASES
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate.lease_documents import lease_object, lease_status
from dovetail.plane.broker import LeaseGone, LeaseNotice, Listed, Notice, RequestGone, RequestNotice
from dovetail.plane.cluster_view import PlaneView

START_MS = 1_769_860_800_250
NAMES = ("x", "y")


def lease(name: str, number: int, renewals: int = 0, plane: str = "p") -> wire.GPULease:
    """The `number`-th lease of the name."""
    record = GpuLease(
        f"ns/{name}", f"ns/{plane}", name, LeaseAlternative(), (Holding(f"lease/ns/{name}/0/0", "n", (0,)),), START_MS,
        START_MS + 600_000, number, 60_000, renewals=renewals,
    )  # fmt: skip
    document = lease_object(record) | {"status": lease_status(record)}
    document["metadata"]["uid"] = f"{name}-{number}"
    return msgspec.convert(document, wire.GPULease)


class Server:
    """Leases with their versions, and the changes that a watch has yet to yield."""

    def __init__(self) -> None:
        self.version = 1
        self.objects: dict[str, wire.GPULease] = {}
        self.events: list[WatchEvent[wire.GPULease] | BadObject] = []
        self.made = 0

    def change(self, name: str, kind: str) -> None:
        self.version += 1
        old = self.objects.get(name)
        if old is None:
            self.made += 1
            self._put("ADDED", name, lease(name, self.made))
        elif kind == "delete":
            del self.objects[name]
            meta = replace(old.metadata, resource_version=str(self.version))
            self.events.append(WatchEvent("DELETED", replace(old, metadata=meta)))
        elif kind == "end":
            status = replace(old.status or wire.GPULeaseStatus(), state="Ended", cause="Returned")
            self._put("MODIFIED", name, replace(old, status=status))
        else:
            status = old.status or wire.GPULeaseStatus()
            self._put("MODIFIED", name, replace(old, status=replace(status, renewals=status.renewals + 1)))

    def _put(self, kind: str, name: str, obj: wire.GPULease) -> None:
        obj = replace(obj, metadata=replace(obj.metadata, resource_version=str(self.version)))
        self.objects[name] = obj
        self.events.append(WatchEvent(kind, obj))

    def list(self) -> Listing[wire.GPULease]:
        return Listing({("ns", name): obj for name, obj in self.objects.items()}, [], str(self.version))

    def live(self) -> dict[str, tuple[int, int]]:
        """Fence and renewals of the live leases, by id."""
        return {
            f"ns/{name}": (obj.spec.fence, obj.status.renewals)
            for name, obj in self.objects.items()
            if obj.status is not None and obj.status.state != "Ended"
        }


class Agent:
    """Keeps what the news amount to."""

    def __init__(self) -> None:
        self.live: dict[str, tuple[int, int]] = {}

    def take(self, news: list[Notice]) -> None:
        for notice in news:
            match notice:
                case LeaseNotice(record):
                    before = self.live.get(record.id)
                    # Of one lease nothing older comes, and of two of a name the end of the first comes between.
                    assert before is None or (before[0] == record.fence and before[1] <= record.renewals)
                    self.live[record.id] = record.fence, record.renewals
                case LeaseGone(id_):
                    del self.live[id_]


steps = st.lists(
    st.tuples(st.sampled_from(["renew", "renew", "end", "delete"]), st.sampled_from(NAMES))
    | st.sampled_from([("watch", ""), ("watch", ""), ("list", "")]),
    max_size=60,
)  # fmt: skip


@given(steps)
@pytest.mark.slow
def test_lists_beside_a_watch_that_lags_show_what_is_live_and_nothing_comes_back(steps: list[tuple[str, str]]) -> None:
    server, view, agent = Server(), PlaneView("ns/p"), Agent()
    for step, name in steps:
        if step == "watch":
            agent.take(view.leases_changed(server.events[:1]))
            del server.events[:1]
        elif step == "list":
            agent.take(view.leases_listed(server.list()))
            assert agent.live == server.live()
        else:
            server.change(name, step)
    agent.take(view.leases_changed(server.events))
    assert agent.live == server.live()
    everything = Agent()
    everything.take(view.all(1))
    assert everything.live == agent.live


def test_leases_of_others_and_of_no_scheduler_are_not_ours(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    view = PlaneView("ns/p")
    one, other = lease("x", 1), lease("y", 2, plane="q")
    one, other = (replace(obj, metadata=replace(obj.metadata, resource_version="5")) for obj in (one, other))
    found = view.leases_listed(Listing({("ns", "x"): one, ("ns", "y"): other}, [], "5"))
    assert [notice.lease.id for notice in found if isinstance(notice, LeaseNotice)] == ["ns/x"]
    status = replace(one.status or wire.GPULeaseStatus(), revocation=wire.LeaseRevocation("OfALaterRelease"))
    broken = replace(one, metadata=replace(one.metadata, resource_version="6"), status=status)
    assert view.leases_changed([WatchEvent("MODIFIED", broken)]) == [LeaseGone("ns/x", EndCause.LOST)]
    assert "GPULease ns/x is not understood" in caplog.text and not view.holds


def test_a_lease_that_cannot_be_read_is_lost() -> None:
    view = PlaneView("ns/p")
    one = lease("x", 1)
    view.leases_listed(
        Listing({("ns", "x"): replace(one, metadata=replace(one.metadata, resource_version="5"))}, [], "5")
    )
    bad = BadObject(GPU_LEASES, ("ns", "x"), "spec.fence: expected int", "6")
    assert view.leases_changed([bad]) == [LeaseGone("ns/x", EndCause.LOST)]


def request(name: str, plane: str = "p", **status: object) -> wire.LeaseRequest:
    body = {"metadata": {"name": name, "namespace": "ns"}, "spec": {"plane": plane}, "status": status}
    return msgspec.convert(body, wire.LeaseRequest)


def test_requests_are_news_once_each_and_only_those_of_the_plane() -> None:
    view = PlaneView("ns/p")
    view.requests_listed(Listing({("ns", "a"): request("a"), ("ns", "b"): request("b", "q")}, [], "5"))
    waits = request("a", state="Pending", reason="NoNodeFits", message="0/2 nodes", tried="2026-01-31T12:00:00Z")
    events: list[WatchEvent[wire.LeaseRequest] | BadObject] = [WatchEvent("MODIFIED", waits)] * 2
    found = view.requests_changed(events)
    assert found == [RequestNotice("ns/a", "Pending", (), START_MS - 250, "NoNodeFits", "0/2 nodes")]
    assert view.requests_changed([WatchEvent("DELETED", waits)] * 2) == [RequestGone("ns/a")]
    assert view.requests_changed([WatchEvent("ADDED", request("c", "q"))]) == []
    assert view.all(0) == [Listed(frozenset(), frozenset())]


def test_each_answer_that_is_refused_is_another_one() -> None:
    view = PlaneView("ns/p")
    gone = {"state": "Offered", "reason": "OfferGone", "message": "it has lapsed"}
    (first,) = view.requests_changed([WatchEvent("ADDED", request("a", observedGeneration=2, **gone))])
    (second,) = view.requests_changed([WatchEvent("MODIFIED", request("a", observedGeneration=3, **gone))])
    assert isinstance(first, RequestNotice) and isinstance(second, RequestNotice)
    assert first.answer_refused == second.answer_refused == "it has lapsed"
    assert 0 < first.refused_number < second.refused_number


def test_a_grant_whose_lease_is_not_known_is_not_settled() -> None:
    view = PlaneView("ns/p")
    news = view.requests_changed([WatchEvent("MODIFIED", request("x", state="Granted", lease="x"))])
    assert view.unsettled(news)
    one = lease("x", 1)
    view.leases_listed(
        Listing({("ns", "x"): replace(one, metadata=replace(one.metadata, resource_version="5"))}, [], "5")
    )
    assert not view.unsettled(news)
