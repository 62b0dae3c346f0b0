# SPDX-License-Identifier: Apache-2.0
"""A lease from its start to its end."""

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.leases import Leases
from dovetail.core.bargaining.types import LeaseAction, LeaseAlternative, ServiceClass
from dovetail.core.model import Maintenance
from dovetail.core.queues.types import Queue
from tests.core.bargaining.market import MINUTE, Market, nodes
from tests.core.gang_oracle import gpu_node, gpu_pod

TEN = LeaseAlternative(count=4, duration_ms=10 * MINUTE)


def granted(*alternatives: LeaseAlternative, **more: object) -> Market:
    market = Market(*nodes(1))
    market.plane(**more)
    market.ask("r", *(alternatives or (TEN,)), firm=True)
    assert "r" in market.leases
    return market


def test_notice_comes_one_grace_before_the_end() -> None:
    market = granted(grace_ms=2 * MINUTE)
    market.wait(8 * MINUTE - 1)
    assert market.state.leases.live["r"].state.value == "Active"
    market.wait(1)
    assert market.state.leases.live["r"].state.value == "Expiring"
    market.wait(2 * MINUTE)
    assert market.ended == {"r": "Expired"}


def test_the_grace_is_at_most_half_of_the_term() -> None:
    market = granted(LeaseAlternative(duration_ms=2 * MINUTE), grace_ms=10 * MINUTE)
    assert market.leases["r"].grace_ms == MINUTE


def test_a_returned_lease_is_over_and_its_pods_are_to_be_deleted() -> None:
    market = granted()
    market.pod("p", "r", 2)
    market.act("r", "return")
    assert market.ended == {"r": "Returned"} and market.free() == 8 and "p" not in market.state.workloads.pods


def test_a_stale_fence_and_a_repeated_action_change_nothing() -> None:
    market = granted()
    market.act("r", "return", fence=market.leases["r"].fence - 1)
    assert "r" in market.leases and "the fence of the lease is" in market.refused["r"]


def test_fences_grow() -> None:
    market = granted(LeaseAlternative(count=1))
    market.ask("s", firm=True)
    assert market.leases["s"].fence > market.leases["r"].fence


@pytest.mark.parametrize(("after_min", "refused"), [(6, "it can be renewed in the last third"), (7, "")])
def test_a_lease_is_renewed_in_the_last_part_of_its_term(after_min: int, refused: str) -> None:
    market = granted()
    market.wait(after_min * MINUTE)
    end_ms = market.leases["r"].end_ms
    market.act("r", "renew", market.now_ms + 10 * MINUTE)
    assert market.refused["r"].startswith(refused) and bool(market.refused["r"]) == bool(refused)
    assert market.leases["r"].end_ms == (end_ms if refused else market.now_ms + 10 * MINUTE)


def test_no_renewal_is_longer_than_a_term() -> None:
    market = granted()
    market.wait(8 * MINUTE)
    market.act("r", "renew", market.now_ms + 10 * MINUTE + 1)
    assert "from now at most" in market.refused["r"]


def test_no_renewal_passes_a_reserved_head() -> None:
    market = granted()
    market.plane("b")
    market.ask("big", LeaseAlternative(count=8, per_node=8), plane="b", firm=True)
    assert market.states["big"][0] == "Reserved"
    market.wait(8 * MINUTE)
    market.act("r", "renew", market.now_ms + 5 * MINUTE)
    assert "the devices are reserved for another workload" in market.refused["r"]
    market.wait(2 * MINUTE)
    assert set(market.leases) == {"big"}


def test_a_renewal_beside_a_reservation_is_granted() -> None:
    market = Market(*nodes(2))
    market.plane()
    market.plane("b")
    market.ask("r", LeaseAlternative(count=4, per_node=4, duration_ms=10 * MINUTE), firm=True)
    market.ask("s", LeaseAlternative(count=8, per_node=8, duration_ms=9 * MINUTE), firm=True, plane="b")
    market.ask("big", LeaseAlternative(count=8, per_node=8, duration_ms=MINUTE), plane="b", firm=True)
    assert market.states["big"][0] == "Reserved"
    market.wait(8 * MINUTE)
    market.act("r", "renew", market.now_ms + 9 * MINUTE)
    assert market.refused["r"] == ""
    market.wait(MINUTE)
    assert set(market.leases) == {"r", "big"}


def test_a_lease_without_pods_is_idle_and_taken_back() -> None:
    market = granted(LeaseAlternative(count=4, duration_ms=60 * MINUTE), idle_ms=5 * MINUTE, grace_ms=MINUTE)
    market.wait(4 * MINUTE)
    market.pod("p", "r")
    market.wait(10 * MINUTE)
    assert "r" not in market.revoked
    market.step(ev.PodRemoved("p"))
    market.wait(5 * MINUTE)
    assert market.revoked["r"].revocation.cause == "Idle"
    market.wait(MINUTE)
    assert market.ended == {"r": "Idle"}


