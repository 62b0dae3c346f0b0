# SPDX-License-Identifier: Apache-2.0
"""Worked examples of others, and of the formulas by hand, come out of our ledger, division and tree.

Sources: KAI Scheduler (time-based fair share), NVIDIA's blog on it, Kueue KEP-4136 (Admission Fair Sharing), Slurm's
fair_tree page, nos (elastic quotas), Karma (OSDI 2023).
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import pytest

from dovetail.core.queues.division import Claimant, divide
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import Queue
from dovetail.core.queues.usage import DecayedUsage, accrued, steady

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
GPU_HOUR = 1000 * HOUR_MS
WHOLE = 1000


def shares(gpus: int, k: float, *claims: tuple[int, float, int]) -> list[int]:
    """GPUs of each (weight, U, request)."""
    claimants = [
        Claimant(str(i), weight=weight, usage_ppm=round(usage * 10**6), request=request * WHOLE)
        for i, (weight, usage, request) in enumerate(claims)
    ]
    return [due // WHOLE for due in divide(gpus * WHOLE, claimants, round(k * 1000), WHOLE)]


@pytest.mark.parametrize(
    ("gpus", "k", "claims", "due"),
    [
        (100, 1, ((1, 0.3, 100), (1, 0, 100)), [41, 59]),
        (100, 0, ((1, 0.3, 100), (1, 0, 100)), [50, 50]),
        (50, 2, ((1, 0.5, 100), (1, 0.1, 100)), [14, 36]),
        (16, 1, ((1, 1, 16), (1, 0, 16)), [0, 16]),
        (90, 1, ((2, 2 / 3, 90), (1, 1 / 3, 90)), [60, 30]),
    ],
)
def test_kai_divides_so_by_usage(
    gpus: int, k: float, claims: tuple[tuple[int, float, int], ...], due: list[int]
) -> None:
    assert shares(gpus, k, *claims) == due


@pytest.mark.parametrize(
    ("k", "used", "due"),
    [(0, 0, [25, 25]), (1, 0, [33, 17]), (0.5, 0.1, [29, 21]), (2, 0, [38, 12]), (3, 0, [40, 10]), (8, 0, [40, 10])],
)
def test_a_model_that_needs_40_beside_vision_jobs_gets_them_with_a_k_of_3(
    k: float, used: float, due: list[int]
) -> None:
    """A language model with a quota of 20 needs 40 more; vision jobs with 30 ask for 70 more and used half of all."""
    assert shares(50, k, (1, used, 40), (1, 0.5, 70)) == due
    model = Claimant("model", 20 * WHOLE, None, 1, 60 * WHOLE, round(used * 10**6))
    vision = Claimant("vision", 30 * WHOLE, None, 1, 100 * WHOLE, 500_000)
    with_quotas = divide(100 * WHOLE, [model, vision], round(k * 1000), WHOLE)
    assert with_quotas == [(20 + due[0]) * WHOLE, (30 + due[1]) * WHOLE]


def test_a_queue_that_used_its_weight_gets_its_weight_whatever_k() -> None:
    for k in (0, 0.5, 1, 5):
        assert shares(80, k, (5, 0.5, 80), (3, 0.3, 80), (2, 0.2, 80)) == [40, 24, 16]


def test_nos_divides_what_is_idle_by_guarantees() -> None:
    """A holds 40, B 10, C 30 and is idle: of the 30, 15 are for A and 3.75 for B; C could ask for its own part."""
    assert divide(30_000, [Claimant(str(w), weight=w, request=80_000) for w in (40, 10, 30)], 0, 1) == [
        15_000, 3750, 11_250,
    ]  # fmt: skip


def test_max_min_of_karma() -> None:
    demands = [(3, 2, 1), (3, 0, 3), (0, 3, 3), (2, 2, 4), (2, 3, 5)]
    totals = [sum(column) for column in zip(*(shares(6, 0, *((1, 0, d) for d in row)) for row in demands), strict=True)]
    assert totals == [10, 9, 11]
    assert shares(12, 0, (1, 0, 6), (1, 0, 6), (1, 0, 12)) == [4, 4, 4]


def test_kueue_moving_average() -> None:
    """Two samples of 5 minutes with 8 GPUs are an average of 4 at a half life of 10 minutes."""
    half_life_ms = 10 * MINUTE_MS
    ledger = DecayedUsage(half_life_ms, rate=8000)
    ledger.settle(5 * MINUTE_MS)
    ledger.settle(10 * MINUTE_MS)
    assert abs(ledger.used - steady(4000, half_life_ms)) <= 2


def test_kueue_usage_fades_while_idle() -> None:
    half_life_ms = HOUR_MS
    ledger = DecayedUsage(half_life_ms, used=steady(16_000, half_life_ms))
    assert abs(ledger.at(2 * half_life_ms) - steady(4000, half_life_ms)) <= 1


def test_kueue_entry_penalty_is_what_the_request_accrues_over_the_sampling_interval() -> None:
    half_life_ms, interval_ms, scale = 168 * HOUR_MS, 5 * MINUTE_MS, 10**9
    a = Fraction(accrued(scale, interval_ms, half_life_ms), steady(scale, half_life_ms))
    assert round(float(a), 9) == 0.000343764
    assert round(float(a * 1000), 4) == 0.3438
    request = 1000 * 1000
    ahead = DecayedUsage(half_life_ms, rate=request).ahead(interval_ms)
    assert ahead == accrued(request, interval_ms, half_life_ms)
    assert round(ahead / steady(1000, half_life_ms), 4) == 0.3438


def fair_tree(tree: Tree, ledgers: dict[str, DecayedUsage], name: str = "") -> list[str]:
    """Leaves in order: at each level the one that used the least by weight among its siblings first, with all below
    it."""

    def used(queue: str) -> int:
        return sum(map(used, tree.children(queue))) if tree.children(queue) else ledgers[queue].used

    if name and tree.leaf(name):
        return [name]
    siblings = sorted(tree.children(name), key=lambda q: Fraction(used(q), tree.queues[q].weight))
    return [leaf for sibling in siblings for leaf in fair_tree(tree, ledgers, sibling)]


def test_slurm_fair_tree() -> None:
    tree = Tree()
    for name, parent, weight in (
        ("A", "", 40), ("D", "", 60), ("B", "A", 30), ("C", "A", 10), ("E", "D", 25), ("F", "D", 35),
        ("U1", "B", 1), ("U2", "C", 1), ("U3", "C", 1), ("U4", "E", 1), ("U5", "F", 1),
    ):  # fmt: skip
        tree.put(Queue(name, parent, weight=weight))
    used = {"U1": 20, "U2": 25, "U3": 0, "U4": 25, "U5": 0, "default": 99}
    ledgers = {name: DecayedUsage(HOUR_MS) for name in used}
    for name, gpus in used.items():
        ledgers[name].charge(gpus * 1000, 0, HOUR_MS, 2 * HOUR_MS)
    assert fair_tree(tree, ledgers)[:5] == ["U5", "U4", "U1", "U3", "U2"]


@pytest.mark.parametrize("seed", range(5))
def test_the_credit_is_the_balance_of_a_leaky_account_and_what_is_due_less_what_was_used(seed: int) -> None:
    """b' = b 2^(-d/h) + (s - a)(h/ln 2)(1 - 2^(-d/h)) step by step, and (h/ln 2) C (W - U), over a day of bursts."""
    random = Random(seed)
    half_life_ms, capacity, weight = 6 * HOUR_MS, 100_000, Fraction(random.randint(1, 9), 10)
    due = int(weight * capacity)
    ledger, cluster = (
        DecayedUsage(half_life_ms),
        DecayedUsage(half_life_ms, used=steady(capacity, half_life_ms), rate=capacity),
    )
    balance, now_ms = due * half_life_ms / math.log(2), 0
    while now_ms < 24 * HOUR_MS:
        rate, length_ms = random.choice([0, random.randint(1, capacity)]), random.randint(1, 2 * HOUR_MS)
        ledger.change(rate - ledger.rate, now_ms)
        now_ms += length_ms
        kept = 2 ** (-length_ms / half_life_ms)
        balance = balance * kept + (due - rate) * half_life_ms / math.log(2) * (1 - kept)
        share = ledger.at(now_ms) / cluster.at(now_ms)
        scale = half_life_ms / math.log(2) * capacity
        assert abs(ledger.credit(due, now_ms) - balance) < 1e-9 * scale
        assert abs(ledger.credit(due, now_ms) - scale * (float(weight) - share)) < 1e-9 * scale


def test_a_tenth_of_a_hundred_gpus_with_a_half_life_of_six_hours() -> None:
    half_life_ms, due = 6 * HOUR_MS, 10_000
    ledger = DecayedUsage(half_life_ms)
    full = ledger.credit(due, 0)
    assert round(full / GPU_HOUR, 2) == 86.56

    ledger.change(60_000, 0)
    assert round(ledger.credit(due, HOUR_MS) / GPU_HOUR, 2) == 29.90
    empty_ms = next(ms for ms in range(0, 3 * HOUR_MS, 1000) if ledger.credit(due, ms) <= 0)
    assert round(empty_ms / HOUR_MS, 3) == 1.578

    ledger.change(-60_000, empty_ms)
    assert round(ledger.credit(due, empty_ms + 6 * HOUR_MS) / full, 3) == 0.5
    assert round(ledger.credit(due, empty_ms + round(19.93 * HOUR_MS)) / full, 3) == 0.9
