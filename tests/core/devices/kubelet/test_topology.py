# SPDX-License-Identifier: Apache-2.0
"""What the Topology Manager decides from hints."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.devices.kubelet.hints import Hint, Hints, mask_of, masks_over
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.topology import TopologyManager
from tests.core.devices.kubelet import merge_oracle

POLICIES = ("best-effort", "restricted", "single-numa-node")


def manager(policy: str, nodes: int = 2, **more: object) -> TopologyManager:
    return TopologyManager(Inventory(numa=tuple(range(nodes)), topology_policy=policy, **more))  # type: ignore[arg-type]


def hints(*found: tuple[int | None, bool]) -> list[Hint]:
    return [Hint(*one) for one in found]


@st.composite
def machines(draw: st.DrawFn) -> Inventory:
    numa = tuple(draw(st.one_of(st.integers(1, 5).map(range), st.sets(st.integers(0, 9), min_size=1, max_size=4))))
    numa = tuple(sorted(numa))
    rows = tuple(tuple(draw(st.sampled_from((10, 12, 21, 32))) for _ in range(numa[-1] + 1)) for _ in numa)
    return Inventory(
        numa=numa,
        topology_policy=draw(st.sampled_from(POLICIES)),
        prefer_closest_numa=draw(st.booleans()),
        distances=rows,
    )


@st.composite
def questions(draw: st.DrawFn) -> tuple[Inventory, list[Hints]]:
    machine = draw(machines())
    hint = st.builds(Hint, st.one_of(st.none(), st.sampled_from(masks_over(machine.numa))), st.booleans())
    found = st.one_of(st.none(), st.lists(hint, max_size=5))
    return machine, draw(st.lists(st.dictionaries(st.sampled_from("abc"), found, max_size=2), max_size=3))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(questions())
def test_the_decision_is_that_of_comparing_every_combination(question: tuple[Inventory, list[Hints]]) -> None:
    machine, offered_hints = question
    assert TopologyManager(machine).merge(offered_hints) == merge_oracle.merge(machine, offered_hints)


def test_managers_that_agree_on_a_node_get_it() -> None:
    both = {"gpu": hints((1, True), (2, True), (3, False))}
    assert manager("restricted").merge([both, {"cpu": hints((2, True), (3, False))}, {}]) == (Hint(2, True), True)


def test_of_as_good_nodes_the_first_is_taken() -> None:
    every = {"gpu": hints((1, True), (2, True), (3, False))}
    assert manager("single-numa-node").merge([every, every]) == (Hint(1, True), True)


def test_preferred_masks_that_differ_are_not_preferred_together() -> None:
    asked = [{"gpu": hints((1, True))}, {"cpu": hints((3, True))}]
    assert manager("best-effort").merge(asked) == (Hint(1, False), True)
    assert manager("restricted").merge(asked) == (Hint(1, False), False)


def test_nobody_asking_for_a_place_is_admitted_anywhere() -> None:
    assert manager("restricted").merge([{}, {"gpu": None}, {}]) == (Hint(3, True), True)
    assert manager("single-numa-node").merge([{}, {"gpu": None}, {}]) == (Hint(None, True), True)


def test_what_cannot_be_met_is_refused_but_by_best_effort() -> None:
    asked: list[Hints] = [{"gpu": []}, {"cpu": hints((1, True))}]
    assert manager("restricted").merge(asked) == (Hint(1, False), False)
    assert manager("single-numa-node").merge(asked) == (Hint(None, False), False)
    assert manager("best-effort").merge(asked) == (Hint(1, False), True)


def test_managers_that_exclude_each_other_leave_the_whole_machine() -> None:
    asked = [{"gpu": hints((1, True))}, {"cpu": hints((2, True))}]
    assert manager("best-effort").merge(asked) == (Hint(3, False), True)


def test_only_best_effort_and_restricted_let_a_pod_over_several_nodes() -> None:
    wide = {"gpu": hints((3, True))}
    assert manager("restricted").merge([wide]) == (Hint(3, True), True)
    assert manager("single-numa-node").merge([wide]) == (Hint(None, False), False)


def test_without_a_preferred_choice_it_is_as_wide_as_the_most_demanding_needs() -> None:
    narrow = hints(*((mask, False) for mask in masks_over((0, 1, 2, 3))))
    wide = hints(*((mask, False) for mask in masks_over((0, 1, 2, 3)) if mask.bit_count() >= 2))
    assert manager("best-effort", 4).merge([{"cpu": narrow}, {"gpu": wide}])[0] == Hint(0b0011, False)


def test_the_closest_nodes_are_taken_on_request_and_never_by_single_numa_node() -> None:
    rows = ((10, 21, 21, 12), (21, 10, 12, 21), (21, 12, 10, 21), (12, 21, 21, 10))
    pairs = {"gpu": hints(*((mask, True) for mask in masks_over((0, 1, 2, 3)) if mask.bit_count() == 2))}
    assert manager("restricted", 4).merge([pairs])[0].mask == mask_of([0, 1])
    near = manager("restricted", 4, prefer_closest_numa=True, distances=rows)
    assert near.merge([pairs])[0].mask == mask_of([1, 2])
    singles = {"gpu": hints((1, True), (2, True))}
    far = ((99, 1), (1, 10))
    assert manager("single-numa-node", 2, prefer_closest_numa=True, distances=far).merge([singles])[0].mask == 1


def test_a_machine_with_dozens_of_nodes_is_decided_by_those_that_matter() -> None:
    wide = manager("best-effort", 36, max_allowable_numa=64)
    asked = [{"gpu": hints((1, True), (2, True), (3, False))}, {"cpu": hints((1 << 35, True))}]
    assert wide.merge(asked) == (Hint((1 << 36) - 1, False), True)
    assert wide.merge([{"gpu": hints((1, False)), "nic": []}])[0] == Hint(1, False)


@pytest.mark.parametrize("policy", [None, "none"])
def test_a_policy_that_merges_nothing_has_no_manager(policy: str | None) -> None:
    with pytest.raises(ValueError, match="merges no hints"):
        TopologyManager(Inventory(numa=(0,), topology_policy=policy))
