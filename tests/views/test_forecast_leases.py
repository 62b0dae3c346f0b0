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
from dovetail.core.model import GPU, Pod, Request, Work
from dovetail.core.queues.types import GPU as GPU_CLASS
from dovetail.core.reasons import Sure
from dovetail.views.forecast import forecast
from tests.core.bargaining.market import MINUTE, POLICY, Market, nodes

CLOSE_MS, CLOSE_PART = MINUTE, 16
"""Ends that are so close count as one moment, the last of them."""


class World(Market):
    """A market in which jobs run as long as they declare, and agents accept the first offer at once. `started` has the
    time of each grant and of each first bind, by the name of the request or the uid of the pod."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(*nodes(dice.randint(1, 3)), policy=replace(POLICY, preempt=False))
        self.dice = dice
        self.started: dict[str, int] = {}
        self.runs_ms: dict[str, int] = {}

    def job(self, name: str, gpus: int, runs_ms: int) -> None:
        self.runs_ms[name] = runs_ms
        work = Work(max_runtime_ms=runs_ms)
        self.step(ev.PodChanged(Pod(name, "jobs", name, Request(((GPU, gpus),)), created_ms=self.now_ms, work=work)))

    def at(self, now_ms: int, *events: ev.Event) -> None:
        super().at(now_ms, *events)
        for name in list(self.leases):
            self.started.setdefault(name, now_ms)
        for uid in self.bound:
            self.started.setdefault(uid, now_ms)

    def live(self, until_ms: int) -> None:
        """Until then, answering offers and ending jobs."""
        while self.now_ms < until_ms:
            while self.offers:
                self.answer(next(iter(self.offers)))
            ends = [self.started[uid] + self.runs_ms[uid] for uid in self.bound if uid in self.state.workloads.pods]
            wakes = [at_ms for at_ms in (self.state.next_wake_ms(),) if at_ms is not None and at_ms > self.now_ms]
            now_ms = min([until_ms, *[at_ms for at_ms in ends if at_ms > self.now_ms], *wakes])
            over = [uid for uid in self.bound if self.started[uid] + self.runs_ms[uid] <= now_ms]
            gone = [uid for uid in over if uid in self.state.workloads.pods]
            self.at(now_ms, *[ev.PodRemoved(uid, now_ms, succeeded=True) for uid in gone])


def world(seed: int) -> World:
    dice = random.Random(seed)
    found = World(dice)
    planes = ["a", "b", "c"][: dice.randint(1, 3)]
    for name in planes:
        found.plane(name)
    for number in range(dice.randint(2, 10)):
        if dice.random() < 0.4:
            found.job(f"job-{number}", dice.choice((1, 2, 4, 8)), dice.randint(5, 120) * MINUTE)
        else:
            each = dice.choice((1, 2, 4, 8))
            one = LeaseAlternative(
                each * dice.choice((1, 1, 2)), per_node=each, duration_ms=dice.randint(2, 90) * MINUTE,
                service=dice.choice((ServiceClass.BURST, ServiceClass.SCAVENGER)),
            )  # fmt: skip
            found.ask(f"request-{number}", one, plane=dice.choice(planes), firm=dice.random() < 0.5)
        if dice.random() < 0.5:
            found.live(found.now_ms + dice.randint(1, 20) * MINUTE)
    return found


def expected(market: World) -> dict[str, tuple[Sure, int]]:
    """By the name of each request or job that waits now, its start in the look-ahead."""
    starts = forecast(take(market.state), market.state.policy, market.now_ms).starts.values()
    return {one.job.name.rpartition("/")[2]: (one.expected.sure, one.expected.start_ms) for one in starts}


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
