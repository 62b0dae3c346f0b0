# SPDX-License-Identifier: Apache-2.0
"""Which nodes are measured together, and which are slow by that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dovetail.topology.fabric_measured import (
    PAIR,
    RING,
    FabricGroup,
    GroupResult,
    PlacedGpuNode,
    SlowResult,
    groups_of,
    slow_of,
    with_expected,
)

BLOCK, RACK = "block", "rack"
LEVELS = (BLOCK, RACK)


def racks(*sizes: int) -> list[PlacedGpuNode]:
    """Nodes a0, a1, ... b0, ... in racks of one block."""
    return [
        PlacedGpuNode(f"{'abcdef'[rack]}{i}", ("x", f"x/{'abcdef'[rack]}"))
        for rack, size in enumerate(sizes)
        for i in range(size)
    ]


def groups(nodes: Sequence[PlacedGpuNode], level: str, *shapes: str) -> list[FabricGroup]:
    return list(groups_of(nodes, LEVELS, [level], shapes or [PAIR]))


def results(nodes: Sequence[PlacedGpuNode], rate: Callable[[FabricGroup], int | None]) -> list[GroupResult]:
    every = groups_of(nodes, LEVELS, [*LEVELS, ""], [PAIR])
    return [GroupResult(one, rate(one), 100) for one in every]


def test_pairs_go_around_each_rack_and_around_the_racks_of_a_block() -> None:
    nodes = racks(3, 2, 1)
    assert [one.nodes for one in groups(nodes, RACK)] == [("a0", "a1"), ("a1", "a2"), ("a2", "a0"), ("b0", "b1")]
    between = groups(nodes, BLOCK)
    assert [one.parts for one in between] == [("x/a", "x/b"), ("x/b", "x/c"), ("x/c", "x/a")]
    assert [one.nodes for one in between] == [("a0", "b1"), ("b0", "c0"), ("c0", "a2")]
    assert {one.of for one in between} == {RACK}
    assert groups(nodes, "") == []


def test_a_ring_has_a_node_of_every_part() -> None:
    assert [one.nodes for one in groups(racks(3, 2), RACK, RING)] == [("a0", "a1", "a2"), ("b0", "b1")]
    # Of two nodes the ring is the pair.
    assert [one.shape for one in groups(racks(3, 2), RACK, PAIR, RING)] == [PAIR, PAIR, PAIR, RING, PAIR]


def test_nodes_without_a_label_are_parts_of_the_next_wider_level() -> None:
    nodes = [*racks(2), PlacedGpuNode("lone", ("x", "")), PlacedGpuNode("out", ("", ""))]
    assert [one.nodes for one in groups(nodes, RACK)] == [("a0", "a1")]
    assert [one.parts for one in groups(nodes, BLOCK)] == [("x/a", "lone")]
    assert [one.parts for one in groups(nodes, "")] == [("x", "out")]
    found = slow_of(results(nodes, lambda one: 30 if one.level == BLOCK else 95), 80)
    assert found == (SlowResult(RACK, "x/a", 30, 100), SlowResult("", "lone", 30, 100))


@pytest.mark.parametrize("bad", ["a0", "a1", "a3"])
def test_the_slow_node_is_found_and_its_neighbours_are_not(bad: str) -> None:
    found = slow_of(results(racks(4, 3), lambda one: 40 if bad in one.nodes else 97), 80)
    assert found == (SlowResult("", bad, 40, 100),)


def test_of_two_nodes_both_are_slow() -> None:
    assert [one.name for one in slow_of(results(racks(2), lambda one: 40), 80)] == ["a0", "a1"]


def test_a_rack_with_slow_links_is_found_and_not_blamed_for_a_slow_node() -> None:
    def rate(one: FabricGroup) -> int:
        return 30 if one.level == BLOCK and "x/b" in one.parts else 95

    assert slow_of(results(racks(2, 2, 2), rate), 80) == (SlowResult(RACK, "x/b", 30, 100),)
    by_node = results(racks(3, 3, 3), lambda one: 30 if "b0" in one.nodes else 95)
    assert slow_of(by_node, 80) == (SlowResult("", "b0", 30, 100),)


def test_a_group_without_a_result_slows_nothing() -> None:
    assert slow_of(results(racks(3), lambda one: None), 80) == ()


def test_just_enough_is_enough() -> None:
    assert slow_of(results(racks(3), lambda one: 80), 80) == ()
    assert len(slow_of(results(racks(3), lambda one: 79), 80)) == 3


def test_where_nothing_is_expected_the_upper_quartile_is() -> None:
    unknown = [GroupResult(one, 40 if "a1" in one.nodes else 100) for one in groups(racks(6), RACK)]
    assert {one.expected_mbps for one in with_expected(unknown)} == {100}
    assert [one.name for one in slow_of(with_expected(unknown), 80)] == ["a1"]
    none = [GroupResult(one, None) for one in groups(racks(3), RACK)]
    assert with_expected(none) == none
