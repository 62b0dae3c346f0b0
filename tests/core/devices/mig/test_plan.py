# SPDX-License-Identifier: Apache-2.0
"""How cards are divided anew, against every way to divide them."""

from __future__ import annotations

import random
from itertools import product

import pytest

from dovetail.core.devices.mig.geometry import Geometry, GeometryError
from dovetail.core.devices.mig.instances import states
from dovetail.core.devices.mig.plan import DivisionPlan, InstanceChange, NoDivision, PlannedDivision, plan
from dovetail.core.devices.mig.slices import slices
from tests.core.devices.mig.mig_oracle import geometry

A100, A30, H100 = geometry("A100-40GB"), geometry("A30-24GB"), geometry("H100-80GB")
SMALL = A100.bits([("1g.5gb", start) for start in range(7)])
Cost = tuple[int, int, int]
"""Cards touched, modes changed, thousandths of cards destroyed."""


def counts(card: Geometry, bits: int, names: list[str]) -> list[int]:
    return [
        sum(1 for i, _ in card.members(bits) if card.find(name) == i) if card.find(name) is not None else 0
        for name in names
    ]


def cheapest_by_hand(cards: list[PlannedDivision], wanted: dict[str, int]) -> Cost | None:
    """Every legal state that each card could have afterwards, in all combinations."""
    names = list(wanted)
    ways: list[list[tuple[Cost, list[int]]]] = []
    for card in cards:
        own: dict[tuple[Cost, tuple[int, ...]], None] = {}
        for then in states(card.geometry).classes:
            destroyed = card.instances & ~then
            if destroyed & card.used or (card.busy and then):
                continue
            gone = [card.geometry.profiles[i] for i, _ in card.geometry.members(destroyed)]
            touched = then != card.instances
            cost = (
                int(touched),
                int(touched and not card.mig),
                slices(card.geometry, gone).milli,
            )
            own[cost, tuple(counts(card.geometry, then & ~card.used, names))] = None
        ways.append([(cost, list(gain)) for cost, gain in own])
    best: Cost | None = None
    for chosen in product(*ways):
        if all(sum(gain[k] for _, gain in chosen) >= wanted[name] for k, name in enumerate(names)):
            cost = tuple(sum(parts) for parts in zip(*(cost for cost, _ in chosen), strict=True))
            assert len(cost) == 3
            best = min(best, cost) if best is not None else cost
    return best


def cost_of(found: DivisionPlan, cards: list[PlannedDivision], wanted: dict[str, int]) -> Cost:
    """What a plan costs, once it is carried out by the rules."""
    changes = {change.gpu: change for change in found.changes}
    assert len(changes) == len(found.changes)
    names, gain, total = list(wanted), [0] * len(wanted), [0, 0, 0]
    new = [0] * len(wanted)
    for card in cards:
        change, now = changes.get(card.gpu), card.instances
        if change is not None:
            destroyed, created = card.geometry.bits(change.destroy), card.geometry.bits(change.create)
            assert created and not card.busy
            assert destroyed & ~card.instances == 0 and destroyed & card.used == 0
            assert change.turns_on == (not card.mig)
            assert change.resets == (change.turns_on and card.geometry.mode_change_resets)
            now = now & ~destroyed
            assert not now & created
            now |= created
            assert now in states(card.geometry).classes
            gone = slices(card.geometry, [card.geometry.profiles[i] for i, _ in card.geometry.members(destroyed)])
            for k, part in enumerate((1, int(change.turns_on), gone.milli)):
                total[k] += part
            new = [a + b for a, b in zip(new, counts(card.geometry, created, names), strict=True)]
        gain = [a + b for a, b in zip(gain, counts(card.geometry, now & ~card.used, names), strict=True)]
    assert all(got >= wanted[name] for got, name in zip(gain, names, strict=True))
    assert all(got == wanted[name] for got, name, created in zip(gain, names, new, strict=True) if created)
    return (total[0], total[1], total[2])


def drawn(chance: random.Random, gpu: int, card: Geometry) -> PlannedDivision:
    if chance.random() < 0.3:
        return PlannedDivision(gpu, card, mig=False, busy=chance.random() < 0.4)
    there = chance.choice(sorted(states(card).classes))
    used = sum(card.bit(*one) for one in card.members(there) if chance.random() < 0.4)
    return PlannedDivision(gpu, card, mig=True, instances=there, used=used)


@pytest.mark.parametrize("seed", range(80))
def test_no_way_to_divide_two_small_cards_is_cheaper(seed: int) -> None:
    chance = random.Random(seed)
    cards = [drawn(chance, gpu, A30) for gpu in range(2)]
    names = chance.sample([profile.name for profile in A30.profiles], chance.randint(1, 2))
    wanted = {name: chance.randint(1, 3) for name in names}
    found, best = plan(cards, wanted), cheapest_by_hand(cards, wanted)
    if isinstance(found, NoDivision):
        assert best is None
    else:
        assert cost_of(found, cards, wanted) == best


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.slow
def test_no_way_to_divide_a_large_card_beside_a_small_one_is_cheaper(seed: int) -> None:
    chance = random.Random(seed)
    cards = [drawn(chance, 0, A100), drawn(chance, 1, A30)] if seed % 4 == 0 else [drawn(chance, 0, A100)]
    names = chance.sample([profile.name for profile in A100.profiles], chance.randint(1, 3))
    wanted = {name: chance.randint(1, 2) for name in names}
    found, best = plan(cards, wanted), cheapest_by_hand(cards, wanted)
    if isinstance(found, NoDivision):
        assert best is None
    else:
        assert cost_of(found, cards, wanted) == best


