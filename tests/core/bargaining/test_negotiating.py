# SPDX-License-Identifier: Apache-2.0
"""From a request to offers, answers and a grant."""

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import NAME_TAKEN, LeaseAlternative, LeaseRequest, ServiceClass
from dovetail.core.model import Problem
from dovetail.core.queues.types import Queue
from dovetail.core.reasons import Reason
from tests.core.bargaining.market import MINUTE, Market, nodes
from tests.core.gang_oracle import gpu_pod


def test_a_request_that_fits_is_offered_whole_and_now_with_its_devices() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r", LeaseAlternative(count=4, per_node=4))
    (offer,) = market.offers["r"]
    assert offer.now and offer.why == "" and offer.alternative.count == 4
    assert [len(one.devices) for one in offer.holdings] == [4]
    assert market.free() == 12


def test_an_accepted_offer_is_a_lease_of_the_same_devices_until_its_end() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r", LeaseAlternative(count=4, per_node=4, duration_ms=10 * MINUTE))
    (offer,) = market.offers["r"]
    market.answer("r")
    lease = market.leases["r"]
    assert lease.holdings == offer.holdings and lease.end_ms == market.now_ms + 10 * MINUTE
    market.wait(10 * MINUTE)
    assert market.ended == {"r": "Expired"} and market.free() == 16


def test_a_firm_request_is_granted_without_an_offer() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r", LeaseAlternative(count=16), firm=True)
    assert market.leases["r"].alternative.count == 16 and market.free() == 0


def test_an_offer_lapses_and_is_made_again_after_a_back_off() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r")
    market.wait(14_999)
    assert "r" in market.offers
    market.wait(1)
    state, refusal = market.states["r"]
    assert state == "BackingOff" and refusal is not None and refusal.reason is Reason.BACKING_OFF
    assert market.free() == 16
    market.wait(14_999)
    assert "r" not in market.offers, "it waits for as long as it held devices for nothing"
    market.wait(1)
    assert "r" in market.offers


def test_declining_costs_a_back_off_that_doubles() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r")
    for wait_ms in (1000, 2000, 4000):
        market.answer("r", "decline")
        market.wait(wait_ms - 1)
        assert "r" not in market.offers
        market.wait(1)
        assert "r" in market.offers


def test_fewer_devices_are_offered_where_fewer_will_do() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.plane("b")
    market.ask("other", LeaseAlternative(count=5), plane="b", firm=True)
    market.ask("r", LeaseAlternative(count=8, least=2))
    (offer,) = market.offers["r"]
    assert offer.alternative.count == 3 and offer.why == "3 of 8 devices are free"


def test_another_alternative_is_offered_with_the_later_start_of_the_first() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.plane("b")
    market.ask("other", LeaseAlternative(count=5, duration_ms=20 * MINUTE), plane="b", firm=True)
    market.ask("r", LeaseAlternative(count=8, per_node=8), LeaseAlternative(count=2, duration_ms=5 * MINUTE))
    now, later = market.offers["r"]
    assert now.now and now.alternative.count == 2
    assert not later.now and later.alternative.count == 8
    assert later.start_ms == market.leases["other"].end_ms
    market.answer("r", number=1)
    assert market.states["r"][0] == "Reserved" and market.free() == 3
    market.wait(20 * MINUTE)
    assert market.leases["r"].alternative.count == 8


def test_two_alternatives_are_held_at_most_and_the_one_that_is_not_accepted_is_free_again() -> None:
    """Beside the later start of the first that makes three offers."""
    for accepted, count in ((0, 2), (1, 1), (2, 8)):
        market = Market(*nodes(1))
        market.plane()
        market.plane("b")
        market.ask("other", LeaseAlternative(count=4, duration_ms=20 * MINUTE), plane="b", firm=True)
        whole, short = LeaseAlternative(count=8, per_node=8), LeaseAlternative(count=2, duration_ms=5 * MINUTE)
        market.ask("r", whole, short, replace(short, count=1), replace(short, count=1))
        assert [(one.now, one.alternative.count) for one in market.offers["r"]] == [(True, 2), (True, 1), (False, 8)]
        assert market.free() == 1
        devices = [[gpu for part in one.holdings for gpu in part.devices] for one in market.offers["r"]]
        assert len({*devices[0], *devices[1]}) == 3
        market.answer("r", number=accepted)
        if accepted < 2:
            assert [gpu for part in market.leases["r"].holdings for gpu in part.devices] == devices[
                accepted
            ] and market.free() == 4 - count
        else:
            assert market.states["r"][0] == "Reserved" and market.free() == 4


