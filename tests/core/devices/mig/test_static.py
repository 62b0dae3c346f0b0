# SPDX-License-Identifier: Apache-2.0
"""Which of the instances that are there a pod gets, against every way to take them."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from dovetail.core.devices.mig.geometry import Asked, GeometryError
from dovetail.core.devices.mig.instances import counts_of, equal_weights, starts_of, states
from dovetail.core.devices.mig.slices import slices, taken
from dovetail.core.devices.mig.static import Card, Cards, cards_of, layout_from_counts
from tests.core.devices.mig.mig_oracle import geometry

A100, A30 = geometry("A100-40GB"), geometry("A30-24GB")
BALANCED = A100.bits([("3g.20gb", 4), ("2g.10gb", 2), ("1g.5gb", 0), ("1g.5gb", 1)])
SMALL = A100.bits([("1g.5gb", start) for start in range(7)])


def subsets(bits: int) -> list[int]:
    found, some = [bits], bits
    while some:
        some = (some - 1) & bits
        found.append(some)
    return found


def best_by_hand(cards: Cards, used: tuple[int, ...], asked: Asked) -> tuple[int, ...] | None:
    """Every set of free instances with the right numbers, by the rules in their order."""
    order = sorted(
        range(len(cards.cards)), key=lambda i: (-taken(cards.cards[i].geometry, used[i]).milli if used[i] else 1, i)
    )

    def key(way: tuple[int, ...]) -> tuple[object, ...]:
        opened = tuple(i for i in order if way[i] and not used[i])
        from_each, losses = [], []
        for i in order:
            card = cards.cards[i].geometry
            from_each.append(-sum(slices(card, [card.profiles[p]]).milli for p, _ in card.members(way[i])))
            losses.append((-starts_of(card, equal_weights(card)).worth(used[i] | way[i]), -way[i]))
        return (len(opened), opened, from_each, losses)

    wanted = Counter(dict(asked))
    ways = []
    for way in product(*(subsets(card.instances & ~held) for card, held in zip(cards.cards, used, strict=True))):
        counts: Counter[str] = Counter()
        for card, own in zip(cards.cards, way, strict=True):
            counts.update(card.geometry.profiles[p].name for p, _ in card.geometry.members(own))
        if counts == wanted:
            ways.append(way)
    return min(ways, key=key, default=None)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_taken_is_the_best_of_all_ways(seed: int) -> None:
    chance = random.Random(seed)
    held: list[Card] = []
    for gpu in range(chance.randint(1, 3)):
        card = chance.choice([A100, A30]) if seed % 3 == 0 else A100
        few = [state for state in sorted(states(card).classes) if 1 <= state.bit_count() <= (4 if gpu < 2 else 3)]
        held.append(held[-1] if gpu and chance.random() < 0.4 else Card(gpu, card, chance.choice(few)))
    cards = Cards(tuple(Card(gpu, card.geometry, card.instances) for gpu, card in enumerate(held)))
    used = tuple(chance.choice([0, 0, *subsets(card.instances)]) for card in cards.cards)
    names = sorted({card.geometry.profiles[p].name for card in held for p, _ in card.geometry.members(card.instances)})
    for _ in range(4):
        some = chance.sample(names, min(len(names), chance.randint(1, 2)))
        asked = tuple((name, chance.randint(1, 3)) for name in sorted(some))
        assert cards.choose(used, asked) == best_by_hand(cards, used, asked)


def test_instances_on_used_cards_are_taken_before_an_idle_card_is_broken_into() -> None:
    cards = Cards((Card(0, A100, SMALL), Card(3, A100, SMALL), Card(5, A100, SMALL)))
    used = (0, A100.bits([("1g.5gb", 6)]), A100.bits([("1g.5gb", 6), ("1g.5gb", 5)]))
    chosen = cards.choose(used, (("1g.5gb", 6),))
    assert chosen is not None
    assert Counter(gpu for gpu, _ in cards.pairs(chosen)) == {5: 5, 3: 1}
    more = cards.choose(used, (("1g.5gb", 12),))
    assert more is not None
    assert Counter(gpu for gpu, _ in cards.pairs(more)) == {5: 5, 3: 6, 0: 1}
    assert cards.choose(used, (("1g.5gb", 19),)) is None


def test_one_idle_card_that_has_all_is_better_than_two() -> None:
    threes = A100.bits([("3g.20gb", 0), ("3g.20gb", 4)])
    cards = Cards((Card(0, A100, SMALL), Card(1, A100, threes), Card(2, A100, BALANCED)))
    chosen = cards.choose((0, 0, 0), (("1g.5gb", 2), ("3g.20gb", 1)))
    assert chosen is not None
    assert cards.pairs(chosen) == ((2, 0), (2, 1), (2, 4))


def test_of_equal_instances_those_are_taken_that_leave_the_card_most_divisible() -> None:
    cards = Cards((Card(0, A100, SMALL),))
    chosen = cards.choose((0,), (("1g.5gb", 3),))
    assert chosen == (A100.bits([("1g.5gb", 3 + i) for i in (1, 2, 3)]),)
    assert states(A100).room(chosen[0], A100.index("4g.20gb")) == 1


def test_a_profile_is_known_by_its_resource_and_its_other_names() -> None:
    gb200 = geometry("GB200-186GB")
    cards = Cards((Card(0, gb200, gb200.bits([("1g.23gb", 0)])),))
    for name in ("nvidia.com/mig-1g.23gb", "1g.24gb", "nvidia.com/mig-1g.24gb"):
        assert cards.choose((0,), ((name, 1),)) == (gb200.bits([("1g.23gb", 0)]),)
    assert cards.choose((0,), (("1g.5gb", 1),)) is None
    assert cards.choose((0,), (("1g.23gb", 1), ("1g.24gb", 1))) is None


def test_free_instances_are_counted_by_profile() -> None:
    cards = cards_of((Card(0, A100, BALANCED), Card(1, A30, A30.bits([("2g.12gb", 0)]))))
    assert cards.free((0, 0)) == {"1g.5gb": 2, "2g.10gb": 1, "2g.12gb": 1, "3g.20gb": 1}
    assert cards.free((A100.bits([("1g.5gb", 1)]), A30.bits([("2g.12gb", 0)]))) == {
        "1g.5gb": 1, "2g.10gb": 1, "3g.20gb": 1,
    }  # fmt: skip
    assert cards is cards_of((Card(0, A100, BALANCED), Card(1, A30, A30.bits([("2g.12gb", 0)]))))


def test_instances_that_cannot_be_beside_each_other_are_no_card() -> None:
    with pytest.raises(GeometryError, match=r"GPU3: 1g\.5gb at 3: it overlaps another one"):
        Card(3, A100, A100.bits([("3g.20gb", 0), ("1g.5gb", 3)]))


def counted(cards: tuple[Card, ...]) -> Counter[str]:
    return Counter(card.geometry.profiles[p].name for card in cards for p, _ in card.geometry.members(card.instances))


@pytest.mark.parametrize(
    ("by_name", "gpus"),
    [
        ({"1g.5gb": 56}, 8),
        ({"3g.20gb": 8, "2g.10gb": 8, "1g.5gb": 16}, 8),
        ({"1g.5gb": 3}, 2),
        ({"7g.40gb": 2, "1g.5gb": 14}, 4),
        ({"7g.40gb": 1, "3g.20gb": 2, "2g.10gb": 3, "1g.5gb": 8}, 4),
        ({"4g.20gb": 1, "3g.20gb": 3}, 2),
        ({"1g.10gb": 4, "1g.5gb": 7}, 2),
    ],
)
def test_a_layout_has_the_reported_numbers(by_name: dict[str, int], gpus: int) -> None:
    cards = layout_from_counts(A100, by_name, gpus)
    assert cards is not None
    assert [card.gpu for card in cards] == list(range(gpus))
    assert all(card.assumed for card in cards)
    assert counted(cards) == by_name


def test_cards_are_equal_where_numbers_allow_it() -> None:
    cards = layout_from_counts(A100, {"3g.20gb": 4, "2g.10gb": 4, "1g.5gb": 8}, 4)
    assert cards is not None
    assert {card.instances for card in cards} == {cards[0].instances}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.slow
def test_numbers_are_laid_out_exactly_where_some_cards_could_have_them(seed: int) -> None:
    chance = random.Random(seed)
    mixes = sorted(
        {tuple((state & own).bit_count() for own in states(A100).of_profile) for state in states(A100).classes}
    )
    pairs = {tuple(a + b for a, b in zip(one, other, strict=True)) for one in mixes for other in mixes}
    names = [profile.name for profile in A100.profiles]
    for _ in range(10):
        wanted = {name: chance.choice([0, 0, 1, 2, 3]) for name in names}
        cards = layout_from_counts(A100, wanted, 2)
        assert (cards is not None) == (counts_of(A100, wanted) in pairs)
        if cards is not None:
            assert counted(cards) == {name: count for name, count in wanted.items() if count}


def test_numbers_that_no_cards_could_have_have_no_layout() -> None:
    assert layout_from_counts(A100, {"1g.5gb": 8}, 1) is None
    assert layout_from_counts(A100, {"1g.5gb": 1}, 0) is None
    assert layout_from_counts(A100, {"4g.20gb": 3, "1g.5gb": 1}, 2) is None
    assert layout_from_counts(A100, {"1g.5gb": 10**12}, 8) is None
    assert layout_from_counts(A100, {}, 0) == ()
    with pytest.raises(GeometryError, match=r"A100-40GB has no 1g\.18gb"):
        layout_from_counts(A100, {"1g.18gb": 1}, 1)