def test_a_lease_whose_pods_use_none_of_its_gpus_is_idle() -> None:
    market = granted(LeaseAlternative(count=4, duration_ms=120 * MINUTE), idle_ms=5 * MINUTE, grace_ms=MINUTE)
    market.pod("p", "r")
    market.pod("q", "r", 2)

    def idle(uid: str, ago_ms: int | None) -> None:
        since_ms = 0 if ago_ms is None else market.now_ms - ago_ms
        market.step(ev.PodChanged(replace(market.state.workloads.pods[uid], idle_since_ms=since_ms)))

    market.wait(20 * MINUTE)
    idle("p", 15 * MINUTE)
    market.wait(MINUTE)
    assert "r" not in market.revoked
    # It is unused since the last of them is, and the clock of a node may be ahead.
    idle("q", -MINUTE)
    market.wait(6 * MINUTE - 1)
    assert "r" not in market.revoked
    idle("q", None)
    market.wait(30 * MINUTE)
    assert "r" not in market.revoked
    idle("q", 4 * MINUTE)
    market.wait(MINUTE)
    assert market.revoked["r"].revocation.cause == "Idle"
    assert market.revoked["r"].revocation.message == "none of its pods has used a GPU for 300 s"
    market.wait(MINUTE)
    assert market.ended == {"r": "Idle"}


def test_before_its_start_no_lease_was_idle() -> None:
    market = granted(LeaseAlternative(count=4, duration_ms=60 * MINUTE), idle_ms=5 * MINUTE, grace_ms=MINUTE)
    start_ms = market.now_ms
    market.pod("p", "r")
    market.wait(MINUTE)
    market.step(ev.PodChanged(replace(market.state.workloads.pods["p"], idle_since_ms=start_ms - 10 * MINUTE)))
    market.wait(4 * MINUTE - 1)
    assert "r" not in market.revoked
    market.wait(1)
    assert "r" in market.revoked


def test_a_plane_without_heartbeats_loses_its_leases_after_its_grace() -> None:
    market = granted(heartbeat_ms=10_000, grace_ms=MINUTE)
    for _ in range(4):
        market.wait(20_000)
        market.step(ev.PlaneHeartbeat("a/a"))
    assert "r" not in market.revoked
    market.ask("s")
    market.wait(30_000)
    assert market.revoked["r"].revocation.cause == "HeartbeatLost"
    assert market.states["s"][1].reason.code == "PlaneSilent"
    market.wait(MINUTE)
    assert market.ended == {"r": "HeartbeatLost"}
    market.step(ev.PlaneHeartbeat("a/a"))
    assert "s" in market.offers


def test_a_deleted_plane_loses_its_leases_after_its_grace() -> None:
    market = granted(grace_ms=MINUTE)
    market.step(ev.PlaneRemoved("a/a"))
    assert market.revoked["r"].revocation.cause == "PlaneDeleted"
    market.wait(MINUTE)
    assert market.ended == {"r": "PlaneDeleted"} and market.free() == 8


def test_a_node_that_is_lost_takes_its_leases_along() -> None:
    market = granted()
    market.step(ev.NodeRemoved("n0"))
    assert market.revoked["r"].revocation.cause == "DeviceLost"


def test_a_gpu_that_is_out_takes_its_lease_along_and_no_other() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.ask("r", LeaseAlternative(count=2), firm=True)
    market.ask("s", LeaseAlternative(count=2), firm=True)
    gpu = market.leases["s"].holdings[0].devices[0]
    market.step(ev.NodeChanged(replace(gpu_node("n0", 8), gpus_out=1 << gpu)))
    assert set(market.revoked) == {"s"}


def test_a_node_in_maintenance_gets_its_leases_back_after_their_grace() -> None:
    market = granted(LeaseAlternative(count=4, duration_ms=60 * MINUTE), grace_ms=MINUTE)
    market.step(ev.NodeChanged(replace(gpu_node("n0", 8), maintenance=Maintenance("Evict", market.now_ms))))
    market.wait(MINUTE)
    assert market.revoked["r"].revocation.cause == "NodeMaintenance"
    market.wait(2 * MINUTE)
    assert market.ended["r"] == "NodeMaintenance"


def test_a_queue_that_is_due_its_guarantee_takes_a_burst_lease_back_as_a_whole() -> None:
    market = granted(LeaseAlternative(count=8, duration_ms=60 * MINUTE), grace_ms=MINUTE)
    market.pod("inside", "r", 3)
    market.step(ev.QueueChanged(Queue("owner", guarantee=(("gpu", 4000),))))
    market.wait(15 * MINUTE)
    market.step(ev.PodChanged(gpu_pod("job", 4, queue="owner", created_ms=market.now_ms)))
    assert market.revoked["r"].revocation.cause == "Reclaimed"
    assert "job" not in market.bound and "inside" in market.state.workloads.pods
    market.wait(MINUTE)
    assert market.ended == {"r": "Reclaimed"} and "job" in market.bound


