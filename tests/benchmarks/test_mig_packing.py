# SPDX-License-Identifier: Apache-2.0
"""Requests for MIG instances on cards that are divided as they come: the benchmark's simulation and exact solver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest

from benchmarks.mig_packing import (
    MIXES,
    Asked,
    Cards,
    filled,
    most,
    policies,
    served,
    share,
    small,
    stream,
    under_load,
)
from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.instances import states
from tests.core.devices.mig.mig_oracle import geometry

A100 = geometry("A100-80GB")


def best_of_all(card: Geometry, cards: int, requests: Sequence[Asked], values: Sequence[int]) -> int:
    """Every choice tried: refuse, or any place of any card."""
    legal = states(card).classes

    def rest(i: int, held: tuple[tuple[tuple[int, float], ...], ...]) -> int:
        if i == len(requests):
            return 0
        now = tuple(tuple(one for one in own if one[1] > requests[i].begin) for own in held)
        best = rest(i + 1, now)
        for number, own in enumerate(now):
            state = sum(bit for bit, _ in own)
            for start in card.profiles[requests[i].profile].starts:
                bit = card.bit(requests[i].profile, start)
                if not state & bit and state | bit in legal:
                    then = (*now[:number], (*own, (bit, requests[i].end)), *now[number + 1 :])
                    best = max(best, values[i] + rest(i + 1, then))
        return best

    return rest(0, ((),) * cards)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.slow
def test_the_exact_solver_finds_what_trying_everything_finds(seed: int) -> None:
    mix = list(MIXES)[seed % len(MIXES)]
    requests = list(islice(stream(A100, MIXES[mix], 3, 1, seed), 7))
    values = [1] * 7 if seed % 2 else [share(A100, asked.profile) for asked in requests]
    assert most(A100, 1, requests, values, 0) == best_of_all(A100, 1, requests, values)
    few, own = requests[:5], values[:5]
    assert most(A100, 2, few, own, 0) == best_of_all(A100, 2, few, own)


@pytest.mark.parametrize("seed", range(4))
def test_no_policy_serves_more_than_the_exact_solver(seed: int) -> None:
    rows = small(A100, "uniform", seed)
    exact = rows[-1]
    assert exact.policy == "exact"
    assert all(row.accepted_percent <= exact.accepted_percent for row in rows)
    assert all(row.slices_percent <= exact.slices_percent for row in rows)


@pytest.mark.parametrize("name", list(policies(A100)))
def test_whatever_fits_is_served_and_what_runs_together_can_be_together(name: str) -> None:
    known = states(A100)
    cards = Cards(A100, policies(A100)[name], 4)
    held, running = [0] * 4, list[tuple[float, int, int]]()
    for asked in islice(stream(A100, MIXES["bimodal"], 1.3, 4, 5), 300):
        for one in [one for one in running if one[0] <= asked.begin]:
            cards.give_back(*one[1:])
            held[one[1]] &= ~one[2]
            running.remove(one)
        place = cards.place(asked.profile)
        assert (place is None) == (not any(known.room(state, asked.profile) for state in held))
        if place is not None:
            card, bit = place
            assert not held[card] & bit and bit & known.of_profile[asked.profile]
            held[card] |= bit
            assert held[card] in known.classes
            running.append((asked.end, *place))


def test_the_load_is_what_is_asked_for_of_all_cards() -> None:
    requests = list(islice(stream(A100, MIXES["small"], 0.9, 20, 1), 20_000))
    work = sum(share(A100, asked.profile) * (asked.end - asked.begin) for asked in requests) / 1000
    assert work / (20 * requests[-1].begin) == pytest.approx(0.9, rel=0.05)


def test_the_first_card_is_filled_first() -> None:
    smallest = A100.index("1g.10gb")
    requests = [Asked(smallest, i, 100) for i in range(8)]
    cards = Cards(A100, policies(A100)["first-fit"], 2)
    places = [cards.place(asked.profile) for asked in requests]
    assert places == [(0, A100.bit(smallest, start)) for start in range(7)] + [(1, A100.bit(smallest, 0))]
    assert served(A100, policies(A100)["first-fit"], 1, requests) == [True] * 7 + [False]


@pytest.mark.parametrize("mix", list(MIXES))
@pytest.mark.slow
def test_the_schedulers_own_serves_more_than_the_published_ones(mix: str) -> None:
    """Of the slices that are asked for, on the same requests."""
    had = dict.fromkeys(policies(A100), 0.0)
    for seed in range(3):
        for row in under_load(A100, mix, 1.1, 24, seed):
            had[row.policy] += row.slices_percent
    assert had["dovetail"] > max(had["first-fit"], had["best-fit"], had["mfi"])


def test_cards_with_the_same_places_serve_the_same() -> None:
    rows = [filled(geometry(key), "uniform", 6, 3) for key in ("A100-40GB", "A100-80GB", "H100-80GB")]
    assert rows[0] == rows[1] == rows[2]
