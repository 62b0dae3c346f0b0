# SPDX-License-Identifier: Apache-2.0
"""Which nodes may be out of service together, against the rules counted one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.kube.objects.stack import UpgradeSpec
from dovetail.operator.budgets import FleetNode, most, next_nodes


@pytest.mark.parametrize(
    ("budget", "total", "expected"),
    [("10%", 9, 1), ("10%", 29, 2), ("0%", 29, 0), ("100%", 5, 5), ("3", 1, 3), ("0", 9, 0), ("x", 9, 0), ("", 9, 0)],
)
def test_what_a_budget_allows(budget: str, total: int, expected: int) -> None:
    assert most(budget, total) == expected


def test_empty_nodes_come_first_then_the_earliest_end_and_those_that_are_out_before_all() -> None:
    fleet = [
        FleetNode("unknown", empty=False), FleetNode("later", empty=False, ends_ms=9),
        FleetNode("sooner", empty=False, ends_ms=5), FleetNode("empty"), FleetNode("broken", out=True, empty=False),
        FleetNode("late", postponed=True),
    ]  # fmt: skip
    upgrade = UpgradeSpec(max_nodes="100%", max_gpus="100%")
    order = ["broken", "empty", "sooner", "later", "unknown", "late"]
    assert [one.name for one in next_nodes(fleet, fleet, upgrade)] == order
    assert [one.name for one in next_nodes(fleet, fleet, upgrade, 2)] == order[:2]


def test_a_large_node_goes_alone() -> None:
    fleet = [FleetNode("a", gpus=8), FleetNode("b", gpus=8), FleetNode("c", gpus=1)]
    upgrade = UpgradeSpec(max_nodes="3", max_gpus="10%")
    assert [one.name for one in next_nodes(fleet, fleet, upgrade)] == ["a"]
    assert next_nodes(fleet, fleet, replace(upgrade, max_gpus="0")) == []


def allowed(fleet: Sequence[FleetNode], out: set[str], added: set[str], upgrade: UpgradeSpec) -> bool:
    """Whether those that were added to what is out exceed a budget that they count for."""
    pools = {one.pool for one in fleet}
    for scope in (list(fleet), *[[one for one in fleet if one.pool == pool] for pool in sorted(pools)]):
        gone, new = [one for one in scope if one.name in out], [one for one in scope if one.name in added]
        if new and len(gone) > most(upgrade.max_nodes, len(scope)):
            return False
        gpus, most_gpus = sum(one.gpus for one in gone), most(upgrade.max_gpus, sum(one.gpus for one in scope))
        alone = most_gpus and len([one for one in gone if one.gpus]) == 1
        if any(one.gpus for one in new) and gpus > most_gpus and not alone:
            return False
    racks = [one.rack for one in fleet if one.name in out]
    touched = {one.rack for one in fleet if one.name in added and one.rack}
    return all(racks.count(rack) <= upgrade.max_nodes_per_rack for rack in touched)


NODES = st.lists(
    st.builds(
        FleetNode, st.just(""), st.sampled_from("ab"), st.sampled_from(("", "r1", "r2")), st.sampled_from((0, 1, 8)),
        st.sampled_from((False, False, False, True)), st.booleans(), st.integers(0, 3),
    ),
    min_size=1, max_size=9,
)  # fmt: skip
AMOUNTS = st.sampled_from(("0", "1", "2", "5", "10%", "30%", "60%"))


@given(NODES, AMOUNTS, AMOUNTS, st.integers(1, 2))
def test_no_budget_is_exceeded_and_no_more_could_be_chosen(
    nodes: list[FleetNode], max_nodes: str, max_gpus: str, per_rack: int
) -> None:
    fleet = [replace(one, name=f"n{i}") for i, one in enumerate(nodes)]
    upgrade = UpgradeSpec(max_nodes=max_nodes, max_gpus=max_gpus, max_nodes_per_rack=per_rack)
    chosen = {one.name for one in next_nodes(fleet, fleet, upgrade)}
    before = {one.name for one in fleet if one.out}
    assert before <= chosen and allowed(fleet, chosen, chosen - before, upgrade)
    for other in {one.name for one in fleet} - chosen:
        assert not allowed(fleet, chosen | {other}, {other}, upgrade)