def test_a_guaranteed_lease_is_not_taken_back_for_others() -> None:
    guaranteed = LeaseAlternative(count=8, duration_ms=60 * MINUTE, service=ServiceClass.GUARANTEED)
    market = granted(guaranteed, guarantee=(("gpu", 8000),))
    market.step(ev.QueueChanged(Queue("owner", guarantee=(("gpu", 4000),))))
    market.wait(15 * MINUTE)
    market.step(ev.PodChanged(gpu_pod("job", 4, queue="owner", created_ms=market.now_ms)))
    market.wait(40 * MINUTE)
    assert not market.revoked and "job" not in market.bound


def test_a_guaranteed_request_beyond_the_guarantee_is_refused() -> None:
    market = Market(*nodes(1))
    market.plane(guarantee=(("gpu", 2000),))
    market.ask("r", LeaseAlternative(count=4, service=ServiceClass.GUARANTEED), firm=True)
    assert market.states["r"][1].reason.code == "BeyondGuarantee"


def test_a_request_beyond_the_limit_of_its_plane_is_refused() -> None:
    market = Market(*nodes(1))
    market.plane(limit=(("gpu", 2000),))
    market.ask("r", LeaseAlternative(count=4), firm=True)
    assert market.states["r"][1].reason.code == "QueueLimit"


def test_a_scavenger_makes_room_for_a_burst_request_of_its_plane() -> None:
    market = granted(
        LeaseAlternative(count=8, duration_ms=60 * MINUTE, service=ServiceClass.SCAVENGER), grace_ms=MINUTE
    )
    market.wait(MINUTE)
    market.ask("burst", LeaseAlternative(count=4), firm=True)
    assert market.revoked["r"].revocation.cause == "Reclaimed"
    market.act("r", "return")
    assert "burst" in market.leases


def test_asking_and_returning_all_the_time_is_charged_as_a_minute_each() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.plane("b")
    for number in range(10):
        market.ask(f"r{number}", LeaseAlternative(count=8), firm=True)
        market.wait(1000)
        market.act(f"r{number}", "return")
    usage = market.state.shares.accounts.of("planes/a/a").at(market.now_ms)
    assert usage == pytest.approx(10 * 8 * 1000 * MINUTE, rel=0.01)


@pytest.mark.parametrize(
    ("made", "inside", "charged"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_a_lease_that_was_never_made_is_charged_while_it_held_its_devices(
    made: bool, inside: bool, charged: bool
) -> None:
    market = granted()
    if inside:
        market.pod("p", "r")
    market.wait(1000)
    market.step(ev.LeaseRemoved("r", made=made))
    assert market.ended == {"r": "Returned"}
    usage = market.state.shares.accounts.of("planes/a/a").at(market.now_ms)
    assert usage == pytest.approx(4 * 1000 * (MINUTE if charged else 1000), rel=0.001)


def test_a_lease_from_a_clock_that_was_ahead_is_charged_as_a_minute() -> None:
    known = granted().leases["r"]
    market = Market(*nodes(1))
    market.plane()
    lease = replace(known, start_ms=known.start_ms + 5 * MINUTE, end_ms=known.end_ms + 5 * MINUTE)
    market.leases["r"] = lease
    market.step(ev.LeaseChanged(lease))
    market.act("r", "return")
    usage = market.state.shares.accounts.of("planes/a/a").at(market.now_ms)
    assert usage == pytest.approx(4 * 1000 * MINUTE, rel=0.001)


def test_a_burst_lease_runs_to_its_end_and_a_scavenger_leaves_for_a_queue_that_is_due_more() -> None:
    for service, revoked in ((ServiceClass.BURST, False), (ServiceClass.SCAVENGER, True)):
        market = granted(LeaseAlternative(count=8, duration_ms=60 * MINUTE, service=service), grace_ms=MINUTE)
        market.step(ev.QueueChanged(Queue("owner", weight=9)))
        market.wait(30 * MINUTE)
        market.step(ev.PodChanged(gpu_pod("job", 4, queue="owner", created_ms=market.now_ms)))
        assert ("r" in market.revoked) == revoked
        market.wait(30 * MINUTE)
        assert "job" in market.bound


def test_a_plane_that_was_reported_as_silent_is_silent_until_it_is_heard() -> None:
    market = granted(heartbeat_ms=10_000, grace_ms=MINUTE)
    market.step(ev.PlaneSilent("a/a"), ev.PlaneSilent("un/known"))
    assert market.revoked["r"].revocation.cause == "HeartbeatLost"
    market.ask("s")
    assert market.states["s"][1].reason.code == "PlaneSilent"
    market.step(ev.PlaneHeartbeat("a/a"))
    assert "s" in market.offers


def test_what_an_agent_wanted_of_a_lease_that_is_gone_is_forgotten() -> None:
    """A later lease can have its name, and other numbers."""
    leases = Leases()
    leases.act(LeaseAction("ns/one", 5, 7, "return"))
    leases.remove("ns/one", 7, True)
    assert not leases