def test_the_second_alternative_that_is_held_stays_within_what_is_left() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.plane("b")
    market.ask("other", LeaseAlternative(count=5, duration_ms=20 * MINUTE), plane="b", firm=True)
    two = LeaseAlternative(count=2, duration_ms=5 * MINUTE)
    market.ask("r", LeaseAlternative(count=8, per_node=8), two, two)
    assert [(one.now, one.alternative.count) for one in market.offers["r"]] == [(True, 2), (False, 8)]
    assert market.free() == 1
    market.answer("r", "decline")
    assert market.free() == 3


def test_what_is_held_for_a_request_is_in_the_way_of_others_and_not_of_its_other_alternatives() -> None:
    market = Market(*nodes(1))
    for name in "abc":
        market.plane(name)
    market.ask("other", LeaseAlternative(count=4, duration_ms=20 * MINUTE), plane="b", firm=True)
    long = LeaseAlternative(count=2, duration_ms=60 * MINUTE)
    market.ask("r", LeaseAlternative(count=8, per_node=8), plane="a")
    assert market.states["r"][0] == "Reserved"
    market.ask("late", long, plane="c")
    assert "late" not in market.offers
    market.withdraw("late")
    market.withdraw("r")
    market.ask("s", LeaseAlternative(count=8, per_node=8), long, plane="a")
    assert [(offer.now, offer.alternative.count) for offer in market.offers["s"]] == [(True, 2), (False, 8)]


def test_a_later_offer_keeps_its_room_from_others() -> None:
    market = Market(*nodes(1))
    for name in "abc":
        market.plane(name)
    market.ask("other", LeaseAlternative(count=5, duration_ms=20 * MINUTE), plane="b", firm=True)
    market.ask("r", LeaseAlternative(count=8, per_node=8), LeaseAlternative(count=2, duration_ms=5 * MINUTE))
    market.answer("r", number=1)
    market.ask("long", LeaseAlternative(count=1, duration_ms=60 * MINUTE), plane="c", firm=True)
    market.ask("short", LeaseAlternative(count=1, duration_ms=10 * MINUTE), plane="c", firm=True)
    assert set(market.leases) == {"other", "short"}
    market.wait(20 * MINUTE)
    assert "r" in market.leases


def test_a_scavenger_is_offered_the_time_until_a_reservation_begins() -> None:
    market = Market(*nodes(1))
    for name in "abc":
        market.plane(name)
    market.ask("other", LeaseAlternative(count=5, duration_ms=20 * MINUTE), plane="b", firm=True)
    market.ask("big", LeaseAlternative(count=8, per_node=8), firm=True)
    scavenger = ServiceClass.SCAVENGER
    market.ask(
        "s",
        LeaseAlternative(count=3, duration_ms=60 * MINUTE, least_duration_ms=MINUTE, service=scavenger),
        plane="c",
        firm=True,
    )
    assert market.leases["s"].end_ms == market.leases["other"].end_ms
    market.wait(20 * MINUTE)
    assert "big" in market.leases


def test_a_counter_offer_within_the_request_is_negotiated_anew() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r", LeaseAlternative(count=8, duration_ms=10 * MINUTE))
    market.answer("r", "counter", counter=LeaseAlternative(count=2, duration_ms=5 * MINUTE))
    assert market.offers["r"][0].alternative.count == 2
    market.answer("r", "counter", counter=LeaseAlternative(count=9, duration_ms=5 * MINUTE))
    refusal = market.states["r"][1]
    assert refusal is not None and refusal.reason is Reason.COUNTER_REFUSED and "more devices" in refusal.detail


def test_there_are_at_most_three_counter_offers() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r", LeaseAlternative(count=8))
    for count in (7, 6, 5):
        market.answer("r", "counter", counter=LeaseAlternative(count=count))
        assert market.offers["r"][0].alternative.count == count
    market.answer("r", "counter", counter=LeaseAlternative(count=4))
    refusal = market.states["r"][1]
    assert refusal is not None and refusal.reason is Reason.COUNTER_REFUSED


def test_a_plane_has_one_offer_outstanding() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r1")
    market.ask("r2")
    refusal = market.states["r2"][1]
    assert set(market.offers) == {"r1"} and refusal is not None and refusal.reason is Reason.OFFER_OUTSTANDING
    market.answer("r1")
    assert set(market.offers) == {"r2"}


def test_an_answer_to_an_offer_that_is_gone_changes_nothing() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r")
    old = market.offers["r"]
    market.answer("r", "decline")
    market.wait(1000)
    market.offers["r"], new = old, market.offers["r"]
    market.answer("r")
    refusal = market.states["r"][1]
    assert not market.leases and refusal is not None and refusal.reason is Reason.OFFER_GONE
    market.offers["r"] = new
    market.answer("r")
    assert "r" in market.leases


def test_an_answer_comes_too_late() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r")
    offers = market.offers["r"]
    market.wait(15_000)
    market.offers["r"] = offers
    market.answer("r")
    assert not market.leases and market.states["r"][1].reason is Reason.OFFER_GONE


