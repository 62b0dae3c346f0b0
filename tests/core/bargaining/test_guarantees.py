# SPDX-License-Identifier: Apache-2.0
"""What the broker guarantees to agents, over virtual hours."""

from __future__ import annotations

import random

import pytest

from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.core.model import Work
from dovetail.core.queues.types import Queue
from tests.breadth import seeds
from tests.core.bargaining.market import MINUTE, Market, nodes
from tests.core.gang_oracle import gpu_pod

LONGEST = 20 * MINUTE


def busy(market: Market, chance: random.Random, number: int, planes: str, **more: object) -> None:
    """One more request of some plane, for at most LONGEST."""
    count = chance.choice((1, 1, 2, 4))
    wanted = LeaseAlternative(count=count, duration_ms=chance.randint(1, 20) * MINUTE, **more)
    market.ask(f"x{number}", wanted, plane=chance.choice(planes), firm=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.slow
def test_a_request_for_all_devices_is_active_within_the_longest_lease_of_its_reservation(seed: int) -> None:
    market, chance = Market(*nodes(2)), random.Random(seed)
    for name in "abc":
        market.plane(name)
    reserved_ms, number = 0, 0
    for number in range(12):
        busy(market, chance, number, "ab")
    market.ask("big", LeaseAlternative(count=16), plane="c", firm=True)
    while "big" not in market.leases:
        if market.states["big"][0] == "Reserved":
            reserved_ms = reserved_ms or market.now_ms
        number += 1
        busy(market, chance, number, "ab")
        market.wait(chance.randint(1, 3) * MINUTE)
        for lease in list(market.leases):
            if chance.random() < 0.2:
                market.act(lease, "renew", market.now_ms + 5 * MINUTE)
        assert not reserved_ms or market.now_ms <= reserved_ms + LONGEST + 3 * MINUTE
    assert reserved_ms


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_planes_that_always_wait_use_what_their_weights_give_them(seed: int) -> None:
    market, chance = Market(*nodes(6)), random.Random(seed)
    weights = {"a": 1, "b": 2, "c": 3}
    for name, weight in weights.items():
        market.plane(name, weight=weight)
    asked = dict.fromkeys(weights, 0)
    for _ in range(6 * 30):
        for name in weights:
            while len(market.state.requests.placed(f"{name}/{name}")) < 12:
                asked[name] += 1
                wanted = LeaseAlternative(count=chance.choice((1, 2, 4)), duration_ms=10 * MINUTE)
                market.ask(f"{name}{asked[name]}", wanted, plane=name, firm=True)
        market.wait(2 * MINUTE)
    used = {name: market.state.shares.accounts.of(f"planes/{name}/{name}").at(market.now_ms) for name in weights}
    for name, weight in weights.items():
        assert used[name] / sum(used.values()) == pytest.approx(weight / 6, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_plane_that_asks_for_no_more_than_its_share_has_it_within_the_longest_lease(seed: int) -> None:
    market, chance = Market(*nodes(2)), random.Random(seed)
    for name in "abcd":
        market.plane(name)
    number = 0
    for _ in range(30):
        for _ in range(4):
            number += 1
            busy(market, chance, number, "abc")
        market.wait(chance.randint(1, 10) * MINUTE)
    for round_ in range(10):
        name, asked_ms = f"mine{round_}", market.now_ms
        market.ask(name, LeaseAlternative(count=4, duration_ms=10 * MINUTE), plane="d", firm=True)
        while name not in market.leases:
            number += 1
            busy(market, chance, number, "abc")
            market.wait(MINUTE)
            assert market.now_ms <= asked_ms + LONGEST + 3 * MINUTE
        market.wait(15 * MINUTE)


def test_of_two_planes_with_equal_usage_the_one_that_asked_first_starts_first() -> None:
    market = Market(*nodes(1))
    for name in "abc":
        market.plane(name)
    market.ask("all", LeaseAlternative(count=8, duration_ms=10 * MINUTE), plane="c", firm=True)
    for number, name in enumerate("ab" * 3):
        market.wait(1000)
        market.ask(f"{name}{number}", LeaseAlternative(count=8, duration_ms=MINUTE), plane=name, firm=True)
    order: list[str] = []
    while len(order) < 6:
        market.wait(1000)
        order += [name for name in market.leases if name != "all" and name not in order]
    assert order[0] == "a0" and [name[0] for name in order] == list("ababab")


@pytest.mark.slow
def test_jobs_and_leases_share_one_order() -> None:
    """Neither starves the other: each has about half, as their queues have equal weights."""
    market = Market(*nodes(2))
    market.plane()
    market.step(ev.QueueChanged(Queue("jobs")))
    number = 0
    running: dict[str, int] = {}
    for _ in range(60 * 4):
        for uid in [uid for uid, end_ms in running.items() if end_ms <= market.now_ms]:
            del running[uid]
            market.step(ev.PodRemoved(uid, succeeded=True))
        while len(market.state.requests.placed("a/a")) < 8:
            number += 1
            market.ask(f"r{number}", LeaseAlternative(count=2, duration_ms=10 * MINUTE), firm=True)
        waiting = [pod for pod in market.state.workloads.pods.values() if pod.queue == "jobs" and not pod.node]
        for _ in range(8 - len(waiting)):
            number += 1
            work = Work(max_runtime_ms=10 * MINUTE)
            market.step(ev.PodChanged(gpu_pod(f"j{number}", 2, queue="jobs", created_ms=market.now_ms, work=work)))
        for uid in market.bound:
            running.setdefault(uid, market.now_ms + 10 * MINUTE)
        market.bound.clear()
        market.wait(MINUTE)
    used = [market.state.shares.accounts.of(name).at(market.now_ms) for name in ("team", "jobs")]
    assert used[0] / sum(used) == pytest.approx(0.5, rel=0.05)


def test_scavengers_fill_what_is_idle_and_cost_no_other_lease_its_start() -> None:
    scavenger = LeaseAlternative(
        count=1, duration_ms=60 * MINUTE, least_duration_ms=MINUTE, service=ServiceClass.SCAVENGER
    )
    market = Market(*nodes(1))
    for name in "ab":
        market.plane(name)
    for number in range(10):
        market.ask(f"s{number}", scavenger, plane="b", firm=True)
    assert market.free() == 0
    market.wait(MINUTE)
    market.ask("burst", LeaseAlternative(count=4, per_node=4), firm=True)
    market.wait(3 * MINUTE)
    assert "burst" in market.leases


def test_a_large_request_holds_room_beside_a_small_one_that_waits_for_a_long_lease() -> None:
    market, number = Market(*nodes(4)), 0
    for name in "abcde":
        market.plane(name)
    for minutes in (8, 9, 10, 11):
        market.ask(
            f"b{minutes}", LeaseAlternative(count=7, per_node=7, duration_ms=minutes * MINUTE), plane="b", firm=True
        )
    for node in range(4):
        market.ask(f"long{node}", LeaseAlternative(duration_ms=60 * MINUTE), firm=True)
    assert len(market.leases) == 8
    market.wait(MINUTE)
    market.ask("node", LeaseAlternative(count=8, per_node=8, duration_ms=10 * MINUTE), plane="d", firm=True)
    market.ask("large", LeaseAlternative(count=16, duration_ms=10 * MINUTE), plane="c", firm=True)
    assert market.states["node"][0] == "Reserved"
    while "large" not in market.leases and market.now_ms < 70 * MINUTE:
        while len(market.state.requests.placed("e/e")) < 8:
            number += 1
            market.ask(f"e{number}", LeaseAlternative(duration_ms=10 * MINUTE), plane="e", firm=True)
        market.wait(MINUTE)
    assert market.now_ms <= 22 * MINUTE
    # The small one does not wait longer for that.
    market.wait(62 * MINUTE - market.now_ms)
    assert "node" in market.leases
