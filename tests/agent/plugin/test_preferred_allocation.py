# SPDX-License-Identifier: Apache-2.0
"""Which devices the plugin prefers."""

from __future__ import annotations

import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.agent.config import Config, Shared
from dovetail.agent.plugin import best
from dovetail.agent.plugin.offers import ResourceOffer, offers
from dovetail.agent.plugin.preferred_allocation import CannotPrefer, layout_of, of_all, of_chosen
from dovetail.core.devices.choose import choices
from tests.agent.agents import GPU, host, mig_uuid, uuid

MIXED = Config(mig_strategy="mixed")
RESOURCE = "nvidia.com/mig-1g.5gb"


def whole(count: int = 8) -> ResourceOffer:
    return offers(host(count), Config(), (), {})[0][GPU]


def replicas(count: int = 4, of_each: int = 3) -> ResourceOffer:
    shared = Config(sharing={GPU: Shared("time-slicing", of_each, False, GPU)})
    return offers(host(count), shared, (), {})[0][GPU]


def slices() -> ResourceOffer:
    mig = {card: [("1g.5gb", start, 1) for start in range(7)] for card in range(3)}
    return offers(host(3, mig=mig), MIXED, (), {})[0][RESOURCE]


def uuids(*cards: int) -> list[str]:
    return [uuid(card) for card in cards]


def replica(card: int, n: int) -> str:
    return f"{uuid(card)}::{n}"


def test_the_chosen_gpus_are_named() -> None:
    assert sorted(of_chosen(whole(), ("6", "1"), uuids(*range(8)), (), 2)) == uuids(1, 6)


def test_a_container_takes_the_best_part_of_what_its_pod_has() -> None:
    near = layout_of(host(8))
    # 0 and 1 are on one NUMA node, 5 on the other.
    assert of_chosen(whole(), ("0", "1", "5"), uuids(*range(8)), (), 2, layout=near) == uuids(0, 1)
    assert of_chosen(whole(), ("0", "4", "5"), uuids(*range(8)), (), 2, layout=near) == uuids(4, 5)
    assert of_chosen(whole(), ("0", "4", "5"), uuids(0, 4, 5), uuids(0), 2, layout=near) == uuids(0, 4)


def test_what_must_be_included_comes_first() -> None:
    assert of_chosen(whole(), ("2", "3"), uuids(2, 3), uuids(3), 2) == uuids(3, 2)


@pytest.mark.parametrize(
    ("parts", "available", "must", "size", "why"),
    [
        (("9",), range(8), (), 1, "names 9, which this node does not offer"),
        (("1", "2"), (1, 3), (), 2, "of which 2 cannot be had"),
        (("1",), range(8), (), 2, "it has 1 for 2"),
        (("1", "2"), range(8), (5,), 2, "does not name 5"),
        (("0/1g.5gb@0",), range(8), (), 1, f"names no device of {GPU}"),
    ],
)
def test_an_impossible_choice_is_refused_with_its_reason(
    parts: tuple, available: range, must: tuple, size: int, why: str
) -> None:
    with pytest.raises(CannotPrefer, match=why):
        of_chosen(whole(), parts, uuids(*available), uuids(*must), size)


def test_replicas_are_of_the_chosen_cards_one_of_each() -> None:
    offer = replicas()
    free = [id for id in offer.devices if id not in (replica(2, 0), replica(1, 0), replica(1, 1))]
    assert of_chosen(offer, ("2",), free, (), 1) == [replica(2, 1)]
    assert of_chosen(offer, ("1", "2"), free, (), 2) == [replica(1, 2), replica(2, 1)]
    with pytest.raises(CannotPrefer):
        of_chosen(offer, ("1",), free, (), 2)


def test_the_next_container_gets_a_replica_of_another_card() -> None:
    offer = replicas()
    assert of_chosen(offer, ("1", "2"), offer.devices, (), 1, had={"1"}) == [replica(2, 0)]


def test_instances_are_those_that_were_chosen() -> None:
    parts = ("2/1g.5gb@3", "0/1g.5gb@6")
    assert sorted(of_chosen(slices(), parts, slices().devices, (), 2)) == [mig_uuid(0, 6), mig_uuid(2, 3)]
    assert of_chosen(slices(), ("5", "2/1g.5gb@3"), slices().devices, (), 1) == [mig_uuid(2, 3)]


