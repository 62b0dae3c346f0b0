# SPDX-License-Identifier: Apache-2.0
"""Pods within a lease."""

from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseAlternative
from dovetail.core.model import GPU, Gang, Pod, Request
from dovetail.core.reasons import Reason
from tests.core.bargaining.market import MINUTE, Market, nodes


def granted(*alternatives: LeaseAlternative, **more: object) -> Market:
    market = Market(*nodes(2))
    market.plane(**more)
    market.ask("r", *(alternatives or (LeaseAlternative(count=4, per_node=4, duration_ms=10 * MINUTE),)), firm=True)
    return market


def devices(market: Market) -> set[int]:
    (holding,) = market.leases["r"].holdings
    return set(holding.devices)


def reason(market: Market, uid: str) -> Reason:
    refusal = market.state.queue.refusal(f"pod/{uid}")
    assert refusal is not None
    return refusal.reason


def test_pods_get_devices_of_their_lease_and_no_others() -> None:
    market = granted()
    for number in range(4):
        market.pod(f"p{number}", "r")
    assert {gpu for bind in market.bound.values() for gpu in bind.devices} == devices(market)
    market.pod("p4", "r")
    assert "p4" not in market.bound and reason(market, "p4") is Reason.LEASE_FULL
    assert market.free() == 12


def test_the_devices_of_a_pod_that_ends_are_the_leases_again() -> None:
    market = granted()
    market.pod("p", "r", 3)
    market.step(ev.PodRemoved("p"))
    assert market.free() == 12
    market.pod("q", "r", 4)
    assert set(market.bound["q"].devices) == devices(market)


def test_a_pod_whose_bind_failed_gives_its_devices_back() -> None:
    market = granted()
    pod = Pod("p", "a", "p", Request(((GPU, 2),)), lease="r", fence=market.leases["r"].fence)
    market._carry_out = lambda decision: []  # type: ignore[method-assign]
    market.step(ev.PodChanged(pod))
    market.step(ev.BindFailed("p", "n0", "conflict", market.now_ms + 1000))
    assert market.free() == 12 and not market.state.leases.live["r"].inside


def test_the_plane_is_charged_the_same_with_pods_and_without() -> None:
    market = granted()
    held = dict(market.state.shares.allocated("planes/a/a"))
    market.pod("p", "r", 3)
    assert dict(market.state.shares.allocated("planes/a/a")) == held


def test_a_gang_starts_within_a_lease_as_a_whole() -> None:
    market = granted(LeaseAlternative(count=8, duration_ms=10 * MINUTE))
    fence = market.leases["r"].fence
    events = [
        ev.PodChanged(Pod(f"w{i}", "a", f"w{i}", Request(((GPU, 3),)), gang="g", lease="r", fence=fence))
        for i in range(3)
    ]
    market.step(ev.GangChanged(Gang("g", "a", "g", 3)), *events)
    assert not market.bound
    market.step(ev.PodRemoved("w2"), ev.GangChanged(Gang("g", "a", "g", 2)))
    assert set(market.bound) == {"w0", "w1"}


def test_the_ranks_of_a_gang_within_a_lease_follow_its_nodes() -> None:
    market = granted(LeaseAlternative(count=16, duration_ms=10 * MINUTE))
    fence = market.leases["r"].fence
    pods = [
        Pod(f"w{i}", "a", f"w{i}", Request(((GPU, 4),)), gang="g", lease="r", fence=fence, ordinals=((3 * i) % 4,))
        for i in range(4)
    ]
    market.step(ev.GangChanged(Gang("g", "a", "g", 4)), *map(ev.PodChanged, pods))
    by_rank = sorted(market.bound.values(), key=lambda bind: bind.rank)
    assert [bind.uid for bind in by_rank] == ["w0", "w3", "w2", "w1"]
    assert by_rank[0].node == by_rank[1].node != by_rank[2].node == by_rank[3].node


def test_pods_without_a_live_lease_of_their_plane_are_refused() -> None:
    market = granted()
    market.plane("b")
    market.pod("none", "")
    market.pod("gone", "gone")
    market.pod("foreign", "r", plane="b")
    market.pod("stale", "r", fence=99)
    assert not market.bound
    assert reason(market, "none") is Reason.LEASE_NEEDED
    assert reason(market, "gone") is Reason.LEASE_MISSING
    assert reason(market, "foreign") is Reason.LEASE_FORBIDDEN
    assert reason(market, "stale") is Reason.LEASE_FENCED


def test_a_pod_that_names_a_lease_is_not_placed_where_no_plane_exists() -> None:
    market = Market(*nodes(1))
    market.pod("p", "gone")
    assert "p" not in market.bound and reason(market, "p") is Reason.LEASE_MISSING


def test_a_pod_without_devices_needs_no_lease() -> None:
    market = granted()
    market.step(ev.PodChanged(Pod("p", "a", "p", Request(()))))
    assert "p" in market.bound


def test_no_pod_starts_in_a_lease_that_is_taken_back() -> None:
    market = granted()
    market.step(ev.PlaneRemoved("a/a"), ev.NamespaceRemoved("a"))
    market.plane("a")
    market.pod("p", "r")
    assert "p" not in market.bound and reason(market, "p") is Reason.LEASE_ENDING


def test_pods_that_run_at_a_restart_are_within_their_lease() -> None:
    market = granted()
    market.pod("p", "r", 3)
    again = Market(*nodes(2))
    plane, lease = market.state.requests.planes["a/a"], market.leases["r"]
    running = market.state.workloads.pods["p"]
    again.step(ev.PodChanged(running), ev.LeaseChanged(lease), ev.PlaneChanged(plane))
    again.leases["r"] = lease
    again.check()
    assert set(again.state.leases.live["r"].inside) == {"p"} and again.free() == 12
    again.pod("q", "r")
    assert set(again.bound["q"].devices) | set(market.bound["p"].devices) == devices(market)


def test_pods_that_are_read_after_their_lease_are_within_it() -> None:
    market = granted()
    market.pod("p", "r", 3)
    again = Market(*nodes(2))
    plane, lease = market.state.requests.planes["a/a"], market.leases["r"]
    again.step(ev.PlaneChanged(plane), ev.LeaseChanged(lease))
    again.step(ev.PodChanged(market.state.workloads.pods["p"]))
    assert set(again.state.leases.live["r"].inside) == {"p"} and again.free() == 12