def test_nothing_is_done_where_the_wanted_is_idle() -> None:
    card = PlannedDivision(0, A100, mig=True, instances=SMALL, used=A100.bits([("1g.5gb", 0)]))
    assert plan([card], {"1g.5gb": 6}) == DivisionPlan(())
    assert plan([card], {}) == DivisionPlan(())


def test_free_room_is_used_before_anything_is_destroyed() -> None:
    full = PlannedDivision(0, A100, mig=True, instances=SMALL)
    begun = PlannedDivision(1, A100, mig=True, instances=A100.bits([("1g.5gb", 6)]), used=A100.bits([("1g.5gb", 6)]))
    assert plan([full, begun], {"4g.20gb": 1}) == DivisionPlan((InstanceChange(1, (), (("4g.20gb", 0),)),))


def test_idle_instances_go_and_those_in_use_stay() -> None:
    card = PlannedDivision(2, A100, mig=True, instances=SMALL, used=A100.bits([("1g.5gb", 6)]))
    found = plan([card], {"2g.10gb": 1})
    assert isinstance(found, DivisionPlan)
    (change,) = found.changes
    assert change.create == (("2g.10gb", 4),)
    assert change.destroy == (("1g.5gb", 4), ("1g.5gb", 5))


def test_cards_in_mig_mode_come_before_whole_ones() -> None:
    whole, divided = PlannedDivision(0, A100, mig=False), PlannedDivision(1, A100, mig=True, instances=SMALL)
    found = plan([whole, divided], {"3g.20gb": 1})
    assert isinstance(found, DivisionPlan)
    assert [change.gpu for change in found.changes] == [1]


def test_one_whole_card_comes_before_two_in_mig_mode() -> None:
    half = A100.bits([("3g.20gb", 4)])
    cards = [PlannedDivision(gpu, A100, mig=True, instances=half, used=half) for gpu in (0, 1)]
    found = plan([*cards, PlannedDivision(2, A100, mig=False)], {"3g.20gb": 2})
    assert found == DivisionPlan((InstanceChange(2, (), (("3g.20gb", 0), ("3g.20gb", 4)), turns_on=True, resets=True),))


def test_only_some_cards_are_reset_when_mig_mode_is_turned_on() -> None:
    found = plan([PlannedDivision(0, H100, mig=False)], {"1g.10gb": 1})
    assert isinstance(found, DivisionPlan)
    assert (found.changes[0].turns_on, found.changes[0].resets) == (True, False)


def test_of_equal_cards_the_one_most_in_use_is_touched() -> None:
    used = A100.bits([("1g.5gb", 6)])
    cards = [PlannedDivision(0, A100, mig=True), PlannedDivision(1, A100, mig=True, instances=used, used=used)]
    found = plan(cards, {"1g.5gb": 1})
    assert isinstance(found, DivisionPlan)
    assert [change.gpu for change in found.changes] == [1]


def test_two_names_of_one_profile_are_added_up() -> None:
    gb200 = geometry("GB200-186GB")
    found = plan([PlannedDivision(0, gb200, mig=True)], {"1g.23gb": 1, "nvidia.com/mig-1g.24gb": 2})
    assert isinstance(found, DivisionPlan)
    assert [name for name, _ in found.changes[0].create] == ["1g.23gb"] * 3


def test_what_is_in_the_way_is_reported() -> None:
    divided = PlannedDivision(0, A100, mig=True, instances=SMALL, used=A100.bits([("1g.5gb", 0)]))
    whole = PlannedDivision(4, A100, mig=False, busy=True)
    assert plan([divided, whole], {"4g.20gb": 1}) == NoDivision(
        "instances in use are never destroyed, and too little is idle beside them: GPU0, GPU4"
    )
    assert plan([divided, whole], {"4g.20gb": 3}) == NoDivision(
        "the cards of the node cannot hold so many at once, even if all were idle"
    )
    assert plan([divided, whole], {"4g.24gb": 1}) == NoDivision(
        "no card of the node has the profile 4g.24gb: A100-40GB"
    )
    assert plan([], {"1g.5gb": 1}) == NoDivision("no card of the node has the profile 1g.5gb: it has no cards")


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ({"mig": True, "instances": A100.bits([("3g.20gb", 0), ("1g.5gb", 3)])}, "it overlaps another one"),
        ({"mig": True, "instances": 1, "used": 2}, "instances are in use that do not exist"),
        ({"mig": False, "instances": 1}, "a card has instances only in MIG mode"),
        ({"mig": True, "busy": True}, "is in use as a whole only without it"),
    ],
)
def test_a_card_that_cannot_be_is_refused(card: dict[str, int], message: str) -> None:
    with pytest.raises(GeometryError, match=f"GPU7: .*{message}"):
        PlannedDivision(7, A100, **card)  # type: ignore[arg-type]
