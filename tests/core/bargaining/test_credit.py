# SPDX-License-Identifier: Apache-2.0
"""The account of a control plane: its credit, and what it is due by what it asks for and holds."""

from __future__ import annotations

import random
from math import log

import pytest

from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseAlternative
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from tests.breadth import seeds
from tests.core.bargaining.market import MINUTE, Market, nodes
from tests.core.gang_oracle import FABRIC

GPUS = 16
HALF_LIFE_MS = 3 * 60 * MINUTE
WEIGHTS = {"a": 1, "b": 2, "c": 5}


def market_of(history_milli: int = 1000) -> Market:
    market = Market(*nodes(GPUS // 8), policy=Policy(fabric=FABRIC, searches_per_step=64, history_milli=history_milli))
    market.step(ev.QueueChanged(Queue("team", planes=True, half_life_ms=HALF_LIFE_MS)))
    for name, weight in WEIGHTS.items():
        market.plane(name, weight=weight)
    return market


def ask(market: Market, chance: random.Random, number: int, minutes: int) -> None:
    wanted = LeaseAlternative(count=chance.randint(1, 6), duration_ms=chance.randint(1, minutes) * MINUTE)
    market.ask(f"r{number}", wanted, plane=chance.choice("abc"), firm=True)


def held(market: Market, name: str) -> int:
    leases = [lease for lease in market.leases.values() if lease.plane == f"{name}/{name}"]
    return sum(lease.alternative.count for lease in leases)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
def test_the_credit_is_what_is_due_less_what_is_held_and_both_decay(seed: int) -> None:
    """b' = b * 2^(-d/h) + (s - a) * h / ln 2 * (1 - 2^(-d/h)), step by step, equals h / ln 2 * C * (W - U)."""
    market, chance = market_of(), random.Random(seed)
    of = market.state.shares.accounts.of
    steady, whole = HALF_LIFE_MS / log(2), sum(WEIGHTS.values())
    shares = {name: weight / whole * GPUS for name, weight in WEIGHTS.items()}
    balance = {name: share * steady for name, share in shares.items()}
    for number in range(60):
        # Leases are for a minute at least, so that nothing is charged but what is held.
        ask(market, chance, number, 30)
        for _ in range(chance.randint(1, 6)):
            before = {name: held(market, name) for name in WEIGHTS}
            market.wait(MINUTE)
            kept = 2 ** (-MINUTE / HALF_LIFE_MS)
            for name in WEIGHTS:
                balance[name] = balance[name] * kept + (shares[name] - before[name]) * steady * (1 - kept)
    for name, share in shares.items():
        ledger = of(f"planes/{name}/{name}")
        assert ledger.credit(round(1000 * share), market.now_ms) == pytest.approx(1000 * balance[name], rel=1e-6)
        used = ledger.at(market.now_ms) / (steady * 1000 * GPUS)
        assert steady * GPUS * (WEIGHTS[name] / whole - used) == pytest.approx(balance[name], rel=1e-6)


def max_min(capacity: int, wanted: dict[str, int]) -> dict[str, float]:
    """Weighted max-min: fill all at the pace of their weights, until each has what it wants."""
    parts, left, open_ = dict.fromkeys(wanted, 0.0), float(capacity), set(wanted)
    while left > 1e-9 and open_:
        pace = min((wanted[name] - parts[name]) / WEIGHTS[name] for name in open_)
        pace = min(pace, left / sum(WEIGHTS[name] for name in open_))
        for name in open_:
            parts[name] += pace * WEIGHTS[name]
            left -= pace * WEIGHTS[name]
        open_ = {name for name in open_ if wanted[name] - parts[name] > 1e-9}
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
def test_without_history_planes_are_due_their_weighted_max_min_shares(seed: int) -> None:
    market, chance = market_of(history_milli=0), random.Random(seed)
    full = 0
    for number in range(50):
        ask(market, chance, number, 60)
        market.wait(chance.randint(0, 4) * MINUTE)
        negotiations = market.state.requests.negotiations.values()
        wanted = {name: held(market, name) for name in WEIGHTS}
        for one in negotiations:
            if one.waiting:
                wanted[one.request.plane[0]] += one.alternatives[0].count
        full += sum(wanted.values()) > GPUS
        for name, part in max_min(GPUS, wanted).items():
            assert market.state.shares.fair_share.exact(f"planes/{name}/{name}").get("gpu", 0) == pytest.approx(
                1000 * part, abs=3
            )
    assert full > 10


def test_what_a_plane_holds_counts_as_asked_for_whatever_it_declares() -> None:
    """To withdraw what waits while it holds leases gains nothing: it is due no more than before, and others no less."""
    market = market_of(history_milli=0)
    due = market.state.shares.fair_share
    market.ask("mine", LeaseAlternative(count=6, duration_ms=60 * MINUTE), plane="a", firm=True)
    for name in "bc":
        market.ask(f"{name}1", LeaseAlternative(count=5, duration_ms=60 * MINUTE), plane=name, firm=True)
        market.ask(f"{name}2", LeaseAlternative(count=8, duration_ms=60 * MINUTE), plane=name, firm=True)
    market.ask("more", LeaseAlternative(count=4, duration_ms=60 * MINUTE), plane="a", firm=True)
    before = {name: due.exact(f"planes/{name}/{name}")["gpu"] for name in WEIGHTS}
    market.withdraw("more")
    assert {name: due.exact(f"planes/{name}/{name}")["gpu"] for name in WEIGHTS} == before
    market.withdraw("b2")
    market.withdraw("c2")
    after = {name: due.exact(f"planes/{name}/{name}")["gpu"] for name in WEIGHTS}
    # All that they hold is theirs as long as nobody asks for more.
    assert after == {"a": 6000, "b": 5000, "c": 5000}
