# SPDX-License-Identifier: Apache-2.0
"""The look-ahead with leases, against what then happens on a virtual clock where agents accept their first offers."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import enter
from dovetail.core.queues.types import GPU as GPU_CLASS
from dovetail.core.reasons import Sure
from dovetail.views.forecast import forecast
from tests.core.bargaining.market import MINUTE, POLICY
from tests.views.agent_market import World, world

CLOSE_MS, CLOSE_PART = MINUTE, 16
"""Ends that are so close count as one moment, the last of them."""


def expected(market: World) -> dict[str, tuple[Sure, int]]:
    """By the name of each request or job that waits now, its start in the look-ahead."""
    starts = forecast(take(market.state), market.state.policy, market.now_ms).starts.values()
    return {one.job.name.rpartition("/")[2]: (one.expected.sure, one.expected.start_ms) for one in starts}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_each_start_is_when_it_then_is_if_no_agent_leaves_early(seed: int) -> None:
    market = world(seed)
    now_ms, found = market.now_ms, expected(market)
    market.live(now_ms + 24 * 60 * MINUTE)
    for name, (sure, start_ms) in found.items():
        if sure is Sure.UNKNOWN:
            assert name not in market.started, name
            continue
        started_ms = market.started[name]
        late_ms = max(CLOSE_MS, (start_ms - now_ms) // CLOSE_PART)
        assert start_ms - late_ms <= started_ms <= start_ms, (name, started_ms, start_ms)


def test_missing_heartbeats_and_idle_leases_are_not_foreseen() -> None:
    starts = []
    for more in ({}, {"heartbeat_ms": 10_000, "idle_ms": MINUTE}):
        market = World(random.Random(0))
        market.plane(**more)
        whole = LeaseAlternative(8, per_node=8, duration_ms=30 * MINUTE)
        for number in range(8):
            market.ask(f"request-{number}", whole, firm=True)
        market.job("job-0", 8, 5 * MINUTE)
        starts.append(expected(market))
        assert any(sure is Sure.KNOWN and start_ms > 25 * MINUTE for sure, start_ms in starts[-1].values())
    assert starts[0] == starts[1]


def test_a_request_of_an_agent_that_is_silent_has_no_start() -> None:
    market = World(random.Random(0))
    market.plane(heartbeat_ms=10_000)
    market.live(market.now_ms + MINUTE)
    market.ask("request-0", LeaseAlternative())
    assert market.states["request-0"][0] == "Pending"
    assert expected(market) == {"request-0": (Sure.UNKNOWN, 0)}


def test_an_offer_that_is_outstanding_is_accepted() -> None:
    market = World(random.Random(0))
    market.plane()
    market.ask("request-0", LeaseAlternative())
    assert "request-0" in market.offers
    (start,) = forecast(take(market.state), market.state.policy, market.now_ms).starts.values()
    assert start.at_once and [place.pod for place in start.places] == ["a/request-0"]
    assert start.granted == LeaseAlternative() and start.offers == market.offers["request-0"]


def test_a_lease_that_is_revoked_for_a_job_is_among_the_victims() -> None:
    market = World(random.Random(1))
    market.state.policy = POLICY
    market.plane("a")
    market.plane("b", guarantee=((GPU_CLASS, 8000),))
    burst = LeaseAlternative(8, per_node=8, duration_ms=60 * MINUTE)
    for number in range(3):
        market.ask(f"burst-{number}", burst, firm=True)
    firm = replace(burst, service=ServiceClass.GUARANTEED)
    before = take(market.state)
    market.ask("due", firm, plane="b", firm=True)
    assert len(market.revoked) == 1
    copy = restore(POLICY, before)
    enter(copy, [ev.LeaseRequestChanged(market.requests["due"])], market.now_ms)
    found = forecast(take(copy), POLICY, market.now_ms)
    (victim,) = found.victims
    assert (victim.pod, victim.for_job) == (f"gpulease/{next(iter(market.revoked))}", "b/due")
    assert victim.cause == "Reclaimed" and victim.gpus_milli == 8000
