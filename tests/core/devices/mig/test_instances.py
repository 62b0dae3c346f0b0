# SPDX-License-Identifier: Apache-2.0
"""Where the next instance should be: against all that can follow."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations_with_replacement

import pytest

from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.instances import (
    NOWHERE,
    Counts,
    best_start,
    bits_of,
    counts_of,
    equal_weights,
    starts_of,
    states,
)
from dovetail.core.devices.mig.slices import slices
from dovetail.core.devices.mig.worth import HORIZON, OFFERED_CARDS
from tests.core.devices.mig.mig_oracle import FAMILIES, Held, all_legal, bits, geometry, held


def drawn_weights(card: Geometry, seed: int) -> Counts:
    chance = random.Random(seed)
    weights = tuple(chance.choice([0, 1, 1, 2, 5, 10]) for _ in card.profiles)
    return weights if any(weights) else equal_weights(card)


def after_each(card: Geometry, now: Held, profile: int) -> list[Held]:
    """What there can be after one more instance of a profile, by start."""
    more = [now | {(profile, start)} for start in card.profiles[profile].starts]
    return [then for then in more if then != now and then in all_legal(card)]


def expected_worths(card: Geometry, weights: Counts) -> dict[Held, float]:
    """The rules of `worth`, set by set. At each step a request of some profile comes (more often than instances end, as
    the offered load has it), one of the instances ends, or nothing happens."""
    shares = [slices(card, [profile]).milli for profile in card.profiles]
    mean_share = sum(w * share for w, share in zip(weights, shares, strict=True)) / sum(weights) / 1000
    comes = [OFFERED_CARDS * w / sum(weights) / mean_share for w in weights]
    every = [frozenset(now) for now in all_legal(card)]
    rate = sum(comes) + max(map(len, every))
    worth = dict.fromkeys(every, 0.0)
    for _ in range(int(HORIZON * rate)):
        new = {}
        for now, value in worth.items():
            change = sum(worth[now - {one}] - value for one in now)
            for i, often in enumerate(comes):
                following = after_each(card, now, i)
                if following:
                    change += often * (max(worth[then] for then in following) + (shares[i] / 1000) ** 2 - value)
            new[now] = value + change / rate
        worth = new
    return worth


@pytest.mark.parametrize(("key", "seed"), [("A30-24GB", 0), ("A30-24GB", 1), ("RTXPRO6000-96GB", 0), ("A30-24GB", 2)])
@pytest.mark.slow
def test_a_card_is_worth_what_it_is_expected_to_serve(key: str, seed: int) -> None:
    card = geometry(key)
    weights = drawn_weights(card, seed) if seed else equal_weights(card)
    starts = starts_of(card, weights)
    for now, value in expected_worths(card, weights).items():
        assert starts.worth(bits(card, now)) / 2**24 == pytest.approx(value, rel=0.03)


@pytest.mark.parametrize("key", FAMILIES)
@pytest.mark.slow
def test_the_best_start_is_where_the_card_loses_least(key: str) -> None:
    card = geometry(key)
    starts = starts_of(card, equal_weights(card))
    for now in all_legal(card):
        for i in range(len(card.profiles)):
            best = best_start(card, bits(card, now), i)
            losses = {
                next(iter(then - now))[1]: starts.worth(bits(card, now)) - starts.worth(bits(card, then))
                for then in after_each(card, now, i)
            }
            least = min(losses.values(), default=0)
            assert best == (max((start for start, loss in losses.items() if loss == least), default=NOWHERE), least)


@pytest.mark.parametrize("key", FAMILIES)
@pytest.mark.slow
def test_the_largest_profile_of_half_a_card_or_more_that_can_be_kept_possible_is_kept(key: str) -> None:
    card = geometry(key)

    def largest(now: Held) -> tuple[int, int]:
        large = [i for i, own in enumerate(card.profiles) if 2 * own.memory_slices >= card.memory_slices]
        fitting = [card.profiles[i] for i in large if after_each(card, now, i)]
        return max(((own.memory_slices, own.compute_slices) for own in fitting), default=(0, 0))

    lost = []
    for now in all_legal(card):
        for i in range(len(card.profiles)):
            following, at = after_each(card, now, i), best_start(card, bits(card, now), i).start
            if following and largest(now | {(i, at)}) < max(map(largest, following)):
                lost.append((now, i, at))
    assert not lost


def test_first_instances_of_a_card_leave_room_for_the_rest() -> None:
    card = geometry("A100-40GB")

    def start(name: str, *there: tuple[str, int]) -> int:
        return best_start(card, card.bits(there), card.index(name)).start

    assert start("3g.20gb") == 4
    assert start("2g.10gb") == 4
    assert start("1g.10gb") == 6
    # Beside memory slice 6 is one that no 1g can start at: the last two are for 1g.10gb.
    assert start("1g.5gb") == 5
    assert start("1g.5gb", ("3g.20gb", 4)) == 3
    assert start("1g.5gb", ("1g.5gb", 5)) == 4
    assert start("4g.20gb", ("1g.5gb", 0)) == NOWHERE
    assert start("7g.40gb", ("1g.5gb", 6)) == NOWHERE


def test_equals_go_to_the_highest_start() -> None:
    card = geometry("A30-24GB")
    only = counts_of(card, {"1g.6gb": 1})
    assert best_start(card, 0, 0, only).start == 3
    assert best_start(card, 0, 0, (0,) * len(card.profiles)).start == 3


def test_losses_report_which_card_should_take_an_instance() -> None:
    card = geometry("A100-40GB")
    small = card.index("1g.5gb")
    empty, begun = best_start(card, 0, small), best_start(card, card.bits([("4g.20gb", 0), ("2g.10gb", 4)]), small)
    assert 0 < begun.loss < empty.loss < best_start(card, 0, card.index("7g.40gb")).loss


@pytest.mark.parametrize("key", ["A30-24GB", "RTXPRO6000-96GB", "A100-40GB"])
@pytest.mark.slow
def test_room_is_the_most_that_can_be_added(key: str) -> None:
    card = geometry(key)
    most: Counter[tuple[int, int]] = Counter()
    for now in all_legal(card):
        for i in range(len(card.profiles)):
            # All of the instances of one profile in a set, taken away: so many can be added to what is left.
            without = frozenset(one for one in now if one[0] != i)
            most[bits(card, without), i] = max(most[bits(card, without), i], len(now) - len(without))
    known = states(card)
    for (state, i), count in most.items():
        assert known.room(state, i) == count


@pytest.mark.parametrize("key", ["A30-24GB", "A100-40GB"])
def test_what_fits_all_at_once_is_what_some_legal_set_has(key: str) -> None:
    card, chance = geometry(key), random.Random(key)
    known, every = states(card), [bits(card, now) for now in all_legal(card)]
    every.sort()
    for state in (0, *chance.sample(every, 8)):
        possible = {
            tuple(((other & ~state) & own).bit_count() for own in known.of_profile)
            for other in every
            if other & state == state
        }
        for size in range(4):
            for some in combinations_with_replacement(range(len(card.profiles)), size):
                counts = tuple(some.count(i) for i in range(len(card.profiles)))
                assert known.fits(state, counts) == (counts in possible), (card.members(state), counts)


def test_arranged_instances_are_those_asked_for_and_leave_the_most() -> None:
    card = geometry("A100-40GB")
    known, starts = states(card), starts_of(card, equal_weights(card))
    state = card.bits([("2g.10gb", 2)])
    counts = counts_of(card, {"1g.5gb": 2, "1g.10gb": 1})
    added = starts.arranged(state, counts)
    assert added is not None and not added & state
    assert tuple((added & own).bit_count() for own in known.of_profile) == counts
    others = [
        other & ~state
        for other in known.classes
        if other & state == state and tuple(((other & ~state) & own).bit_count() for own in known.of_profile) == counts
    ]
    assert frozenset(others) == known.arrangements(state, counts)
    assert starts.worth(state | added) == max(starts.worth(state | other) for other in others)
    assert starts.arranged(state, counts_of(card, {"3g.20gb": 2})) is None


def test_a_refusal_names_the_rule() -> None:
    card = geometry("A100-40GB")
    known = states(card)

    def refusal(name: str, *there: tuple[str, int]) -> str:
        return known.refusal(card.bits(there), card.index(name))

    assert refusal("1g.5gb", ("3g.20gb", 0)) == ""
    assert refusal("4g.20gb", ("1g.5gb", 0)) == (
        "it needs 4 memory slices in a row from slice 0 on, and each such row is in use"
    )
    assert "from slice 0 or 4 on" in refusal("3g.20gb", ("1g.5gb", 0), ("1g.5gb", 6))
    assert refusal("2g.10gb", ("4g.20gb", 0), ("2g.10gb", 4)) == "it needs 2 compute slices and 1 are left"
    assert refusal("1g.5gb+me", ("1g.5gb+me", 6)) == "a card can have 1 of it at most"
    pro = geometry("RTXPRO6000-96GB")
    state = pro.bits([("1g.24gb+me.all", 0)])
    assert states(pro).refusal(state, pro.index("1g.24gb")) == "it needs 1 of the engines (decoders) and 0 are left"


@pytest.mark.parametrize("key", FAMILIES)
@pytest.mark.slow
def test_a_refusal_is_reported_exactly_where_nothing_can_start(key: str) -> None:
    card = geometry(key)
    known = states(card)
    for now in all_legal(card):
        state = bits(card, now)
        for i in range(len(card.profiles)):
            starts = tuple(start for then in after_each(card, now, i) for j, start in then - now)
            assert known.starts(state, i) == starts
            assert bool(known.refusal(state, i)) == (not starts)


def test_a_fault_names_the_instance_that_cannot_be() -> None:
    card = geometry("A100-40GB")
    known = states(card)
    assert known.fault(card.bits([("3g.20gb", 0), ("3g.20gb", 4)])) == ""
    assert known.fault(card.bits([("3g.20gb", 0), ("1g.5gb", 3)])) == "1g.5gb at 3: it overlaps another one"
    four = card.bits([("4g.20gb", 0), ("3g.20gb", 4), ("1g.5gb", 3)])
    assert known.fault(four).startswith("1g.5gb at 3")
    assert known.fault(card.bits([("1g.5gb+me", 0), ("1g.5gb+me", 1)])).endswith("a card can have 1 of it at most")


def test_bits_and_instances_are_equivalent() -> None:
    card = geometry("A100-40GB")
    for now in all_legal(card):
        state = bits(card, now)
        assert held(card, state) == now
        assert sum(bits_of(state)) == state


def test_weights_must_be_there_for_each_profile() -> None:
    card = geometry("A30-24GB")
    with pytest.raises(ValueError, match="one weight of at least 0 for each profile of A30-24GB"):
        best_start(card, 0, 0, (1, 1))
    with pytest.raises(ValueError, match="at least 0"):
        best_start(card, 0, 0, (1, 1, 1, 1, -1))
