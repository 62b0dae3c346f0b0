# SPDX-License-Identifier: Apache-2.0
"""An agent that writes requests without end costs as much as the number that its plane may have at a time."""

from __future__ import annotations

from dovetail.core import checkpoint
from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseAlternative, LeaseRequest
from dovetail.core.reasons import Reason
from tests.core.bargaining.market import MINUTE, Market, nodes

FLOOD, MOST = 500, 8
LONG = LeaseAlternative(count=8, duration_ms=60 * MINUTE)


def flooded(*alternatives: LeaseAlternative, **more: object) -> Market:
    """A plane has asked for all devices FLOOD times, the oldest request last, and holds them."""
    market = Market(*nodes(1))
    market.plane(most_requests=MOST, grace_ms=MINUTE, **more)
    market.ask("first", LONG, firm=True)
    market.wait(FLOOD)
    requests = [
        LeaseRequest(f"r{age}", "a/a", "r", alternatives or (LONG,), created_ms=market.now_ms - age)
        for age in range(FLOOD)
    ]
    market.step(*map(ev.LeaseRequestChanged, requests))
    return market


def waiting(market: Market) -> set[str]:
    return {one.request.id for one in market.state.requests.by_workload.values()}


def test_of_a_flood_so_many_requests_wait_as_the_plane_may_have_and_the_others_have_a_reason() -> None:
    market = flooded()
    assert waiting(market) == {f"r{age}" for age in range(FLOOD - MOST, FLOOD)}
    # The placeholders of each, and of the lease.
    assert len(market.state.workloads.pods) == 8 * (MOST + 1)
    beyond = [refusal for name, (_, refusal) in market.states.items() if name not in waiting(market)]
    assert {refusal.reason for refusal in beyond if refusal is not None} == {Reason.PLANE_LIMIT}


def test_what_happens_to_a_plane_concerns_the_requests_that_have_a_place() -> None:
    market = flooded(heartbeat_ms=10_000)
    for _ in range(3):
        market.wait(31_000)
        assert len(market.last) <= MOST + 1
        market.step(ev.PlaneHeartbeat("a/a"))
        assert len(market.last) <= MOST + 1
    assert len(waiting(market)) == MOST


def test_each_request_of_a_flood_has_its_turn_the_oldest_first() -> None:
    market = flooded(LeaseAlternative(count=8, duration_ms=1000))
    market.act("first", "return")
    for turn in range(3 * MOST):
        (name,) = market.offers
        assert int(name[1:]) >= FLOOD - MOST - turn
        market.offers.pop(name)
        market.step(ev.LeaseRequestRemoved(name))
        assert len(waiting(market)) == MOST


def test_a_request_that_may_only_start_later_takes_no_place() -> None:
    market = flooded(LeaseAlternative(earliest_ms=5 * MINUTE))
    market.ask("now")
    assert waiting(market) == {"now"}
    market.wait(5 * MINUTE)
    assert len(waiting(market)) == MOST


def test_places_are_as_they_were_after_a_restart_from_a_checkpoint() -> None:
    market = flooded()
    written = checkpoint.take(market.state)
    assert checkpoint.take(checkpoint.restore(market.state.policy, written)) == written


def test_a_plane_that_is_deleted_and_made_again_has_as_many_places() -> None:
    market = flooded()
    plane = market.state.requests.planes["a/a"]
    market.step(ev.PlaneRemoved("a/a"))
    assert not waiting(market)
    market.wait(2 * MINUTE)
    market.step(ev.PlaneChanged(plane))
    assert len(waiting(market)) == MOST