def test_a_withdrawn_request_holds_nothing() -> None:
    market = Market(*nodes())
    market.plane()
    market.ask("r", LeaseAlternative(count=16))
    assert market.free() == 0
    market.withdraw("r")
    assert market.free() == 16 and not market.state.workloads.pods


def test_an_alternative_starts_no_earlier_and_no_later_than_it_may() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.plane("b")
    market.ask("r", LeaseAlternative(earliest_ms=market.now_ms + MINUTE), firm=True)
    assert market.states["r"][1].reason is Reason.TOO_EARLY
    market.wait(MINUTE - 1)
    assert not market.leases
    market.wait(1)
    assert "r" in market.leases
    market.ask("all", LeaseAlternative(count=7), plane="b", firm=True)
    market.ask("late", LeaseAlternative(count=8, latest_ms=market.now_ms + MINUTE), firm=True)
    market.wait(MINUTE + 1)
    state, refusal = market.states["late"]
    assert state == "Denied" and refusal is not None and refusal.reason is Reason.TOO_LATE


def test_a_plane_has_no_more_leases_and_waiting_requests_than_it_may() -> None:
    market = Market(*nodes())
    market.plane(most_leases=1, most_requests=1)
    market.ask("r1", firm=True)
    market.ask("r2", firm=True)
    market.ask("r3", firm=True)
    assert set(market.leases) == {"r1"}
    assert market.states["r2"][1].reason is Reason.PLANE_LIMIT
    assert market.states["r3"][1].reason is Reason.PLANE_LIMIT
    market.act("r1", "return")
    assert set(market.leases) == {"r2"}


def test_a_request_of_a_plane_that_does_not_exist_waits_for_it() -> None:
    market = Market(*nodes())
    market.ask("r", firm=True)
    assert market.states["r"][1].reason is Reason.PLANE_MISSING
    market.plane()
    assert "r" in market.leases


def test_a_queue_takes_control_planes_only_where_that_is_declared() -> None:
    market = Market(*nodes())
    market.step(ev.QueueChanged(Queue("jobs")))
    market.plane(queue="jobs")
    market.ask("r", firm=True)
    assert market.states["r"][1].reason is Reason.PLANE_INVALID
    market.step(ev.PodChanged(gpu_pod("job", 1, queue="jobs")))
    assert "job" in market.bound
    market.step(ev.QueueChanged(Queue("jobs", planes=True)))
    assert "r" in market.leases
    market.step(ev.PodChanged(gpu_pod("late", 1, queue="jobs")))
    refusal = market.state.queue.refusal("pod/late")
    assert refusal is not None and refusal.reason is Reason.QUEUE_NOT_LEAF


def test_a_place_that_is_free_goes_to_the_oldest_request_that_has_none() -> None:
    market = Market(*nodes())
    market.plane(most_leases=1, most_requests=1)
    for name in ("r1", "r2"):
        market.ask(name, firm=True)
        market.wait(1000)
    assert market.states["r2"][1].reason is Reason.PLANE_LIMIT
    for name in ("r4", "r3"):
        market.wait(1000)
        market.ask(name, firm=True)
    market.withdraw("r2")
    for before, name in [("r1", "r4"), ("r4", "r3")]:
        market.act(before, "return")
        assert set(market.leases) == {name}


def renewed(market: Market, name: str) -> LeaseRequest:
    """The request is deleted, and created again, before its lease was read."""
    market.step(ev.LeaseRequestRemoved(name))
    market.requests[name] = replace(market.requests[name], created_ms=market.now_ms + 1)
    market.step(ev.LeaseRequestChanged(market.requests[name]))
    return market.requests[name]


def test_a_request_of_the_name_of_one_that_was_just_granted_leaves_its_lease_alone() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.ask("r", LeaseAlternative(count=8, duration_ms=10 * MINUTE), firm=True)
    newer, held = renewed(market, "r"), market.leases["r"]
    state, refusal = market.states["r"]
    assert state == "Pending" and refusal is not None and "of an older request" in refusal.detail
    market.step(ev.LeaseRequestChanged(replace(newer, problem=Problem("metadata.name", "r", NAME_TAKEN))))
    market.plane("b")
    market.ask("s", LeaseAlternative(count=1), plane="b", firm=True)
    assert market.leases == {"r": held} and market.free() == 0


def test_it_has_its_turn_when_that_lease_is_over() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.ask("r", LeaseAlternative(count=8, duration_ms=10 * MINUTE), firm=True)
    renewed(market, "r")
    first = market.leases["r"]
    market.act("r", "return")
    assert market.leases["r"].fence > first.fence
    market.act("r", "return")
    assert "r" not in market.leases, "a request leads to one lease"