def test_without_a_choice_gpus_are_chosen_as_the_scheduler_does() -> None:
    layout = layout_of(host(8))
    assert layout is not None
    best = choices(layout)
    for free in range(1, 256):
        cards = [i for i in range(8) if free >> i & 1]
        for size in range(1, len(cards) + 1):
            found = of_all(whole(), uuids(*cards), (), size, packed=False, layout=layout)
            assert found == uuids(*(i for i in range(8) if best.choose(free, size) >> i & 1))


def test_what_was_promised_to_others_is_taken_last() -> None:
    layout = layout_of(host(4))
    offer, free = whole(4), uuids(0, 1, 2, 3)
    assert of_all(offer, free, (), 2, packed=False, promised={"0", "1"}, layout=layout) == uuids(2, 3)
    assert len(of_all(offer, free, (), 3, packed=False, promised={"0", "1"}, layout=layout)) == 3


def test_distributed_takes_the_card_with_the_fewest_allocated_replicas() -> None:
    offer = replicas()
    free = [id for id in offer.devices if id not in (replica(0, 0), replica(1, 0), replica(1, 1))]
    assert of_all(offer, free, (), 3, packed=False) == [replica(2, 0), replica(3, 0), replica(0, 1)]


def test_packed_takes_the_card_with_the_most_allocated_replicas() -> None:
    offer = replicas()
    free = [id for id in offer.devices if id not in (replica(0, 0), replica(1, 0), replica(1, 1))]
    assert of_all(offer, free, (), 3, packed=True) == [replica(1, 2), replica(0, 1), replica(0, 2)]


def test_instances_are_distributed_over_cards_or_packed() -> None:
    offer = slices()
    free = [id for id in offer.devices if id != mig_uuid(1, 0)]
    assert of_all(offer, free, (), 2, packed=False) == [mig_uuid(0, 0), mig_uuid(2, 0)]
    assert of_all(offer, free, (), 2, packed=True) == [mig_uuid(1, 1), mig_uuid(1, 2)]


@pytest.mark.parametrize("size", [0, 5])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(CannotPrefer):
        of_all(whole(), uuids(0, 1), uuids(0), size, packed=False)


OFFERS = {"whole": whole(), "replicas": replicas(), "slices": slices()}


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(OFFERS)), st.data(), st.booleans())
def test_every_answer_has_the_size_includes_what_it_must_and_is_the_same_again(
    kind: str, data: st.DataObject, packed: bool
) -> None:
    offer = OFFERS[kind]
    layout = layout_of(host(8))
    available = data.draw(st.lists(st.sampled_from(sorted(offer.devices)), unique=True, min_size=1))
    size = data.draw(st.integers(1, len(available)))
    must = data.draw(st.permutations(available))[: data.draw(st.integers(0, size))]
    promised = data.draw(st.sets(st.sampled_from(sorted({d.part for d in offer.devices.values()}))))
    found = of_all(offer, available, must, size, packed=packed, promised=promised, layout=layout)
    assert len({*found}) == len(found) == size and {*must} <= {*found} <= {*available}
    again = of_all(offer, [*reversed(available)], must, size, packed=packed, promised=promised, layout=layout)
    assert again == found


def test_a_host_whose_links_are_not_known_still_has_a_layout() -> None:
    unread = replace(host(4), pcie=(), nvlinks=None, nics=None)
    layout = layout_of(unread)
    assert layout is not None and layout.gpus == 4
    assert of_all(whole(4), uuids(0, 2, 3), (), 2, packed=False, layout=layout) == uuids(2, 3)


def test_a_host_that_contradicts_itself_has_none_and_gpus_of_a_node_stay_together() -> None:
    wrong = replace(host(4), pcie=((0, 1), (2, 0)))
    assert layout_of(wrong) is None
    assert of_all(whole(4), uuids(1, 2, 3), uuids(2), 2, packed=False, layout=None) == uuids(2, 3)


@pytest.mark.slow
def test_the_separate_process_answers_as_this_one_and_its_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    near = layout_of(host(8))
    assert near is not None
    question = msgspec.json.encode({"layout": near, "free": 0b11110110, "having": 1, "size": 3})
    assert best.best(near, 0b11110110, 1, 3) == best.answer(question)
    best.best.cache_clear()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(best.NoAnswer, match="/nowhere/python"):
        best.best(near, 0b11110110, 1, 3)
